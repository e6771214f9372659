"""The commands of the README are true: make targets exist, every `da3po train` line resolves and passes its checks."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = [line.strip().split("  #")[0].strip() for line in README.splitlines() if line.startswith("    ")]
COMMANDS = [line.removeprefix(".venv/bin/") for line in CODE if re.match(r"(\.venv/bin/)?da3po ", line)]


def test_make_targets_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.M))
    named = {line.split()[1] for line in CODE if line.startswith("make ")}
    assert {"train", "test", "lint"} <= named <= targets


def test_the_readme_has_commands():
    assert any("--lambda 2.0" in command for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_resolve(command, tmp_path):
    arguments = shlex.split(command)[1:]
    if "--help" not in arguments and "--dry-run" not in arguments:
        arguments.append("--dry-run")
    done = subprocess.run(
        [sys.executable, "-m", "da3po_cli", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert not any(tmp_path.iterdir()), "a dry run writes nothing"
