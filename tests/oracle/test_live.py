"""Two live steps, rollouts by vLLM, computed by da3po and by the oracle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import demo_runs
import pytest
from oracle_runs import BASE, disagreements, train

from da3po_cli.doctor.recompute import Tolerance
from da3po_cli.runs.directory import RunDir
from da3po_cli.runs.metrics import read_metrics
from da3po_cli.runs.rollouts import read_rollouts

pytestmark = pytest.mark.slow

Check = Callable[[RunDir], bool]


def record(run: RunDir, step: int) -> dict[str, Any]:
    return read_metrics(run.metrics_file)[step - 1]


def groups(run: RunDir, step: int) -> list[dict[str, Any]]:
    return [group for _, group in read_rollouts(run.rollouts / f"step_{step}.jsonl")]


def rewards(run: RunDir) -> set[float]:
    return {one["reward"] for group in groups(run, 1) for one in group["responses"]}


# name -> (algorithm, overrides, that the run was what the name says)
ARMS: dict[str, tuple[str, list[str], Check]] = {
    "da3po, lambda 2": ("da3po", [], lambda run: record(run, 1)["daa/amplified"] > 0),
    "dapo": ("dapo", [], lambda run: record(run, 1)["daa/amplified"] == 0),
    "grpo": ("grpo", [], lambda run: record(run, 1)["sample/generated"] == 8),
    "gspo": ("gspo", [], lambda run: record(run, 2)["train/clip_low"] > 0),
    "dr_grpo": ("dr_grpo", [], lambda run: record(run, 1)["train/grad_norm"] > 0),
    "two epochs": ("da3po", ["train.epochs=2"], lambda run: record(run, 2)["train/updates"] == 4),
    "KL": ("grpo", ["algo.kl_coef=0.1"], lambda run: record(run, 2)["train/ref_kl"] > 1e-4),
    "TIS": ("da3po", ["algo.tis=on"], lambda run: record(run, 1)["train/tis"] == pytest.approx(1, abs=1e-3)),
    "temperature 0.7": ("da3po", ["rollout.temperature=0.7"], lambda run: record(run, 1)["train/rollout_gap"] < 1e-5),
    "overlong shaping": (
        "da3po",
        ["algo.overlong_cache=60", "algo.overlong_factor=2"],
        lambda run: len(rewards(run)) > 4,
    ),
    "overlong shaping by default": (
        "dapo",
        ["algo.overlong_cache=null", "rollout.max_tokens=60"],
        lambda run: any(0 < value < 1 or -2 < value < -1 for value in rewards(run)),
    ),
    "ragged last mini-batch": (
        "da3po",
        ["algo.on_exhausted=short", "algo.max_rounds=1", "rollout.group_size=2", "rollout.prompts=12"],
        lambda run: record(run, 1)["sample/kept"] % 4 != 0,
    ),
    "carried surplus": (
        "da3po",
        ["algo.carry_surplus=true"],
        lambda run: any(group["step"] == 1 for group in groups(run, 2) if group["drop_reason"] is None),
    ),
}


@pytest.mark.parametrize(("algo", "overrides", "is_so"), ARMS.values(), ids=ARMS)
def test_two_steps(tmp_path: Path, kept_engine: None, algo: str, overrides: list[str], is_so: Check) -> None:
    run = train(tmp_path, "run", *overrides, algo=algo)
    assert is_so(run)
    assert disagreements(run) == []


def test_a_step_after_a_resume(tmp_path: Path, kept_engine: None) -> None:
    train(tmp_path, "run", steps=1)
    run = train(tmp_path, "run", resume="latest")
    assert disagreements(run) == []


LAYOUTS = {
    "tensor 2": (["parallel.tensor=2"], None),
    "pipeline 2": (["parallel.pipeline=2"], None),
    "data 2 with 9 responses, an engine over both": (
        [
            "parallel.data=2",
            "rollout.tensor=2",
            "rollout.prompts=6",
            "rollout.group_size=3",
            "train.mini_batch_prompts=3",
        ],
        None,
    ),
    "bfloat16": (
        ["parallel.data=1", "model.dtype=bfloat16"],
        Tolerance(relative=5e-2, absolute=2e-3, moved=0.2),  # one of 1,800 tokens at the edge of a clip is that much
    ),
}


@pytest.mark.parametrize(
    ("overrides", "tolerance"),
    [
        pytest.param(*layout, id=name, marks=[] if name == "tensor 2" else pytest.mark.long)
        for name, layout in LAYOUTS.items()
    ],
)
def test_two_steps_of_the_command(tmp_path: Path, overrides: list[str], tolerance: Tolerance | None) -> None:
    """As a user types it, over several ranks, and in the precision of GPUs."""
    demo_runs.train(tmp_path, "--config=demo", "--steps=2", "--name=run", *BASE, *overrides)
    run = RunDir(tmp_path / "run")
    assert len(read_metrics(run.metrics_file)) == 2
    assert (disagreements(run) if tolerance is None else disagreements(run, tolerance)) == []
