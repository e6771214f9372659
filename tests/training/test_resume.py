"""A run that stopped goes on as one that never did: live over the end of an epoch, after signals, on other layouts."""

from __future__ import annotations

import json
import re
import signal
from functools import partial
from pathlib import Path

import demo_runs
import here
import pytest
from demo_runs import metrics

from da3po_cli.data import arithmetic
from da3po_cli.runs.checkpoints import read_state
from da3po_cli.runs.directory import RunDir

pytestmark = pytest.mark.slow

ROWS = 16  # a step draws about a dozen prompts for 8 groups, so four steps end two epochs
SMALL = [*demo_runs.SMALL, "checkpoint.keep=1", "algo.carry_surplus=true", "reward.name=tiny_reward:grade"]
STEPS = 24  # of a replayed run: at a tenth of a second each, time enough for a signal

start = partial(demo_runs.start, path=Path(__file__).parent)  # where tiny_reward is
train = partial(demo_runs.train, path=Path(__file__).parent)
train_here = partial(here.train, path=Path(__file__).parent)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Live runs of one rank on 24 problems: four steps, and two and two."""
    root = tmp_path_factory.mktemp("runs")
    data = root / "tiny.jsonl"
    rows = [{"problem": problem.text, "answer": problem.answer} for problem in arithmetic.problems("train", ROWS)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    live = [*SMALL, "--algo=dapo", f"data.train={data}", f"data.validation={data}", "parallel.data=1"]
    train(root, *live, "--name=whole", "--steps=4")
    with here.one_engine():
        train_here(root, *live, "--name=halves", "--steps=2")
        train_here(root, "--resume", "--name=halves", "--steps=4")
    return root


def test_two_and_two_steps_equal_four_bit_for_bit(root):
    """Loss, learning rate, validation and every other number; every prompt, response, log-prob and advantage."""
    whole, halves = metrics(root / "whole"), metrics(root / "halves")
    assert [record["step"] for record in halves] == [0, 1, 2, 3, 4]
    assert halves == whole
    assert any(record["sample/rounds"] > 0 and record["train/loss"] != 0 for record in whole[1:])
    for step in (1, 2, 3, 4):
        saved = [(root / name / "rollouts" / f"step_{step}.jsonl").read_text() for name in ("whole", "halves")]
        assert saved[0] == saved[1]


def test_an_epoch_ended_before_and_after_the_stop(root):
    """Or the test above would say less than it seems to. A prompt's uid begins with its epoch."""
    epochs: dict[int, set[str]] = {}
    for step in (1, 2, 3, 4):
        lines = (root / "halves" / "rollouts" / f"step_{step}.jsonl").read_text().splitlines()
        epochs[step] = {json.loads(line)["prompt"]["uid"].partition("-")[0] for line in lines}
    assert {"0", "1"} <= epochs[1] | epochs[2]
    assert {"1", "2"} <= epochs[3] | epochs[4]


def test_validations_are_saved_problem_by_problem(root):
    """A resumed run knows which problems were hard before training."""
    for run in ("whole", "halves"):
        start = json.loads((root / run / "validation/step_0.json").read_text())["tiny"]
        for record in metrics(root / run)[::2]:
            correct = json.loads((root / run / f"validation/step_{record['step']}.json").read_text())["tiny"]
            assert correct.keys() == start.keys()
            assert sum(correct.values()) / (2 * len(correct)) == record["val/tiny/avg@2"]
            hard = [correct[problem] / 2 for problem, before in start.items() if before == 0]
            assert (sum(hard) / len(hard) if hard else None) == record.get("val/tiny/acc_hard")


def test_prompts_solved_for_the_first_time_are_counted_over_the_whole_run(root):
    """Each in the step that sampled it; a group carried over is saved with a later step, or in the checkpoint."""
    for run in ("whole", "halves"):
        files = [root / run / f"rollouts/step_{step}.jsonl" for step in range(1, 5)]
        lines = [line for file in files for line in file.read_text().splitlines()]
        carried = read_state(root / run / "checkpoints/step_4")["source"]["sampler"]["carried"]
        sampled = [*map(json.loads, lines), *carried]
        solved = set()
        for record in metrics(root / run)[1:]:
            groups = [group for group in sampled if group["step"] == record["step"]]
            assert len(groups) == record["sample/generated"]
            new = {
                group["prompt"]["index"] for group in groups if any(one["acc"] for one in group["responses"])
            } - solved
            assert len(new) == record["sample/first_solves"]
            assert new == {group["prompt"]["index"] for group in groups if group["first_solve"]}
            solved |= new
        assert len(solved) <= ROWS


def test_the_newest_and_the_best_are_left(root):
    records = metrics(root / "whole")
    scores = {record["step"]: record["val/tiny/avg@2"] for record in records[1:] if "val/tiny/avg@2" in record}
    best = max(scores, key=lambda step: (scores[step], step))
    assert RunDir(root / "whole").saved_steps() == sorted({best, 4})
    assert read_state(root / "whole" / "checkpoints" / f"step_{best}")["score"] == scores[best]


