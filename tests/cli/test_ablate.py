"""`da3po ablate` as a user meets it: plans, mistakes, results, exit codes. The runs are stand-ins (tests/ablations)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from da3po_cli import main
from da3po_cli.ablations import runner
from da3po_cli.config import devices

STUB = (sys.executable, str(Path(__file__).parents[1] / "ablations/stub.py"))


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for name in list(os.environ):
        if name.startswith(("DA3PO_", "SLURM_")) or name in ("RANK", "WORLD_SIZE", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "installed_gpus", lambda root: 0)
    monkeypatch.setattr(runner, "POLL", 0.02)
    monkeypatch.setattr(runner, "TRAIN", STUB)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main.execute(main.normalise(["ablate", *arguments]))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_a_dry_run_shows_the_matrix_and_writes_nothing(cli, tmp_path: Path) -> None:
    code, out, err = cli("-c", "demo", "--param", "lambda=1.0,2.0", "--seeds", "3", "--steps", "7", "--dry-run")
    assert code == 0, err
    rows = {line.split("  ")[0].strip(): line for line in out.splitlines()}
    assert "6, 1 at a time" in rows["runs"] and "7 per run, 42 in all; 256 responses" in rows["steps"]
    assert rows["seeds"].endswith("0, 1, 2") and rows["reference"].endswith("lambda=1.0")
    assert "not known: no earlier run" in rows["time"]
    assert "da3po train --config demo --name lambda-1.0-seed0" in err
    assert not any(tmp_path.iterdir())


def test_the_estimate_comes_from_earlier_runs_of_the_same_size(cli, tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "reports"))
    from report_runs import make_run

    scores = {0: (0.4, 0.8), 4: (0.5, 0.9)}  # 5 records of 2 s for 4 steps: 2.5 s per step
    ranks = f"parallel.data={min(2, len(os.sched_getaffinity(0)))}"
    make_run(tmp_path / "runs/one", scores, overrides=[ranks])
    make_run(tmp_path / "runs/other", scores, overrides=[ranks, "rollout.prompts=16"])
    command = ["-c", "demo", "--param", "lambda=1.0,2.0", "--steps", "720", "--dry-run"]
    assert "about 1 h 0 min, at 2.5 s per step" in cli(*command)[1]
    assert "about 30 min, at 2.5 s per step" in cli(*command, "--parallel", "2", ranks)[1]


def test_the_first_seed_is_that_of_the_config(cli) -> None:
    code, out, _ = cli("-c", "demo", "--algos", "dapo", "--seeds", "2", "run.seed=5", "--dry-run", "--json")
    assert code == 0
    assert [json.loads(line).get("seed") for line in out.splitlines()] == [5, 6, None]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["-c", "demo"], "nothing to compare"),
        (["-c", "demo", "--algos", "dapo", "--seeds", "0"], "--seeds 0 must be at least 1"),
        (["-c", "demo", "--param", "lambda=1,2", "--gate", "lambda=3 > 0"], "arms: lambda=1, lambda=2"),
        (["-c", "demo", "--param", "lambda=1,2", "--reference", "1"], "one of lambda=1, lambda=2"),
        (["-c", "demo", "--param", "lamda=1,2"], "unknown config key 'lamda'"),
        (["-c", "demo", "--param", "lambda=1,2", "--parallel", "0"], "--parallel 0"),
        (["-c", "demo", "--param", "lambda=1,2", "--name", "a/b"], "cannot name an ablation"),
        (["-c", "demo", "--param", "lambda=1,2", "run.name=x"], "--name NAME"),
        (["--resume"], "no ablation to resume"),
        (["--resume", "--name", "none"], "no ablation called 'none'"),
        (["--resume=3"], "goes on where it stopped"),
        (["-c", "demo", "--param", "lambda=1,2", "--target", "75"], "--target 75 is no share"),
        (["-c", "demo", "--param", "lambda=1,2", "--target", "nan"], "--target nan is no share"),
        (["-c", "demo", "--param", "lambda=1,2", "--gate", "lambda=1 > 60"], "60 in the gate"),
        (["-c", "demo", "--param", "lambda=1,1.0"], "are the same settings"),
    ],
)
def test_mistakes_end_with_2(cli, tmp_path: Path, arguments: list[str], word: str) -> None:
    code, _, err = cli(*arguments)
    assert code == 2 and word in err
    assert not any(tmp_path.iterdir())


def test_it_is_not_started_by_torchrun(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = cli("-c", "demo", "--algos", "dapo")
    assert code == 2 and "without torchrun" in err


def test_results_report_and_gate(cli, tmp_path: Path) -> None:
    """The stand-in's last score is 0.5 + 0.03 lambda."""
    gate = "lambda=2.0 > lambda=1.0 + 0.02"
    command = ["-c", "demo", "--param", "lambda=1.0,2.0", "--seeds", "2", "--steps", "3", "--name", "a"]
    code, out, err = cli(*command, "--gate", gate)
    assert code == 0, err
    assert "lambda=1.0      2/2        53.00" in out and "*56.00" in out
    assert (tmp_path / "runs/a/report.html").read_text().startswith("<!doctype html>")
    record = json.loads((tmp_path / "runs/a/ablation.json").read_text())
    assert record["gate"] == gate and [run["status"] for run in record["runs"]] == ["finished"] * 4
    assert "lambda-2.0-seed1: finished" in err

    assert cli(*command)[0] == 2, "the directory is in use"
    code, again, err = cli("--resume", "--name", "a", "--gate", "lambda=2.0 > lambda=1.0 + 0.05")
    assert code == 4 and again == out, "the same table, and nothing ran"
    events = [json.loads(line) for line in cli("--resume", "--name", "a", "--json")[1].splitlines()]
    first = next(event for event in events if event.get("event") == "done")["tables"][0]
    assert first["heading"][:3] == ["arm", "n seeds", "arith avg@8"] and first["rows"][1][2] == "56.00"
    assert "0.5600 > 0.5800 is false" in err
    calls = (tmp_path / "runs/a/lambda-1.0-seed0/calls.jsonl").read_text().splitlines()
    assert len(calls) == 2


