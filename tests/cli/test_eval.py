"""`da3po eval` as a user meets it, up to where an engine would start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from da3po_cli.errors import UsageError
from da3po_cli.evals import targets
from da3po_cli.evals.asking import ask
from da3po_cli.evals.registry import choose, load_registry
from da3po_cli.evals.targets import find_target, make_job
from da3po_cli.evals.tasks import Asked
from da3po_cli.runs.directory import RunDir

REPOSITORY = Path(__file__).parents[2]
DEMO = REPOSITORY / "da3po_cli" / "demo_model"


def da3po(*arguments: str, runs: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("DA3PO_")}
    return subprocess.run(
        [sys.executable, "-m", "da3po_cli", *arguments],
        env={**clean, "DA3PO_RUNS": str(runs), "DA3PO_HOME": str(runs), **env},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the seconds of a new process for every job; tests/evals/test_asking.py has the process."""
    monkeypatch.setattr(targets, "ask_in_child", ask)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run of the demo whose checkpoint of step 20 looks whole."""
    monkeypatch.setenv("DA3PO_RUNS", str(tmp_path))
    from da3po_cli.config.load import dump, load_config

    config = load_config(["demo"], ["run.name=mine", "validation.samples=3", "validation.prompts=7"], env={}).config
    run = RunDir(tmp_path / "mine")
    run.create(dump(config), "hash", ["da3po", "train"])
    policy = run.checkpoints / "step_20" / "policy"
    policy.mkdir(parents=True)
    (policy / "0.distcp").write_bytes(b"weights")
    (policy.parent / "state.json").write_text(json.dumps({"files": {}, "step": 20}))
    return run


def job_of(model: str, bench: str, overrides: list[str] | None = None, asked: Asked = Asked()) -> Any:  # noqa: B008
    benches = choose(bench, load_registry())
    overrides = overrides or []
    return make_job(find_target(model, benches, overrides), benches, asked, overrides, None)


def test_a_temperature_that_the_engine_does_not_have_is_refused(tmp_path: Path) -> None:
    done = da3po("eval", "--bench", "arith", "--model", "demo", "--temperature", "0.005", runs=tmp_path)
    assert done.returncode == 2 and "vLLM samples at 0.01 below that" in done.stderr


def test_help_has_examples_and_the_subcommand(tmp_path):
    shown = da3po("eval", "--help", runs=tmp_path)
    assert shown.returncode == 0
    assert "da3po eval compare A.json B.json" in shown.stdout
    assert "--bench-dir" in shown.stdout
    assert "--metric" in da3po("eval", "compare", "--help", runs=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bench", "aime2024"], "did you mean aime24?"),
        ([], "no benchmark is named"),
        (["--bench", "arith"], "no --model and no run to take"),
        (["--bench", "arith", "--model", "nobody"], "'nobody' is no model"),
        (["--bench", "arith", "--k", "0"], "--k 0 must be at least 1"),
        (["--bench", "arith", "--model", str(DEMO), "--top-p", "2"], "do not make a distribution"),
        (["--bench", "arith", "--model", str(DEMO), "rollout.tensor=3"], "engines of 3"),
        (["--bench", "arith", "--model", str(DEMO), "rollout.tensr=3"], "rollout.tensor"),
        (["--bench", "aime24", "--model", str(DEMO), "--bench-dir", "nowhere"], "nowhere/aime24.jsonl"),
        (["--bench", "mine", "--bench-file", "nowhere.yaml"], "nowhere.yaml"),
        (["compare", "a.json", "b.json"], "no such file: a.json"),
    ],
)
def test_wrong_commands_say_what_is_wrong(tmp_path, arguments, message):
    done = da3po("eval", *arguments, runs=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--bench", "aime2024"],
        ["--bench", "arith", "--model", str(DEMO), "--top-p", "2"],
        ["--bench", "aime24", "--model", str(DEMO), "--bench-dir", "nowhere"],
        ["compare", "a.json", "b.json"],
    ],
)
def test_help_and_errors_do_not_wait_for_the_tokenizer(tmp_path, arguments):
    script = (
        "import sys; from da3po_cli import main; main.execute(['eval', *sys.argv[1:]]); "
        "heavy = {'torch', 'transformers', 'vllm', 'megatron'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "DA3PO_RUNS": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout + done.stderr, done.stderr


def test_without_data_and_network_the_error_says_what_to_do(tmp_path):
    done = da3po("eval", "--bench", "all", "--model", str(DEMO), runs=tmp_path, HF_HUB_OFFLINE="1")
    assert done.returncode == 3
    for part in ("HuggingFaceH4/aime_2024", "30 rows", "--bench-dir DIR", "DA3PO_BENCH_DIR"):
        assert part in done.stderr


def test_a_run_is_sampled_as_in_its_own_validation(run):
    (task,) = job_of("mine", "arith").tasks
    how = task.sampling
    assert (how.n, how.temperature, how.top_p, how.max_tokens, how.seed) == (3, 1.0, 1.0, 96, 1)
    assert (len(task.problems), task.total, task.template, task.reward) == (7, 256, "none", "arith")


def test_a_step_and_a_directory_name_the_same_checkpoint(run):
    one, other = job_of("mine@20", "arith"), job_of(str(run.path), "arith")
    assert (one.model.name, one.model.step, one.model.run) == ("mine@20", 20, "mine")
    assert one.fingerprint == other.fingerprint
    with pytest.raises(Exception, match="no checkpoint of step 30"):
        job_of("mine@30", "arith")


def test_flags_and_overrides_come_before_the_run(run):
    (task,) = job_of("mine", "arith", asked=Asked(k=5, limit=2)).tasks
    assert (task.sampling.n, len(task.problems)) == (5, 2)
    (task,) = job_of("mine", "arith", ["validation.samples=4", "validation.top_p=0.5", "rollout.max_tokens=50"]).tasks
    assert (task.sampling.n, task.sampling.top_p, task.sampling.max_tokens) == (4, 0.5, 50)


def test_a_model_that_is_no_run(tmp_path, monkeypatch):
    monkeypatch.setenv("DA3PO_RUNS", str(tmp_path))
    job = job_of(str(DEMO), "arith")
    assert (job.model.name, job.model.checkpoint, job.engine["dtype"]) == ("demo_model", None, "float32")
    assert job.tasks[0].sampling.max_tokens == 96


def test_demo_is_a_run_of_that_name_or_else_the_shipped_model(tmp_path, monkeypatch):
    monkeypatch.setenv("DA3PO_RUNS", str(tmp_path))
    assert job_of("demo", "arith").model.path == str(DEMO)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "run.json").write_text("{}")
    with pytest.raises(UsageError, match="no whole checkpoint"):
        job_of("demo", "arith")


def test_a_changed_checkpoint_is_another_evaluation(run):
    before = job_of("mine", "arith").fingerprint
    (run.checkpoints / "step_20" / "state.json").write_text(json.dumps({"files": {}, "step": 20, "more": 1}))
    assert job_of("mine", "arith").fingerprint != before


def test_compare_prints_paired_differences(tmp_path):
    sys.path.insert(0, str(REPOSITORY / "tests" / "evals"))
    from eval_helpers import result_of

    from da3po_cli.evals.result import write_results

    write_results([result_of({"big": [0, 1, 2, 0]}, name="a")], tmp_path / "a.json")
    write_results([result_of({"big": [1, 2, 2, 0]}, name="b")], tmp_path / "b.json")
    files = (str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    shown = da3po("eval", "compare", *files, runs=tmp_path)
    assert shown.stdout.splitlines()[0] == "avg@k, %: b minus a, paired by problem"
    assert shown.stdout.splitlines()[2].split()[:5] == ["BIG", "4", "37.50", "62.50", "+25.00"]
    record = json.loads(da3po("eval", "compare", *files, "--json", "--metric=pass", runs=tmp_path).stdout)
    assert record["differences"][0]["difference"]["mean"] == 0.25
