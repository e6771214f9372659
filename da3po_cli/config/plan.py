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


def logprob_gap_limit(config: Config) -> float:
    """`rollout.max_logprob_gap`, or what rounding on either side does not reach, in nats.

    It is a mean over response tokens. Large models in bfloat16 are reported at 0.01 to 0.04 in healthy runs, and
    quantised rollouts round more; the demo has 1.7e-7 in float32 and 1.3e-3 in bfloat16. Weights that never arrived
    give whole nats.
    """
    if config.rollout.max_logprob_gap is not None:
        return config.rollout.max_logprob_gap
    if config.fp8.format != "none" or config.rollout.quantization is not None:
        return 0.1
    return 0.05 if config.model.dtype == "bfloat16" else 1e-4


def overlong_cache(config: Config) -> int:
    """Tokens at the end of rollout.max_tokens over which the reward falls (DAPO eq. 13's L_cache); 0 is off."""
    algo = config.algo
    return int(algo.overlong_share * config.rollout.max_tokens) if algo.overlong_cache is None else algo.overlong_cache


def overlong_text(config: Config) -> str:
    """The same for a plan."""
    tokens, factor = overlong_cache(config), config.algo.overlong_factor
    if not tokens or not factor:
        return "no shaping"
    return f"the reward falls over the last {tokens} of {config.rollout.max_tokens} response tokens, factor {factor:g}"


def updates_per_step(config: Config) -> int:
    """Optimizer steps per rollout step."""
    return config.rollout.prompts // config.train.mini_batch_prompts * config.train.epochs
