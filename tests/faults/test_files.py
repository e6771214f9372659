"""Files that are cut short or damaged are recognised by name, before anything is lost."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from demo_runs import metrics
from fault_runs import make_rollouts
from here import train

from da3po_cli.config.models import DEMO_MODEL
from da3po_cli.runs.directory import RunDir

pytestmark = [pytest.mark.slow, pytest.mark.faults]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A run of three steps, and the arguments by which it goes on to a fourth."""
    root = tmp_path_factory.mktemp("runs")
    arguments = [*make_rollouts(root / "rollouts", 4), "parallel.data=1"]
    train(root, *arguments, "--name=run", "--steps=3")
    (root / "on").write_text(arguments[-2])
    return root


def resume(root, *more, code=0):
    return train(root, "--resume", "--name=run", "--steps=4", (root / "on").read_text(), *more, code=code)


def test_a_checkpoint_shard_that_is_cut_short(root):
    """The weights of the newest checkpoint; the run goes on from the one before."""
    run = RunDir(root / "run")
    shard = next((run.checkpoints / "step_3" / "policy").glob("*.distcp"))
    whole = shard.read_bytes()
    os.truncate(shard, len(whole) // 2)
    said = resume(root, code=2)
    name = shard.relative_to(run.checkpoints / "step_3")
    assert (
        f"error: the checkpoint step_3 is damaged: {name}: it has {len(whole) // 2} bytes and was written with" in said
    )
    assert f"  at: {shard}\n" in said
    assert "  fix: use the checkpoint before it: --resume 2" in said
    shard.write_bytes(whole)


def test_a_line_of_metrics_that_is_damaged(root):
    """Named at once; nothing is deleted, and without the line the run goes on."""
    file = root / "run" / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_bytes(lines[0].encode() + b'{"step": 2, "tr\xff\x00\n' + lines[2].encode())
    said = resume(root, code=2)
    assert "error: not a record of a step: " in said
    assert f"  at: {file}:2\n" in said
    assert "  fix: remove that line; the checkpoints do not depend on this file\n" in said
    assert RunDir(root / "run").saved_steps() == [2, 3]
    file.write_text("".join(lines))


def test_half_a_last_line_of_metrics_is_cut_off_and_the_step_kept(root):
    """As a kill between checkpoint and metrics leaves it: the record of the step comes from the checkpoint."""
    file = root / "run" / "metrics.jsonl"
    before = metrics(root / "run")
    text = file.read_text()
    file.write_text(text[:-200])
    said = resume(root)
    assert 'warning: metrics.jsonl ended in the middle of a line, which is cut off: \'{"step": 3, ' in said
    after = metrics(root / "run")
    assert [record["step"] for record in after] == [1, 2, 3, 4]
    assert after[:3] == before
    assert json.loads(text.splitlines()[2]).keys() == json.loads(file.read_text().splitlines()[2]).keys()


def test_weights_that_are_cut_short(root, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(DEMO_MODEL, model)
    weights = model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1000)
    said = train(
        tmp_path,
        "--config=demo",
        (root / "on").read_text(),
        f"--model={model}",
        "--name=cut",
        "parallel.data=1",
        code=2,
    )
    assert "error: cannot read model.safetensors: " in said
    assert f"  at: {weights}\n" in said
    assert "  fix: download it again\n" in said


def test_a_dataset_whose_last_line_is_cut_short(tmp_path):
    data = tmp_path / "sums.jsonl"
    data.write_text('{"problem": "1 + 1", "answer": "2"}\n{"problem": "2 + 2", "ans')
    said = train(
        tmp_path, "--config=demo", f"--dataset={data}", "reward.name=math", "data.validation=null", "--name=cut",
        "parallel.data=1", code=2,
    )  # fmt: skip
    assert "error: not valid JSON: " in said
    assert f"  at: {data}:2\n" in said
