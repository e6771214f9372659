"""Whether trainer and rollout engine compute the same, judged by the log-probs that both give to the sampled tokens.

The engine's come with the rollouts, the trainer's are those before the step's first update, so the judgement covers all
response tokens and costs nothing. Decisions only; the log-probs are made elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MAX_FAR = 0.01
"""Largest share of tokens that may be further apart than `losses.FAR`. It finds what a mean hides, such as a part of
the vocabulary, or positions beyond some length, that are wrong; rounding puts hardly a token so far apart."""
PROBE_FACTOR = 10.0
"""The mean gap over prompts may be so many times the limit for responses: prompts hold improbable tokens, whose
log-probs rounding moves most (12 times on the demo in float32, 25 in bfloat16). Weights that never arrived are off by
whole nats."""
NO_ROUNDING = 2.0
"""A mean gap over responses above so many times that over the probe at the start is no rounding."""
SURE = 0.01
"""Added to the mean square of the surprise, nats^2: a policy that is almost sure of each token says nothing of
temperature."""
EXPLAINED = 1 / 3
"""A temperature explains a gap where it leaves no more than this part of it, or no more than the limit."""
TEMPERATURES = 4.0
"""The engine's may be so many times the trainer's, or that part; beyond it, weights that say nothing look like one."""
FIT_PASSES = 10  # fixed, so that all ranks make the same collective calls


@dataclass(frozen=True)
class Gap:
    """|trainer - engine| over the response tokens of an update, from the sums of `losses.policy_loss`.

    `slope` says how far apart the temperatures are, which rounding hides in the mean: for an engine at temperature T'
    and a trainer at T, a token of log-prob l where the entropy is H has, to first order in T / T' - 1,
    engine - trainer = (T / T' - 1) (l + H), and l + H is 0 on average. The slope is that of least squares.
    """

    tokens: int
    mean: float  # nats
    k3: float  # estimate of KL(engine || trainer), nats per token
    far: float  # share of tokens that are more than `losses.FAR` apart
    slope: float  # nats per nat: T / T' - 1

    @classmethod
    def of(cls, sums: Mapping[str, float]) -> Gap:
        tokens = max(1.0, sums["tokens"])
        return cls(
            tokens=int(sums["tokens"]),
            mean=sums["rollout_gap_sum"] / tokens,
            k3=sums["rollout_kl_sum"] / tokens,
            far=sums["rollout_far_sum"] / tokens,
            slope=sums["rollout_tilt"] / (sums["surprise_square"] + SURE * tokens),
        )

    def beyond(self, limit: float) -> bool:
        """Whether trainer and engine disagree; `limit` is that of `mean`, nats, and of `slope`, nats per nat.

        What is not finite says nothing here: such an update is skipped.
        """
        return math.isfinite(self.mean) and (self.mean > limit or abs(self.slope) > limit or self.far > MAX_FAR)


@dataclass(frozen=True)
class Fit:
    """Temperatures of the trainer, and its mean |trainer - engine| on a sample of the tokens there, nats."""

    own: float
    own_gap: float
    best: float
    best_gap: float

    def explains(self, limit: float) -> bool:
        """Whether another temperature, further off than `limit` (relative), is what is wrong."""
        ratio = self.best / self.own
        apart = abs(1 / ratio - 1) > limit and 1 / TEMPERATURES <= ratio <= TEMPERATURES
        return apart and self.best_gap <= max(limit, EXPLAINED * self.own_gap)


def fit_temperature(engine: torch.Tensor, score: Callable[[float], torch.Tensor], temperature: float) -> Fit:
    """The temperature at which the trainer's log-probs of the sampled tokens come closest to the engine's.

    Least squares in 1 / T by Gauss-Newton steps, with the slope between the last two points as derivative.

    Args:
        engine: the engine's log-probs, nats, [N].
        score: those of the trainer at a temperature, [N]; called `FIT_PASSES` times.
        temperature: the trainer's own, where the search begins.
    """
    import torch

    before, here = 1 / temperature, 1.05 / temperature
    scored = score(temperature)
    slope = torch.zeros_like(scored)
    points = [((scored - engine).abs().mean().item(), temperature)]
    for _ in range(FIT_PASSES - 1):
        last, scored = scored, score(1 / here)
        points.append(((scored - engine).abs().mean().item(), 1 / here))
        if here != before:
            slope = (scored - last) / (here - before)
        move = ((engine - scored) @ slope / (slope @ slope).clamp(min=1e-30)).item()
        before, here = here, min(max(here + move, here / 2), here * 2)
    best_gap, best = min(points)
    return Fit(temperature, points[0][0], best, best_gap)


def likely_cause(gap: Gap, limit: float, at_start: float, fit: Fit) -> tuple[str, str]:
    """(what is wrong, what to do), for a gap beyond its limit.

    Args:
        at_start: the mean gap over the probe at the first push, nats.
        fit: on a sample of the tokens.
    """
    if fit.explains(limit):
        return (
            f"the engine's log-probs are those of temperature {fit.best:.4g}, the trainer's of {fit.own:g}: at the "
            f"former they differ by {fit.best_gap:.2g} nats",
            "the engine has to sample at rollout.temperature, and to report log-probs of logits / temperature "
            "(vLLM's logprobs_mode processed_logprobs)",
        )
    if gap.mean > NO_ROUNDING * at_start or gap.far > MAX_FAR:
        return (
            "the engine has other weights than the trainer, which did not arrive or belong to another step, or it "
            f"samples in another way; rounding it is not, for at the start they differed by {at_start:.2g} nats",
            "go on from the last checkpoint with --resume; where it comes again, report it",
        )
    return (
        f"it is of the size of rounding: at the start they differed by {at_start:.2g} nats",
        f"rollout.max_logprob_gap={2 * max(gap.mean, abs(gap.slope)):.1g} if that is healthy for this model, with "
        "algo.tis=on",
    )
