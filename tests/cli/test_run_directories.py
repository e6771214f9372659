"""`da3po train` and its run directories: names, --overwrite, --resume, replays. No test here imports torch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from called import Cli, saved_run

from da3po_cli.config.load import load_config
from da3po_cli.launching.launch import WorkerOptions
from da3po_cli.runs.claim import claim
from da3po_cli.runs.directory import RunDir


def test_a_run_directory_is_made_once_all_is_checked(
    cli: Cli, launched: list[tuple[object, RunDir, WorkerOptions]]
) -> None:
    code, out, err = cli("train", "-c", "demo", "--model", "model", "--name", "one", "parallel.data=1", "lambda=1.5")
    assert code == 0, err
    assert out == ""
    ((config, run_dir, options),) = launched
    assert run_dir.path == Path("runs/one")
    assert load_config([str(run_dir.config_file)], env={}).config == config
    assert options == WorkerOptions()
    record = run_dir.read()
    assert record["status"] == "running"
    assert record["versions"]["python"].startswith("3.")
    assert len(record["config_hash"]) == 12
    assert record["attempts"][0]["argv"][0] == "da3po"
    assert (cli.runs / "latest").resolve() == (cli.runs / "one").resolve()
    assert run_dir.attempt(1).is_dir()


def test_runs_are_named_by_algorithm_preset_and_time(
    cli: Cli, launched: list[tuple[object, RunDir, WorkerOptions]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DA3PO_RUNS", str(cli.runs / "elsewhere"))
    assert cli("train", "-c", "demo", "--model", "model", "--algo", "grpo")[0] == 0
    assert launched[0][1].path.parent == cli.runs / "elsewhere"
    assert launched[0][1].name.startswith("grpo-demo-20")


def test_a_used_run_directory_is_refused(cli: Cli, launched: list[tuple[object, RunDir, WorkerOptions]]) -> None:
    saved_run(cli, "one")
    command = ("train", "-c", "demo", "--model", "model", "--name", "one")
    code, _, err = cli(*command)
    assert code == 2
    assert "in use" in err
    assert all(flag in err for flag in ("--resume", "--overwrite", "--name one-2"))
    assert cli(*command, "--resume", "--overwrite")[0] == 2
    assert launched == []
    (cli.runs / "one/old").touch()
    assert cli(*command, "--overwrite")[0] == 0
    assert not (cli.runs / "one/old").exists()


@pytest.mark.parametrize("flag", ["--resume", "--overwrite", "--dry-run"])
def test_a_run_that_somebody_is_at_is_left_alone(
    cli: Cli, launched: list[tuple[object, RunDir, WorkerOptions]], flag: str
) -> None:
    run = saved_run(cli, "one", 10)
    with claim(run.path, "test"):
        before = sorted(run.path.rglob("*"))
        code, _, err = cli("train", "-c", "demo", "--model", "model", "--name", "one", flag)
        assert code == 2 and sorted(run.path.rglob("*")) == before
        assert f"somebody is at work in {run.path.relative_to(Path.cwd())}: process {os.getpid()} on " in err
        code, out, _ = cli("runs", "ls")
        assert code == 0 and "running" in out
    assert "died" in cli("runs", "ls")[1]
    assert not launched


def test_overwrite_deletes_runs_only(cli: Cli) -> None:
    (cli.runs / "thesis").mkdir(parents=True)
    (cli.runs / "thesis/chapter.tex").touch()
    code, _, err = cli("train", "-c", "demo", "--model", "model", "--name", "thesis", "--overwrite")
    assert code == 2
    assert "not a run" in err
    assert (cli.runs / "thesis/chapter.tex").exists()


def test_resume_goes_on_with_the_saved_config(cli: Cli, launched: list[tuple[object, RunDir, WorkerOptions]]) -> None:
    saved_run(cli, "older", 5)
    run = saved_run(cli, "newest", 10, 20)
    code, _, err = cli("train", "--resume", "run.steps=99")
    assert code == 0, err
    assert "no --config: going on with" in err
    assert "warning: run.steps was" in err
    config, run_dir, options = launched[0]
    assert run_dir.path.resolve() == run.path.resolve()
    assert config.train.epochs == 3  # type: ignore[attr-defined]
    assert config.run.steps == 99  # type: ignore[attr-defined]
    assert (options.resume, options.attempt) == ("latest", 2)
    assert cli("train", "--resume", "5", "--name", "older")[0] == 0
    assert launched[1][1].name == "older"
    assert launched[1][2].resume == "5"


def test_resume_needs_the_checkpoint(cli: Cli) -> None:
    saved_run(cli, "empty")
    code, _, err = cli("train", "--name", "empty", "--resume")
    assert code == 2
    assert "no checkpoint to resume from" in err
    saved_run(cli, "some", 10, 20)
    code, _, err = cli("train", "--name", "some", "--resume=15")
    assert code == 2
    assert "no checkpoint of step 15" in err
    assert "10, 20" in err


def test_resume_names_a_damaged_checkpoint_before_anything_starts(cli: Cli) -> None:
    run = saved_run(cli, "one", 10, 20)
    (run.checkpoints / "step_20/state.json").write_text('{"step": 2')
    (run.checkpoints / "step_30").mkdir()  # no state.json: never whole
    code, _, err = cli("train", "--resume", "--name", "one")
    assert code == 2
    assert "step_20 is damaged: state.json" in err
    assert "--resume 10" in err
    assert len(run.read()["attempts"]) == 1


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("model.dtype=bfloat16", "model.dtype"),
        ("model.path=demo", "model.path"),
        ("data.template=boxed", "data.template"),
        ("run.seed=8", "run.seed"),
    ],
)
def test_resume_refuses_what_the_checkpoint_depends_on(
    cli: Cli, launched: list[tuple[object, RunDir, WorkerOptions]], change: str, key: str
) -> None:
    run = saved_run(cli, "one", 10)
    code, _, err = cli("train", "--resume", "--name", "one", change)
    assert code == 2
    assert f"error: {change} cannot go on from {key}=" in err
    assert f"  at: {key}" in err
    assert launched == []
    assert len(run.read()["attempts"]) == 1


def test_resume_lists_every_other_change(cli: Cli, launched: list[tuple[object, RunDir, WorkerOptions]]) -> None:
    saved_run(cli, "one", 10)
    code, _, err = cli(
        *("train", "--resume", "--name", "one", "--algo", "grpo", "train.lr=1e-6", "rollout.group_size=16"),
        f"model.path={Path('model').absolute()}",  # the same place
    )
    assert code == 0, err
    warnings = [line for line in err.splitlines() if line.startswith("warning: ")]
    lr = f"train.lr was {load_config(['demo'], env={}).config.train.lr} in the run so far, now 1e-06"
    for words in ("algo.name was da3po", lr, "rollout.group_size was 8"):
        assert any(words in line for line in warnings), err
    assert not any("model.path" in line for line in warnings)
    assert len(launched) == 1


def test_resume_shows_the_changes_in_a_dry_run(cli: Cli) -> None:
    saved_run(cli, "one", 10)
    code, _, err = cli("train", "--resume", "--name", "one", "train.lr=1e-6", "--dry-run")
    assert code == 0
    assert "train.lr was" in err
    code, _, err = cli("train", "--resume", "--name", "one", "--seed", "9", "--dry-run")
    assert code == 2
    assert "run.seed=9 cannot go on from run.seed=0" in err


def test_resume_says_which_checkpoints_going_back_gives_up(
    cli: Cli, launched: list[tuple[object, RunDir, WorkerOptions]]
) -> None:
    saved_run(cli, "one", 10, 20, 30)
    code, _, err = cli("train", "--resume=10", "--name", "one")
    assert code == 0
    assert "the checkpoints and records after it (step 20, 30) will be deleted" in err
    assert "will be deleted" not in cli("train", "--resume", "--name", "one")[2]


def test_resume_of_a_run_that_has_all_its_steps_is_no_error(
    cli: Cli, launched: list[tuple[object, RunDir, WorkerOptions]]
) -> None:
    run = saved_run(cli, "one", 15, 30)
    code, _, err = cli("train", "--resume", "--name", "one")
    assert code == 0
    assert "nothing to do" in err
    assert "step 30 of 30; --steps N goes on to N" in err
    assert launched == []
    assert len(run.read()["attempts"]) == 1
    assert cli("train", "--resume", "--name", "one", "--steps", "31")[0] == 0
    assert len(launched) == 1


@pytest.mark.parametrize(("value", "words"), [("90", "'90' is not HH:MM"), ("00:00", "no time at all")])
def test_a_time_limit_that_is_none(cli: Cli, value: str, words: str) -> None:
    code, _, err = cli("train", "-c", "demo", "--model", "model", f"checkpoint.before={value}")
    assert code == 2
    assert words in err
    assert "in a YAML file put it in quotes" in err


def test_a_best_metric_needs_a_validation(cli: Cli) -> None:
    command = ("train", "-c", "demo", "--model", "model")
    code, _, err = cli(*command, "checkpoint.best_metric=train/acc")
    assert (code, "is no metric of a validation" in err) == (2, True)
    code, _, err = cli(*command, "checkpoint.best_metric=val/arith/avg@8", "data.validation=null")
    assert (code, "data.validation is not set" in err) == (2, True)
    assert cli(*command, "checkpoint.best_metric=val/arith/avg@8", "--dry-run")[0] == 0


def test_replayed_rollouts_reach_the_worker(cli: Cli, launched: list[tuple[object, RunDir, WorkerOptions]]) -> None:
    Path("saved").mkdir()
    assert "holds no step_N.jsonl" in cli("train", "-c", "demo", "--model", "model", "--replay-rollouts", "saved")[2]
    Path("saved/step_1.jsonl").touch()
    code, _, err = cli("train", "-c", "demo", "--model", "model", "--replay-rollouts", "saved", "--quiet")
    assert (code, err) == (0, "")
    options = launched[0][2]
    assert options.replay_dir == Path("saved").absolute()
    assert options.quiet


def test_ranks_of_an_outer_launcher_agree_on_the_name(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    code, _, err = cli("train", "-c", "demo", "--model", "model", "--dry-run")
    assert code == 2
    assert "--name NAME" in err
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job7")
    code, out, _ = cli("train", "-c", "demo", "--model", "model", "--dry-run")
    assert code == 0
    assert "da3po-demo-job7" in out
    assert "data 2" in out  # the launcher's two ranks
