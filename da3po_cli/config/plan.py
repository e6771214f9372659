"""The arithmetic that follows from a config: who computes what, and how often."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from da3po_cli.config.schema import Config

CPU_RANKS = 2  # ranks on a machine without CUDA devices, where the config does not say


@dataclass(frozen=True)
class Layout:
    """Ranks of a job. `engines` rollout engines of `rollout_tensor` ranks share the same ranks as the trainer."""

    world: int
    tensor: int
    pipeline: int
    data: int
    engines: int
    rollout_tensor: int


def layout(config: Config, *, devices: int = 0, world: int | None = None) -> Layout:
    """The layout of `config`; `parallel.data: null` takes what is left of `world`, the CUDA `devices`, or CPU_RANKS.

    On a CPU two ranks of one thread beat one rank of two: most of a small model's time is Python.
    """
    parallel = config.parallel
    model = max(1, parallel.tensor * parallel.pipeline)
    data = parallel.data
    if data is None:
        ranks = world or devices or min(CPU_RANKS, len(os.sched_getaffinity(0)))
        data = max(1, ranks // model)
    total = model * data
    return Layout(
        world=total,
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        data=data,
        engines=total // max(1, config.rollout.tensor),
        rollout_tensor=config.rollout.tensor,
    )


def with_layout(config: Config, where: Layout) -> Config:
    """`config` with `parallel.data` filled in."""
    return replace(config, parallel=replace(config.parallel, data=where.data))


def updates_per_step(config: Config) -> int:
    """Optimizer steps per rollout step."""
    return config.rollout.prompts // config.train.mini_batch_prompts * config.train.epochs
