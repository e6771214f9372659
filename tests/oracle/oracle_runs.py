"""Runs for the oracle: `da3po train` in this very process, and what the oracle makes of what they left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from da3po_cli.config.load import load_config
from da3po_cli.doctor.recompute import Tolerance, recompute
from da3po_cli.output import Out
from da3po_cli.runs.directory import RunDir
from da3po_cli.training.job import run
from da3po_cli.training.prepare import Request

STEPS = 2
# Two updates a step, a rate that rises, gradients that are clipped, and every checkpoint left.
BASE = [
    "rollout.prompts=8",
    "rollout.group_size=4",
    "train.mini_batch_prompts=4",
    "train.lr=4e-4",
    "train.warmup_steps=4",
    "train.grad_clip=0.2",
    "validation.every=0",
    "checkpoint.every=1",
    "checkpoint.keep=5",
    "parallel.data=1",
    "run.tensorboard=false",
]
FLOAT32 = Tolerance(relative=1e-5, absolute=1e-6, moved=1e-3)


def train(root: Path, name: str, *overrides: str, algo: str = "da3po", steps: int = STEPS, **request: object) -> RunDir:
    """Train on the demo model in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DA3PO_RUNS", str(root))
        patch.setattr("da3po_cli.reports.build.report_after", lambda out, run: None)  # its plots take most of the time
        for variable in list(os.environ):
            if variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
                patch.delenv(variable)
        flags = {"algo.name": algo, "run.name": name, "run.steps": steps}
        files, settings = ([], []) if request.get("resume") else (["demo"], [*BASE, *overrides])
        asked = Request(files=files, overrides=settings, flags=flags, **request)  # type: ignore[arg-type]
        return run(Out("quiet"), asked, lambda job, attempt: None)


NOTED = ("groups misjudged", "reward, ", "advantage, ", "daa_weight, ")  # rows about the saved rollouts themselves


def disagreements(
    run: RunDir, tolerance: Tolerance = FLOAT32, *, steps: int = STEPS, replayed: bool = False
) -> list[str]:
    """What the oracle, from the source model on, finds other than the run noted; empty where all agree.

    Args:
        replayed: the rollouts are not the run's own, so they say nothing of its advantages.
    """
    config = load_config([str(run.config_file)], env={}).config
    found = list(recompute(run, config, steps, since=0, tolerance=tolerance))
    assert [step for step, _ in found] == list(range(1, steps + 1))
    assert all(any(row.name.startswith("weights") for row in rows) for _, rows in found), "every step has a checkpoint"
    return [
        f"step {step}: {row.name} {row.recorded!r}, recomputed {row.recomputed!r}"
        for step, rows in found
        for row in rows
        if not row.ok and not (replayed and row.name.startswith(NOTED))
    ]
