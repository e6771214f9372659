"""What tests of several commands share; it also makes the modules here importable."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from da3po_cli.config import devices
from da3po_cli.launching import launch as launch_module
from da3po_cli.launching.launch import WorkerOptions
from da3po_cli.runs.directory import RunDir

sys.path.insert(0, str(Path(__file__).parent))

from called import MODEL, Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    for name in list(os.environ):
        if name.startswith(("DA3PO_", "SLURM_")) or name in ("RANK", "WORLD_SIZE", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "installed_gpus", lambda root: 0)
    monkeypatch.setattr("da3po_cli.training.prepare.find_spec", lambda name: name)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(MODEL))
    return Cli(capsys, tmp_path / "runs")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, RunDir, WorkerOptions]]:
    """What would have been launched."""
    calls: list[tuple[object, RunDir, WorkerOptions]] = []
    monkeypatch.setattr(launch_module, "launch", lambda *call: calls.append(call))
    return calls
