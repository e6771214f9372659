"""Numbers that are not finite, by a learning rate of 1e6: updates are skipped and kept, the run stops, and goes on."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from demo_runs import metrics, train
from fault_runs import make_rollouts

from da3po_cli.config.load import load_config
from da3po_cli.runs.directory import RunDir

pytestmark = [pytest.mark.slow, pytest.mark.faults]

STEPS = 6  # of weights of 1e6, which update is the first that is not finite depends on the processor


def test_a_run_that_diverges_stops_and_goes_on_from_a_checkpoint_before_it(tmp_path, unbroken):
    arguments = [*make_rollouts(tmp_path / "rollouts", STEPS), "parallel.data=2"]
    train(tmp_path, *arguments, "--name=run", "--steps=2", "checkpoint.keep=9")
    run = RunDir(tmp_path / "run")
    steps = ["--resume", "--name=run", f"--steps={STEPS}", arguments[-2]]

    said = train(tmp_path, *steps, "train.lr=1e6", "train.warmup_steps=0", code=5)
    skipped = re.findall(
        r"^warning: step (\d+), update (\d): skipped on all ranks, because not finite: (.*); its batch is in (.*)$",
        said,
        re.MULTILINE,
    )
    assert len(skipped) == 3
    assert re.search(r"^error: rank \d: 3 updates in a row were skipped, because numbers were not finite: ", said, re.M)
    assert "  fix: lower train.lr or raise train.warmup_steps, and go on from a checkpoint before it with --r" in said
    assert run.read()["status"] == "failed"
    assert run.saved_steps()[:2] == [1, 2]
    recorded = metrics(run.path)[2:]
    assert sum(record["train/skipped"] for record in recorded) == recorded[-1]["health/skipped_updates"] < 3
    for step, update, why, file in skipped:
        assert "nan" in why or "inf" in why
        assert file == str(run.path / "health" / f"step_{step}_update_{update}.jsonl")
        rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
        source = (tmp_path / "rollouts" / f"step_{step}.jsonl").read_text().splitlines()
        half = [json.loads(line) for line in source][4 * (int(update) - 1) : 4 * int(update)]
        assert [row["uid"] for row in rows] == [group["prompt"]["uid"] for group in half for _ in range(4)]
        for row, answer in zip(rows, (one for group in half for one in group["responses"]), strict=True):
            assert row["response_ids"] == answer["token_ids"]
            assert row["rollout_logprobs"] == answer["logprobs"]
            assert len(row["logprobs"]) == len(answer["token_ids"])
            assert all(isinstance(float(value), float) for value in row["logprobs"])
            assert math.isfinite(row["advantage"]) and row["advantage"] != 0

    demo = load_config(["demo"], env={}).config.train
    train(tmp_path, *steps, "--resume=2", f"train.lr={demo.lr}", f"train.warmup_steps={demo.warmup_steps}")
    assert metrics(run.path) == unbroken(2)[:STEPS]
