"""`da3po train` as a user meets it: plans, presets, errors. No test here imports torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from called import MODEL, Cli

from da3po_cli.config import devices
from da3po_cli.launching import launch as launch_module

REPOSITORY = Path(__file__).parents[2]


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


@pytest.mark.parametrize(
    ("fields", "file", "words"),
    [
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "model.safetensors", "quantised (bitsandbytes)"),
        ({"quantization_config": {"load_in_4bit": True}}, "model.safetensors", "are quantised (quantization_config in"),
        ({}, "pytorch_model.bin", "has its weights in pytorch_model.bin, and no *.safetensors"),
        ({}, "pytorch_model-00001-of-00002.bin", "and no *.safetensors"),
    ],
)
def test_weights_that_are_of_no_use_are_seen_by_a_dry_run(
    cli: Cli, fields: dict[str, object], file: str, words: str
) -> None:
    Path("other").mkdir()
    Path("other/config.json").write_text(json.dumps(MODEL | fields))
    Path("other", file).touch()
    code, _, err = cli("train", "-c", "demo", "--model", "other", "--dry-run")
    assert code == 2 and words in err and "at: model.path" in err


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
