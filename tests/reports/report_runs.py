"""Run directories on disk in the form that training leaves them, with numbers that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from da3po_cli.ablations.directory import Ablation, AblationDir, RunState
from da3po_cli.ablations.matrix import make_arms
from da3po_cli.algos.diagnostics import SolvedPrompts
from da3po_cli.algos.types import Group, Prompt, Response
from da3po_cli.config.load import dump, load_config
from da3po_cli.runs.directory import RunDir
from da3po_cli.runs.rollouts import write_rollouts

PHASES = ("rollout", "grade", "logprob", "train", "sync", "validate", "checkpoint", "other")


def make_group(index: int, correct: int, size: int = 4, *, text: str = "1+1=?", drop: Any = None) -> Group:
    responses = [
        Response([1, 2], [-0.1, -0.2], f"answer {n}", "stop", "correct" if n < correct else "wrong", int(n < correct))
        for n in range(size)
    ]
    return Group(Prompt(f"0-{index}", (1, 2), text, "2", "arith", index), responses, drop)


def make_run(
    directory: Path,
    scores: Mapping[int, tuple[float, float]],
    *,
    overrides: Sequence[str] = (),
    tokens: int = 1000,
    groups: Mapping[int, Sequence[Group]] | None = None,
    correct: Mapping[int, Mapping[str, int]] | None = None,
    bench: str = "arith",
    k: int = 8,
    status: str = "finished",
) -> RunDir:
    """`scores` is step -> (avg@k, pass@k); every step up to the last has training metrics too.

    The groups, given by step, are marked as training marks them.
    """
    run = RunDir(directory)
    last = max(scores)
    config = load_config(["demo"], [f"run.steps={last}", "parallel.data=1", *overrides], {}, {}).config
    run.create(dump(config), "hash", ["da3po", "train"])
    with run.metrics_file.open("w") as file:
        for step in range(last + 1):
            record: dict[str, Any] = {"step": step}
            if step:
                record |= {
                    "train/acc": 0.5,
                    "train/acc_kept": 0.4,
                    "train/entropy": 0.1 / step,
                    "train/grad_norm": None if step == 2 else 0.2,  # not finite
                    "sample/kept": 32,
                    "sample/generated": 40,
                    "sample/hard_share": 0.25,
                    "sample/drop_too_easy": 8,
                    "daa/amplified": 0.1,
                    "adv/mass_correct": 0.6,
                    "adv/mass_wrong": 0.4,
                    "rollout/tokens": tokens,
                    "rollout/length": 30.0,
                    "train/rollout_gap": 1e-5,
                }
            if step in scores:
                record |= {f"val/{bench}/avg@{k}": scores[step][0], f"val/{bench}/pass@{k}": scores[step][1]}
            record |= {f"timing/{phase}": 0.25 for phase in PHASES} | {"timing/step": 2.0}
            file.write(json.dumps(record) + "\n")
    for step, counts in (correct or {}).items():
        (run.path / "validation").mkdir(exist_ok=True)
        (run.path / f"validation/step_{step}.json").write_text(json.dumps({bench: counts}))
    solved = SolvedPrompts()
    for step, some in (groups or {}).items():
        solved.mark(some)
        write_rollouts(run.rollouts, step, some)
    run.finish(status)
    return run


def make_ablation(directory: Path, finals: Mapping[str, Sequence[float]], **fields: Any) -> AblationDir:
    """Arms lambda=... with the final scores of their seeds 0, 1, ...; all start at 0.4 and step linearly to 4."""
    arms = make_arms(None, [f"lambda={','.join(finals)}"])
    seeds = range(max(len(values) for values in finals.values()))
    ablation = Ablation("ablation", ["demo"], [], 1, arms, list(seeds), arms[0].label, created="2026", **fields)
    where = AblationDir(directory)
    for arm, values in zip(arms, finals.values(), strict=True):
        for seed, final in enumerate(values):
            name = arm.run_name(seed)
            scores = {0: (0.4, 0.8), 2: ((0.4 + final) / 2, 0.85), 4: (final, 0.9)}
            make_run(directory / name, scores, overrides=[*arm.overrides, f"run.seed={seed}"])
            ablation.runs.append(RunState(name, arm.label, seed, "hash", "finished", 0, seconds=60.0))
    where.write(ablation)
    return where