def test_where_the_time_was_up_it_says_how_to_go_on(cli, tmp_path: Path) -> None:
    command = ["-c", "demo", "--param", "lambda=1.0,4.0,2.0", "--steps", "3", "--name", "a"]
    code, out, err = cli(*command)
    assert code == 4 and "53.00" in out
    assert "2 of 3 runs did not finish" in err and "da3po ablate --resume --name a goes on" in err
    plan = cli("--resume", "--name", "a", "--dry-run")[1]
    assert "3 (1 done), 1 at a time" in plan and "3 per run, 5 left" in plan, "one step is in a checkpoint"
    assert cli("--resume", "--name", "a")[0] == 0
    assert cli("-c", "demo", "--param", "lambda=4.0", "--steps", "3", "--name", "b")[0] == 4, "no bug, no failure"


def test_steps_as_a_parameter(cli, tmp_path: Path) -> None:
    code, out, err = cli(
        "-c", "demo", "lambda=1", "--param", "run.steps=2,3", "--name", "a", "--parallel", "5", "--dry-run"
    )
    assert code == 0, err
    assert "2, 2 at a time" in out and "2 or 3 per run, 5 in all" in out
    err = cli("-c", "demo", "lambda=1", "--param", "run.steps=2,3", "--name", "a")[2]
    assert "steps-2-seed0: step 2/2" in err and "steps-3-seed0: step 3/3" in err


def test_a_diverged_arm(cli, tmp_path: Path) -> None:
    code, out, err = cli("-c", "demo", "--param", "lambda=1.0,5.0", "--steps", "3", "--name", "a")
    assert code == 4 and "53.00" in out
    assert "lambda-5.0-seed0 diverged: gradients were not finite" in err
    assert "1 of 2 runs did not finish" in err


def test_when_nothing_finishes_the_code_is_that_of_the_first_failure(cli, tmp_path: Path) -> None:
    code, out, _ = cli("-c", "demo", "--param", "lambda=5.0", "--steps", "3", "--name", "a", "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 5
    assert [one.get("event") for one in events if "event" in one] == [
        "launch",
        "run",
        "validation",
        "validation",
        "run",
        "done",
    ]
    assert events[-1]["error"]["message"].startswith("no run finished; lambda-5.0-seed0 diverged")
    assert events[-2]["failed"][0]["exit_code"] == 5 and events[-2]["tables"] == []


def test_a_config_that_has_changed_since_is_refused(cli, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("train: {lr: 1.0e-4}\n")
    command = ["-c", "demo", "-c", str(mine), "--param", "lambda=7.0,1.0", "--steps", "3", "--name", "a"]
    assert cli(*command)[0] == 4
    mine.write_text("train: {lr: 2.0e-4}\n")
    code, _, err = cli("--resume")
    assert code == 2 and "the config of lambda-7.0-seed0 is not what it was" in err
    mine.write_text("train: {lr: 1.0e-4}\n")
    assert cli("--resume")[0] == 4


def test_resume_takes_the_matrix_as_it_is(cli) -> None:
    assert cli("-c", "demo", "--param", "lambda=1.0", "--steps", "3", "--name", "a")[0] == 0
    code, _, err = cli("--resume", "--name", "a", "--seeds", "3")
    assert code == 2 and "--seeds would change it" in err


def test_overwrite_deletes_an_ablation_and_nothing_else(cli, tmp_path: Path) -> None:
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a/thesis.txt").touch()
    command = ["-c", "demo", "--param", "lambda=1.0", "--steps", "3", "--name", "a", "--overwrite"]
    code, _, err = cli(*command)
    assert code == 2 and "is no ablation and will not be overwritten" in err
    (tmp_path / "runs/a/thesis.txt").unlink()
    assert cli(*command)[0] == 0
    assert cli(*command, "--param", "train.lr=1e-4")[0] == 0
    names = sorted(path.name for path in (tmp_path / "runs/a").glob("*seed*"))
    assert names == ["lambda-1.0_lr-1e-4-seed0"]
