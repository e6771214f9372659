"""The run directory and the ways to find one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from da3po_cli.errors import EnvironmentProblem, UsageError
from da3po_cli.runs.directory import RunDir, find_run, latest_run, runs_root, versions


def test_attempts_add_up(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs/one")
    assert run.create("a: 1\n", "h1", ["da3po", "train"]) == 1
    run.finish("failed")
    assert run.create("a: 2\n", "h2", ["da3po", "train", "--resume"]) == 2
    run.finish("finished")
    record = run.read()
    assert [attempt["status"] for attempt in record["attempts"]] == ["failed", "finished"]
    assert record["attempts"][1]["argv"] == ["da3po", "train", "--resume"]
    assert record["config_hash"] == "h2"
    assert record["created"] == record["attempts"][0]["started"]
    assert record["status"] == "finished"
    assert run.config_file.read_text() == "a: 2\n"
    assert run.attempt(1).is_dir()
    assert run.attempt(2).is_dir()


def test_saved_steps_are_whole_numbers_in_order(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.saved_steps() == []
    for name in ("step_10", "step_9", "partial_11", "step_x", "step_13"):
        (run.checkpoints / name).mkdir(parents=True)
        if name != "step_13":  # deleted by half
            (run.checkpoints / name / "state.json").touch()
    (run.checkpoints / "step_12").touch()
    assert run.saved_steps() == [9, 10]


def test_finding_runs(tmp_path: Path) -> None:
    env = {"DA3PO_RUNS": str(tmp_path / "runs")}
    assert latest_run(env) is None
    with pytest.raises(UsageError, match="no run called 'one'"):
        find_run("one", env)
    for name in ("one", "two"):
        RunDir(runs_root(env) / name).create("", "", [])
    assert find_run("one", env).name == "one"
    assert find_run(str(tmp_path / "runs/two"), env).name == "two"
    assert find_run("latest", env).name == "two"
    newest = latest_run(env)
    assert newest is not None
    assert newest.name == "two"
    with pytest.raises(UsageError) as caught:
        find_run("three", env)
    assert "one, two" in (caught.value.hint or "")


def test_a_directory_called_latest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    RunDir(tmp_path / "one").create("", "", [])
    assert not (tmp_path / "latest").is_symlink()


def test_other_ranks_wait_for_the_first(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "one")
    with pytest.raises(EnvironmentProblem, match="rank 0 did not make"):
        run.await_attempt(seconds=0.2)
    run.create("", "", [])
    assert run.await_attempt(seconds=0.2) == 1
    run.finish("failed")
    with pytest.raises(EnvironmentProblem):
        run.await_attempt(seconds=0.2)


def test_run_json_is_never_half_written(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "one")
    run.create("", "", [])
    run.update(extra={"a": 1})
    assert json.loads(run.run_json.read_text())["extra"] == {"a": 1}
    assert not list(run.path.glob("*.tmp"))


def test_versions_name_what_the_result_depends_on() -> None:
    assert {"da3po", "python", "torch", "megatron-core", "transformers"} <= set(versions())
