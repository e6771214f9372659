"""The README is true: make targets exist, `da3po train` lines pass their checks, the others parse, links lead on."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from da3po_cli.main import make_app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = [line.strip().split("  #")[0].strip() for line in README.splitlines() if line.startswith("    ")]
COMMANDS = [line.removeprefix(".venv/bin/") for line in CODE if re.match(r"(\.venv/bin/)?da3po ", line)]


def test_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    named = {line.split()[1] for line in CODE if line.startswith("make ")}
    assert {"train", "test", "lint"} <= named <= targets


def test_the_readme_has_commands():
    assert any("--lambda 2.0" in command for command in COMMANDS)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("da3po train")])
def test_training_commands_resolve(command, tmp_path, monkeypatch):
    arguments = shlex.split(command)[1:]
    if "--resume" in arguments:
        pytest.skip("needs a run; tests/cli/test_train.py has it")
    if "--help" not in arguments and "--dry-run" not in arguments:
        arguments.append("--dry-run")
    done = subprocess.run(
        [sys.executable, "-m", "da3po_cli", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert not any(tmp_path.iterdir()), "a dry run writes nothing"


@pytest.mark.parametrize("command", [command for command in COMMANDS if not command.startswith("da3po train")])
def test_other_commands_parse(command):
    """Every option and argument is one that the command has; nothing runs."""
    parser, arguments = typer.main.get_command(make_app()), shlex.split(command)[1:]
    while hasattr(parser, "commands") and arguments and arguments[0] in parser.commands:
        parser, arguments = parser.commands[arguments[0]], arguments[1:]
    assert not hasattr(parser, "commands") or parser.name == "eval", f"no such command: {command}"
    parser.make_context(parser.name, list(arguments))


def test_links_lead_to_pages():
    pages = re.findall(r"\]\((docs/[\w./-]+)\)", README)
    assert pages and all((ROOT / page).is_file() for page in pages)
