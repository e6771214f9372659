"""`config show|diff`, `runs ls|show` and `algos`: what they print is what there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from da3po_cli.algos.table import ALGORITHMS
from da3po_cli.config.load import flatten, load_config
from da3po_cli.main import execute
from da3po_cli.runs.claim import claim
from da3po_cli.runs.directory import RunDir


def stdout(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert execute(list(arguments)) == 0
    return capsys.readouterr().out


def test_a_shown_config_is_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = stdout(capsys, "config", "show", "-c", "demo", "train.lr=3e-5", "lambda=1.5")
    file = tmp_path / "shown.yaml"
    file.write_text(shown)
    want = load_config(["demo"], ["train.lr=3e-5", "lambda=1.5"], env={}).config
    assert load_config([str(file)], env={}).config == want


def test_sources_name_the_layer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DA3PO_RUN__SEED", "7")
    lines = stdout(capsys, "config", "show", "-c", "demo", "train.lr=3e-5", "--sources").splitlines()
    sources = {line.split(" = ")[0]: line.partition("# ")[2] for line in lines}
    assert "command line" in sources["train.lr"]
    assert "DA3PO_RUN__SEED" in sources["run.seed"]
    assert "demo.yaml" in sources["run.steps"]
    assert sources["train.epochs"].startswith("default")
    assert len(sources) == len(flatten(load_config(["demo"], env={}).config))


def test_diff_lists_exactly_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("defaults: [demo]\ntrain:\n  lr: 1.0e-3\nrun:\n  name: null\n  steps: 31\n")
    found = json.loads(stdout(capsys, "config", "diff", "demo", str(other), "--json"))["changes"]
    assert {change["key"]: (change["a"], change["b"]) for change in found} == {
        "train.lr": (load_config(["demo"], env={}).config.train.lr, 1e-3),
        "run.steps": (30, 31),
    }
    assert stdout(capsys, "config", "diff", "demo", "demo") == ""


@pytest.fixture
def two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunDir]:
    monkeypatch.setenv("DA3PO_RUNS", str(tmp_path))
    runs = []
    for name, score in (("first", 0.25), ("second", 0.75)):
        run = RunDir(tmp_path / name)
        run.create("run:\n  steps: 2\n", "hash", ["da3po", "train", "--name", name])
        records: list[dict[str, Any]] = [
            {"step": 0, "val/arith/avg@8": 0.1},
            {"step": 1, "train/loss": 0.5, "val/arith/avg@8": score},
            {"step": 2, "train/loss": 0.4},
        ]
        run.metrics_file.write_text("".join(json.dumps(record) + "\n" for record in records))
        run.update(created=f"2026-01-0{len(runs) + 1}")
        runs.append(run)
    runs[1].finish("finished")
    return runs


def test_runs_are_listed_oldest_first(two_runs: list[RunDir], capsys: pytest.CaptureFixture[str]) -> None:
    with claim(two_runs[0].path, "test"):
        lines = stdout(capsys, "runs", "ls").splitlines()
    assert [line.split()[0] for line in lines] == ["first", "second"]
    assert "running" in lines[0] and "finished" in lines[1]
    assert "step 2" in lines[1] and "arith/avg@8 0.7500" in lines[1]
    events = [json.loads(line) for line in stdout(capsys, "runs", "ls", "--json").splitlines()]
    assert [event["val/arith/avg@8"] for event in events] == [0.25, 0.75]


def test_one_run_is_shown_at_any_step(two_runs: list[RunDir], capsys: pytest.CaptureFixture[str]) -> None:
    assert "0.4" in stdout(capsys, "runs", "show", "second")
    shown = stdout(capsys, "runs", "show", "latest", "--step", "1")
    assert "da3po train --name second" in shown and "0.75" in shown and "checkpoints" in shown
    assert execute(["runs", "show", "second", "--step", "9"]) == 2
    assert "no metrics of step 9" in capsys.readouterr().err


def test_no_runs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DA3PO_RUNS", str(tmp_path))
    assert execute(["runs", "ls"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and str(tmp_path) in captured.err


def test_every_algorithm_is_listed_with_its_source_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    text = stdout(capsys, "algos")
    for name, entry in ALGORITHMS.items():
        assert f"{name}: {entry.title}, {entry.source}" in text
        assert entry.formula in text
    assert "algo.daa_lambda=2.0" in text
    events = [json.loads(line) for line in stdout(capsys, "algos", "--json").splitlines()]
    assert [event["name"] for event in events] == list(ALGORITHMS)
    assert events[0]["defaults"]["daa_tau"] == 0.5
