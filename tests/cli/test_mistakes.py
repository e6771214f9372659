"""Wrong commands, configs and files as people write them: each gives this message, this code, and leaves no trace.

The cases are in mistakes.py: what is typed, and stderr. The texts are part of the interface: who changes one changes it
there.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from mistakes import CONFIG, FILES, OTHERS

from da3po_cli import main
from da3po_cli.config import devices
from da3po_cli.runs.directory import RunDir


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the wrong files, and a run `saved` with a checkpoint of step 20; a machine without GPUs."""
    for name in list(os.environ):
        if name.startswith(("DA3PO_", "SLURM_")) or name in ("RANK", "WORLD_SIZE", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "installed_gpus", lambda root: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})  # two ranks by default, whatever this machine has
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    run = RunDir(tmp_path / "runs/saved")
    run.create("defaults: demo\n", "hash", ["da3po", "train"])
    (run.checkpoints / "step_20").mkdir(parents=True)
    (run.checkpoints / "step_20/state.json").write_text('{"step": 20}')
    return tmp_path


def snapshot(place: Path) -> Mapping[str, bytes | None]:
    """Every path with its bytes."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(place.rglob("*"))}


def expected(text: str) -> str:
    lines = [line[8:] for line in text.strip("\n").splitlines()]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("command", "told"), (CONFIG | OTHERS).items(), ids=[*CONFIG, *OTHERS])
def test_a_mistake(
    command: str, told: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, words = snapshot(place), shlex.split(command)
    while words[0].startswith("DA3PO_"):
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    code = main.execute(main.normalise(words))
    stdout, stderr = capsys.readouterr()
    assert stderr == expected(told)
    assert (code, stdout) == (2, "")
    assert snapshot(place) == before


@pytest.mark.parametrize("command", [command for command in CONFIG if command.startswith("train")])
def test_a_mistake_as_json(command: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.execute(main.normalise([*shlex.split(command), "--json"])) == 2
    (line,) = capsys.readouterr().out.splitlines()
    error = json.loads(line)["error"]
    first = (error.get("problems") or [error])[0]
    assert f"error: {first['message']}" == expected(CONFIG[command]).splitlines()[0]
    assert first["hint"] and first["where"]


def test_from_a_shell(place: Path) -> None:
    """The same through the operating system: code, streams, no traceback."""
    command = "train -c demo --lambda 0"
    done = subprocess.run(
        [sys.executable, "-m", "da3po_cli", *shlex.split(command)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected(CONFIG[command]))


def test_every_problem_of_a_config_at_once(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "-c", "demo", "train.lrr=1", "--steps", "0", "parallel.tensor=3", "reward.name=maths"]
    assert main.execute(words) == 2
    _, stderr = capsys.readouterr()
    assert [line for line in stderr.splitlines() if line.startswith("error")] == [
        "error: unknown config key 'train.lrr'",
        "error: run.steps=0 must be at least 1",
        "error: reward.name: no reward named 'maths'",
        "error: parallel.tensor=3 does not divide the model's 4 attention heads or 2 key-value heads",
    ]
