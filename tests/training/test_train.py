"""`da3po train` as a user types it: real Megatron-Core, real vLLM, the shipped demo model, one rank and several."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import demo_runs
import here
import pytest
from demo_runs import da3po, metrics
from transformers import AutoModelForCausalLM

from da3po_cli.runs.metrics import read_metrics
from da3po_cli.training.clock import PHASES

pytestmark = pytest.mark.slow

SMALL = [*demo_runs.SMALL, "--steps=2"]
ONE_RANK = ["parallel.data=1"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Three runs of one rank: DA3PO at lambda 1, the same again, and DAPO; two at a time."""
    root = tmp_path_factory.mktemp("runs")
    commands = [
        ["train", *SMALL, *ONE_RANK, "--algo=da3po", "--lambda=1.0", "--name=first"],
        ["train", *SMALL, *ONE_RANK, "--algo=da3po", "--lambda=1.0", "--name=again"],
        ["train", *SMALL, *ONE_RANK, "--algo=dapo", "--name=dapo", "--json"],
    ]
    with ThreadPoolExecutor(2) as pool:
        for name, done in zip(
            ("first", "again", "dapo"), pool.map(lambda args: da3po(root, *args), commands), strict=True
        ):
            (root / f"{name}.out").write_text(done.stdout)
            (root / f"{name}.err").write_text(done.stderr)
    return root


def test_the_same_command_twice_gives_identical_metrics(root):
    assert metrics(root / "first") == metrics(root / "again")


def test_lambda_1_is_dapo_bit_for_bit(root):
    assert metrics(root / "first") == metrics(root / "dapo")


def test_a_run_directory_holds_what_it_should(root):
    run = root / "first"
    assert [record["step"] for record in read_metrics(run / "metrics.jsonl")] == [0, 1, 2]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step_1", "step_2"]
    assert any((run / "tensorboard").iterdir())
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    groups = [json.loads(line) for line in (run / "rollouts" / "step_1.jsonl").read_text().splitlines()]
    kept = [group for group in groups if group["drop_reason"] is None]
    assert len(kept) == 8
    for group in kept:
        assert 0 < group["correct"] < 4
        assert len(group["responses"]) == 4
        assert sum(response["advantage"] for response in group["responses"]) == pytest.approx(0, abs=1e-6)
    assert all(group["drop_reason"] for group in groups if group["correct"] in (0, 4))


def test_metrics_of_a_step(root):
    before, first, last = read_metrics(root / "first" / "metrics.jsonl")
    assert 0 < before["val/arith/avg@2"] < 1
    assert "val/arith/avg@2" in last and "val/arith/avg@2" not in first
    for record in (first, last):
        assert record["train/rollout_gap"] <= 1e-5, "trainer and engine compute the same in float32"
        assert record["train/rollout_far"] == 0
        assert record["sample/kept"] == 8
        assert record["train/updates"] == 2
        assert record["train/rollout_kl"] < 1e-6
        assert sum(record[f"timing/{phase}"] for phase in PHASES) == pytest.approx(record["timing/step"], rel=0.02)


def test_every_metric_that_a_run_writes_is_described(root):
    page = (demo_runs.REPOSITORY / "docs/output.md").read_text()
    written = {name for record in read_metrics(root / "first" / "metrics.jsonl") for name in record if name != "step"}
    names = {re.sub("@2$", "@k", name.replace("val/arith/", "val/<bench>/")) for name in written}
    assert len(names) > 40
    assert sorted(name for name in names if f"| `{name}` |" not in page) == []


def test_plain_output_is_one_line_per_step_on_stderr(root):
    assert (root / "first.out").read_text() == ""
    lines = (root / "first.err").read_text().splitlines()
    assert sum(line.startswith("step ") for line in lines) == 2
    assert any(line.startswith("next: da3po eval") for line in lines)
    assert any(line.startswith("next: da3po export") for line in lines)


def test_json_output_is_events_on_stdout(root):
    events = [json.loads(line) for line in (root / "dapo.out").read_text().splitlines()]
    assert [event["event"] for event in events] == ["launch", "step", "step", "step", "done"]
    assert [event["step"] for event in events[1:4]] == [0, 1, 2]


def test_resume_goes_on_exactly(root, kept_engine):
    """One step and one more after a resume equal two in a row: schedule, data and optimizer too."""
    here.train(root, *SMALL, *ONE_RANK, "--algo=dapo", "--name=halves", "--steps=1", "validation.every=0")
    here.train(root, "--resume", "--name=halves", "--steps=2")
    whole, halves = metrics(root / "dapo")[2], metrics(root / "halves")[-1]
    assert halves["step"] == 2
    assert halves == {name: value for name, value in whole.items() if not name.startswith("val/")}


LAYOUTS = {
    "tensor 2 x pipeline 2": ["parallel.tensor=2", "parallel.pipeline=2"],
    "data 3, over which the 16 responses of an update do not divide": ["parallel.data=3"],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_replayed_rollouts_give_the_same_step_on_any_layout(root, layout):
    """Step 1 of every layout against one rank, from the same rollouts: loss, gradient norm and log-probs to 1e-4."""
    da3po(
        root,
        "train",
        *SMALL,
        *layout,
        "--algo=dapo",
        "--name=replay",
        "--overwrite",
        f"--replay-rollouts={root / 'dapo'}",
    )
    one, many = metrics(root / "dapo"), metrics(root / "replay")
    assert [record["step"] for record in many] == [1, 2]
    for name in ("train/loss", "train/grad_norm", "train/logp", "train/entropy", "train/rollout_kl"):
        assert many[0][name] == pytest.approx(one[1][name], rel=1e-4, abs=1e-9), name


def test_eval_and_export_go_on_from_a_run(root, tmp_path):
    """The two commands that the summary names: eval repeats the last validation, export loads in transformers."""
    done = da3po(root, "eval", "--bench=arith", "--model=first", "--json")
    result = json.loads(done.stdout)
    assert result["val/arith/avg@2"] == metrics(root / "first")[-1]["val/arith/avg@2"]
    da3po(root, "export", "first", str(tmp_path / "hf"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert model.config.tie_word_embeddings
    assert model.lm_head.weight is model.model.embed_tokens.weight
