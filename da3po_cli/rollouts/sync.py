"""Resharding: the policy's weights into the rollout engine, and the proof that both compute the same.

The policy streams (Hugging Face name, tensor) pairs, gathered over its tensor and pipeline ranks one at a time; every
rank hands the stream to its own vLLM worker, which keeps its shard. All ranks walk the stream in step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from da3po_cli.errors import SyncError, UsageError
from da3po_cli.protocols import SyncReport
from da3po_cli.rollouts.agreement import MAX_FAR, PROBE_FACTOR, Gap, fit_temperature, likely_cause

if TYPE_CHECKING:
    import torch

    from da3po_cli.algos.types import MicroBatch
    from da3po_cli.rollouts.engine import VllmGenerator

PROBE_TOKENS = 64  # of each probe sequence, so that the probe costs little beside long prompts


class WeightSource(Protocol):
    """What the sync needs of a policy; both methods are collective."""

    temperature: float

    def iter_hf_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All weights as (Hugging Face name, full tensor), `lm_head.weight` also where it is tied to the embedding."""
        ...

    def logprobs(self, batches: Sequence[MicroBatch], *, temperature: float | None = None) -> list[torch.Tensor]: ...


class VllmSync:
    """`WeightSync` from a policy to a `VllmGenerator` in the same processes.

    Args:
        policy: the source of the weights.
        generator: their target.
        probe: token sequences, the same on every rank, scored by both after the first push (the first 64 tokens of
            each): weights that do not arrive at all are found before a rollout is paid for.
        max_gap: largest mean |trainer - engine| log-prob over the response tokens of an update, nats.

    Raises:
        UsageError: no probe sequence has two tokens.
    """

    def __init__(
        self, policy: WeightSource, generator: VllmGenerator, probe: Sequence[Sequence[int]], max_gap: float
    ) -> None:
        self._policy, self._generator, self._max_gap = policy, generator, max_gap
        self._at_start: float | None = None  # the gap of the probe after the first push
        self._probe = [list(tokens[:PROBE_TOKENS]) for tokens in probe if len(tokens) > 1]
        if not self._probe:
            raise UsageError(
                f"none of the {len(probe)} probe sequences has two tokens, so the two engines can't be compared",
                where="data.train",
                hint="give prompts of at least two tokens",
            )

    def push(self) -> SyncReport:
        """Send all weights; the first time, score the probe on both sides too (a collective).

        The report is the same on every rank.

        Raises:
            SyncError: the gap of the probe is above PROBE_FACTOR times the limit, or not a number.
        """
        start = time.perf_counter()
        stream = _WeightStream(self._policy, self._generator.dtype, self._generator.tied_head)
        self._generator.load_weights(iter(stream))
        (seconds,) = self._generator.largest([time.perf_counter() - start])
        if self._at_start is None:
            self._at_start = self.probe_gap()
            if self._at_start > PROBE_FACTOR * self._max_gap:  # infinite where a log-prob is not a number
                raise SyncError(
                    f"after the first weight sync the log-probs of trainer and rollout engine differ by "
                    f"{self._at_start:.3g} nats on average (limit for prompts {PROBE_FACTOR * self._max_gap:g}, "
                    f"{sum(map(len, self._probe))} probe tokens, {self._generator.dtype})",
                    where="rollout.max_logprob_gap",
                    hint="whole nats mean that weights did not arrive, or that vLLM's model is not the trainer's: "
                    "report it; tenths can be rounding in bfloat16 or FP8: raise rollout.max_logprob_gap",
                )
        return SyncReport(seconds=seconds, gigabytes=stream.bytes / 1e9)

    def probe_gap(self) -> float:
        """Mean |trainer - engine| over the probe at temperature 1, nats; infinite if any value is not finite.

        A collective; the largest over the engines, on every rank.
        """
        from da3po_cli.algos.batching import collate
        from da3po_cli.algos.types import Trajectory

        scores = self._generator.score(self._probe)
        trajectories = [
            Trajectory(prompt_ids=tuple(tokens[:1]), response_ids=tokens[1:], rollout_logprobs=values, advantage=0.0)
            for tokens, values in zip(self._probe, scores, strict=True)
        ]
        batch = collate(trajectories, range(len(trajectories)))
        gaps = (self._policy.logprobs([batch], temperature=1.0)[0] - batch.rollout_logprobs).abs()[batch.mask]
        mean = gaps.mean().item()  # not a number if any is
        return self._generator.largest([mean if math.isfinite(mean) else math.inf])[0]

    def check(self, sums: Mapping[str, float], batches: Sequence[MicroBatch], where: str) -> None:
        """See `WeightSync.check`. What the likely cause is, this rank's first micro-batch decides."""
        from da3po_cli.algos.losses import FAR

        gap = Gap.of(sums)
        if not gap.beyond(self._max_gap):
            return
        batch, own = batches[0], self._policy.temperature
        engine = batch.rollout_logprobs[batch.mask]

        def score(temperature: float) -> torch.Tensor:
            return self._policy.logprobs([batch], temperature=temperature)[0][batch.mask]

        cause, fix = likely_cause(gap, self._max_gap, self._at_start or 0.0, fit_temperature(engine, score, own))
        raise SyncError(
            f"trainer and rollout engine disagree on the sampled tokens: their log-probs differ by {gap.mean:.3g} nats "
            f"on average and {gap.slope:+.2g} per nat of surprise (limit of both {self._max_gap:g}), by more than "
            f"{FAR:g} nat for {gap.far:.2%} (limit {MAX_FAR:.0%}), k3 {gap.k3:.2g}, {gap.tokens} tokens, "
            f"{self._generator.dtype}; {cause}",
            where=f"{where}, rollout.max_logprob_gap",
            hint=fix,
        )


class _WeightStream:
    """The policy's weights in the engine's dtype, counted on the way."""

    def __init__(self, policy: WeightSource, dtype: str, tied_head: bool) -> None:
        self._policy, self._dtype, self._tied_head = policy, dtype, tied_head
        self.bytes = 0  # each weight once

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        import torch

        dtype = getattr(torch, self._dtype)
        for name, tensor in self._policy.iter_hf_weights():
            sent = tensor.detach().to(dtype)
            if not (self._tied_head and name == "lm_head.weight"):
                self.bytes += sent.numel() * sent.element_size()
            yield name, sent
