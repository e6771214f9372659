"""`da3po train` as a user meets it: plans, presets, errors, run directories. No test here imports torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from da3po_cli import main
from da3po_cli.config import devices
from da3po_cli.config.load import load_config
from da3po_cli.launching import launch as launch_module
from da3po_cli.launching.launch import WorkerOptions
from da3po_cli.runs.directory import RunDir

REPOSITORY = Path(__file__).parents[2]
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 4096,
}


class Cli:
    """Calls the command line in a directory of its own."""

    def __init__(self, capsys: pytest.CaptureFixture[str], runs: Path) -> None:
        self.capsys = capsys
        self.runs = runs

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = main.execute(main.normalise(list(arguments)))
        captured = self.capsys.readouterr()
        return code, captured.out, captured.err


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


def saved_run(cli: Cli, name: str, *steps: int) -> RunDir:
    run = RunDir(cli.runs / name)
    config = load_config(["demo"], ["model.path=model", "parallel.data=1", "train.epochs=3"], None, {}).config
    from da3po_cli.config.load import dump

    run.create(dump(config), "hash", ["da3po", "train"])
    for step in steps:
        (run.checkpoints / f"step_{step}").mkdir(parents=True)
        (run.checkpoints / f"step_{step}" / "state.json").write_text(json.dumps({"step": step}))
    return run


@pytest.mark.parametrize(
    "arguments", [["-h"], ["train", "-h"], ["train", "-c", "qwen3-4b", "--dry-run"], ["--version"]]
)
def test_quick_commands_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    script = (
        "import sys; from da3po_cli import main; "
        "assert main.execute(sys.argv[1:]) == 0; "
        "heavy = {'torch', 'vllm', 'megatron', 'transformers', 'numpy', 'pyarrow'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not any(tmp_path.iterdir())


def test_the_plan_of_a_layout(cli: Cli) -> None:
    code, out, err = cli(
        *("train", "-c", "demo", "--model", "model", "--name", "x", "--steps", "7", "--seed", "3", "--dry-run"),
        *("--algo", "da3po", "--lambda", "1.5", "rollout.prompts=32", "rollout.group_size=8"),
        *("train.mini_batch_prompts=16", "parallel.tensor=2", "parallel.pipeline=2", "parallel.data=2"),
    )
    assert code == 0, err
    plan = {line.split("  ")[0]: line for line in out.splitlines()}
    assert "8 rank(s) = tensor 2 x pipeline 2 x data 2" in plan["layout"]
    assert "8 rollout engine(s) of 1" in plan["layout"]
    assert "32 prompts x 8 = 256 responses" in plan["step"]
    assert "2 per step, each 16 x 8 = 128 responses, 64 per data-parallel rank" in plan["updates"]
    assert "7 steps, 14 updates, seed 3" in plan["total"]
    assert "DA3PO (arXiv 2608.27982); lambda 1.5 where correct, A > 0 and pass rate < 0.5" in plan["algorithm"]
    assert "Qwen3ForCausalLM, 4 layers" in plan["model"]
    assert "runs/x" in plan["run"]
    assert "nothing was written" in err
    assert not cli.runs.exists()


def test_the_plan_as_json(cli: Cli) -> None:
    code, out, _ = cli("train", "-c", "demo", "--model", "model", "--dry-run", "--json", "parallel.data=1")
    assert code == 0
    (line,) = out.splitlines()
    plan = json.loads(line)
    assert plan["event"] == "plan"
    assert plan["config"]["parallel"]["data"] == 1


def test_the_preset_fits_the_machine(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, err = cli("train", "--model", "model", "--dry-run")
    assert err.splitlines()[0] == "no --config: using the preset demo (no CUDA device found)"
    monkeypatch.setattr(devices, "installed_gpus", lambda root: 8)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    _, out, err = cli("train", "--dry-run")
    assert err.splitlines()[0] == "no --config: using the preset qwen3-4b (8 CUDA device(s) found)"
    assert "8 rank(s) = tensor 1 x pipeline 1 x data 8 on 8 CUDA device(s)" in out
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    _, _, err = cli("train", "--model", "model", "--dry-run")
    assert "using the preset demo (CUDA_VISIBLE_DEVICES= leaves 0 of 8 device(s))" in err
    monkeypatch.setenv("DA3PO_CONFIG", "demo, mine.yaml")
    Path("mine.yaml").write_text("run: {steps: 3}")
    _, out, err = cli("train", "--model", "model", "--dry-run")
    assert "using DA3PO_CONFIG=demo, mine.yaml" in err
    assert "3 steps" in out


@pytest.mark.parametrize(
    ("arguments", "words", "fix"),
    [
        (["trian.lr=1"], "unknown config key 'trian.lr'", "train.lr"),
        (["rollout.group_size=1"], "a group of one", "rollout.group_size=2"),
        (["parallel.tensor=3", "parallel.data=1"], "8 attention heads or 4 key-value heads", "1, 2, 4"),
        (["parallel.pipeline=5", "parallel.data=1"], "4 layers", "parallel.pipeline=4"),
        (["rollout.tensor=4", "parallel.data=2"], "does not divide the 2 ranks", "1, 2"),
        (["train.mini_batch_prompts=5"], "not a multiple of train.mini_batch_prompts=5", "train.mini_batch_prompts=4"),
        (["--model", "nowhere"], "model directory not found: 'nowhere'", "--model DIR"),
        (["--model", "gpt2"], "unsupported architecture GPT2LMHeadModel", "Qwen2ForCausalLM"),
        (["--algo", "gpso"], "unknown algorithm 'gpso'", "gspo"),
        (["--lambda", "0"], "lambda=0.0 must be above 0", "--lambda 2.0"),
        (["--dataset", "none.jsonl", "reward.name=math"], "data file not found", "--dataset"),
        (["--config", "dmeo"], "no config called 'dmeo'", "did you mean demo?"),
        (["--replay-rollouts", "nowhere"], "nowhere is not a directory", "runs/NAME"),
        (["--name", "a/b"], "cannot name a run", "--name"),
        (["--resume=soon"], "--resume=soon is no step", "--resume=STEP"),
        (["--resume"], "no run to resume", "--name"),
        (["--resume", "--name", "never"], "no run to resume", "--name"),
    ],
)
def test_a_mistake_is_two_to_four_lines_and_exit_2(cli: Cli, arguments: list[str], words: str, fix: str) -> None:
    Path("gpt2").mkdir()
    Path("gpt2/config.json").write_text(json.dumps(MODEL | {"architectures": ["GPT2LMHeadModel"]}))
    before = sorted(Path().rglob("*"))
    model = [] if "--model" in arguments else ["--model", "model"]
    preset = [] if "--config" in arguments else ["-c", "demo"]
    code, out, err = cli("train", *preset, *model, *arguments)
    assert code == 2
    assert out == ""
    lines = err.splitlines()
    assert 2 <= len(lines) <= 4, err
    assert lines[0].startswith("error: ")
    assert words in lines[0]
    assert lines[-1].startswith("  fix: ")
    assert fix in lines[-1]
    assert sorted(Path().rglob("*")) == before  # nothing written


def test_every_mistake_is_listed_and_none_that_only_follows(cli: Cli) -> None:
    code, _, err = cli(
        *("train", "-c", "demo", "--model", "nowhere", "foo.bar=1", "rollout.group_size=1", "lambda=-1"),
        "train.mini_batch_prompt=5",  # a typo: that 16 is then the size of a mini batch is no second mistake
        "rollout.prompts=40",
    )
    assert code == 2
    assert err.count("error: ") == 5
    for words in ("'foo.bar'", "a group of one", "lambda=-1.0", "'nowhere'", "'train.mini_batch_prompt'"):
        assert words in err
    assert "is not a multiple" not in err
    assert not cli.runs.exists()


def test_a_wrong_value_is_traced_to_its_file(cli: Cli) -> None:
    Path("mine.yaml").write_text("rollout:\n  group_size: 1\n")
    _, _, err = cli("train", "-c", "demo", "-c", "mine.yaml", "--model", "model")
    assert "  at: mine.yaml:2 rollout.group_size" in err


def test_errors_as_json(cli: Cli) -> None:
    code, out, _ = cli("train", "-c", "demo", "--model", "nowhere", "--json", "lambda=0")
    assert code == 2
    error = json.loads(out)["error"]
    assert error["kind"] == "config"
    assert [problem["where"] for problem in error["problems"]] == [
        "algo.daa_lambda, set by lambda=0 on the command line",
        "model.path, set by --model",
    ]
    assert all(problem["message"] and problem["hint"] for problem in error["problems"])


def test_unknown_flags_and_commands(cli: Cli) -> None:
    code, out, err = cli("train", "--stepz", "3")
    assert (code, out) == (2, "")
    assert "--steps" in err
    code, _, err = cli("trian")
    assert code == 2
    assert "train" in err


def test_missing_packages_are_the_environments_fault(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("da3po_cli.training.prepare.find_spec", lambda name: None if name == "vllm" else name)
    code, _, err = cli("train", "-c", "demo", "--model", "model")
    assert code == 3
    assert "not installed: vllm" in err
    assert not cli.runs.exists()
    code, _, err = cli("train", "-c", "demo", "--model", "model", "--dry-run")
    assert code == 0
    assert "warning: not installed here, and needed by this run: vllm" in err


def test_a_bug_shows_its_traceback_and_exits_1(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("seven by zero")

    monkeypatch.setattr(launch_module, "launch", broken)
    code, _, err = cli("train", "-c", "demo", "--model", "model")
    assert code == 1
    assert "Traceback" in err
    assert "error: ZeroDivisionError: seven by zero" in err


# ------------------------------------------------------------------------------------------------- run directories


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