# --------------------------------------------------------------------------------------- replayed rollouts, no engine


@pytest.fixture(scope="module")
def replay(root):
    """The four steps' rollouts again and again, as a run of many steps."""
    folder = root / "long"
    folder.mkdir()
    for step in range(1, STEPS + 1):
        (folder / f"step_{step}.jsonl").symlink_to(root / "whole" / "rollouts" / f"step_{(step - 1) % 4 + 1}.jsonl")
    return [*SMALL, "--algo=dapo", "data.train=arith", "data.validation=null", f"--replay-rollouts={folder}"]


@pytest.fixture(scope="module")
def reference(root, replay):
    """One rank, never stopped."""
    train_here(root, *replay, "parallel.data=1", "--name=reference", f"--steps={STEPS}", "checkpoint.every=0")
    return metrics(root / "reference")


@pytest.mark.parametrize(
    ("number", "code", "layout"),
    [
        pytest.param(signal.SIGTERM, 143, ["parallel.data=1", "checkpoint.every=0"], id="one rank"),
        pytest.param(
            *(signal.SIGTERM, 143, ["parallel.data=1", "checkpoint.async_save=true"]),
            id="one rank, background saves",
            marks=pytest.mark.long,
        ),
        pytest.param(
            signal.SIGINT, 130, ["parallel.data=2", "checkpoint.async_save=true"], id="two ranks, background saves"
        ),
    ],
)
def test_a_signal_saves_and_the_run_goes_on(root, replay, reference, number, code, layout):
    name = "-".join(["stopped", *(setting.rpartition("=")[2] for setting in layout)])
    job = start(root, "train", *replay, *layout, f"--name={name}", f"--steps={STEPS}")
    assert job.stderr is not None
    said = ""
    for line in job.stderr:
        said += line
        if line.startswith("step 2/"):
            job.send_signal(number)
            break
    said += job.stderr.read()
    assert job.wait(60) == code, said
    (step,) = re.findall(r"^stopping after step (\d+), which saves a checkpoint", said, re.MULTILINE)
    run = RunDir(root / name)
    assert 2 <= int(step) < STEPS
    assert run.saved_steps() == [int(step)]
    assert [record["step"] for record in metrics(run.path)] == list(range(1, int(step) + 1))
    assert run.read()["status"] == "interrupted"
    assert f"next: da3po train --resume --name {name}\n" in said
    assert said.count("--resume") == 1
    one_rank = layout[0] == "parallel.data=1"
    (train_here if one_rank else train)(root, "--resume", f"--name={name}", replay[-1])
    if one_rank:
        assert metrics(run.path) == reference
    else:
        for record, expected in zip(metrics(run.path), reference, strict=True):
            assert record["train/loss"] == pytest.approx(expected["train/loss"], abs=1e-5)
    assert run.read()["status"] == "finished"


def test_short_of_time_a_run_saves_and_ends_well(root, replay, reference):
    said = train_here(
        root, *replay, "parallel.data=1", "--name=short", f"--steps={STEPS}", "checkpoint.before=00:00:01"
    )  # it takes more than a second to start
    assert "interrupted (checkpoint.before=00:00:01): 1 steps" in said
    assert "next: da3po train --resume --name short\n" in said
    run = RunDir(root / "short")
    assert run.saved_steps() == [1]
    assert run.read()["status"] == "interrupted"
    train_here(root, "--resume", "--name=short", replay[-1], "checkpoint.before=00:10", "--steps=3")
    assert metrics(run.path) == reference[:3]
    said = train_here(root, "--resume", "--name=short", replay[-1])
    assert "nothing to do" in said and "--steps N goes on" in said
    assert len(run.read()["attempts"]) == 2


LAYOUTS = {"(1, 1)": [], "(1, 2)": ["parallel.pipeline=2"]}


@pytest.mark.long
def test_a_checkpoint_of_2_by_2_goes_on_at_other_layouts(root, replay, reference):
    first = ["parallel.tensor=2", "parallel.pipeline=2", "parallel.data=1"]
    train(root, *replay, *first, "--name=wide", "--steps=2", "checkpoint.keep=3")
    for layout in LAYOUTS.values():
        train(
            root,
            *("--resume=2", "--name=wide", "--steps=4", replay[-1]),
            *("parallel.tensor=1", "parallel.pipeline=1", *layout),
        )
        records = metrics(root / "wide")
        assert [record["step"] for record in records] == [1, 2, 3, 4]
        for record, expected in zip(records, reference, strict=False):
            assert record["train/loss"] == pytest.approx(expected["train/loss"], abs=1e-5)
            assert record["train/lr"] == expected["train/lr"]
