"""The arithmetic of a step: prompts, responses, updates, micro-batches, and how many groups dynamic sampling keeps."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, comb

from da3po_cli.config.plan import updates_per_step
from da3po_cli.config.schema import Config

MEAN_LENGTH = 0.4
"""Assumed mean length of a sequence, as a share of the longest that the config allows; a run knows better."""


@dataclass(frozen=True)
class Batch:
    """Of one step. Tokens of a micro-batch are those of the fullest one of a data-parallel rank.

    Attributes:
        kept: expected share of the groups that dynamic sampling keeps; 1 without it.
        generated: prompts that are expected to be sampled for the step.
        rank_responses: of an update on the fullest data-parallel rank, were all of like length.
        longest: tokens of the longest sequence, prompt and response.
        mean: tokens of a mean one.
        micro_batches: per update and data-parallel rank, at the mean length.
        tokens: of a micro-batch at the mean length.
        most_tokens: of a micro-batch if all sequences were the longest.
    """

    prompts: int
    responses: int
    kept: float
    kept_source: str
    generated: int
    updates: int
    mini_responses: int
    rank_responses: int
    longest: int
    mean: int
    mean_source: str
    micro_batches: int
    tokens: int
    most_tokens: int


@dataclass(frozen=True)
class Measured:
    """What a run has seen: the share of groups kept, and the mean tokens of a sequence."""

    name: str
    kept: float | None
    mean: float | None


def kept_ratio(group_size: int) -> float:
    """Expected share of groups with 0 < k < G, for pass rates p drawn from Beta(1/2, 1/2).

    A group is kept with probability 1 - p^G - (1-p)^G. The arcsine law, most problems nearly always or nearly never
    solved, gives E[p^G] = C(2G, G) / 4^G, so the share is 1 - 2 C(2G, G) / 4^G.
    """
    return 1 - 2 * comb(2 * group_size, group_size) / 4**group_size


def batch_of(config: Config, data: int, measured: Measured | None = None) -> Batch:
    """The arithmetic of `config` over `data` data-parallel ranks."""
    rollout, train = config.rollout, config.train
    longest = config.data.max_prompt_tokens + rollout.max_tokens
    mean, mean_source = max(1, round(longest * MEAN_LENGTH)), f"assumed: {MEAN_LENGTH:.0%} of the longest"
    if measured is not None and measured.mean is not None:
        mean, mean_source = max(1, round(measured.mean)), f"measured in {measured.name}"
    kept, kept_source = 1.0, "no dynamic sampling"
    if config.algo.dynamic_sampling:
        kept, kept_source = kept_ratio(rollout.group_size), "assumed: pass rates from Beta(1/2, 1/2)"
        if measured is not None and measured.kept is not None:
            kept, kept_source = measured.kept, f"measured in {measured.name}"
    mini = train.mini_batch_prompts * rollout.group_size
    share = ceil(mini / data)
    budget = max(train.micro_batch_tokens, longest)  # a longer sequence travels alone
    count = max(1, ceil(share * mean / budget))
    return Batch(
        prompts=rollout.prompts,
        responses=rollout.prompts * rollout.group_size,
        kept=kept,
        kept_source=kept_source,
        generated=ceil(rollout.prompts / max(kept, 1e-3)),
        updates=updates_per_step(config),
        mini_responses=mini,
        rank_responses=share,
        longest=longest,
        mean=mean,
        mean_source=mean_source,
        micro_batches=count,
        tokens=min(budget, ceil(share * mean / count)),
        most_tokens=min(budget, share * longest),
    )
