"""Resharding: the policy's weights into the rollout engine, and the proof that both compute the same.

The policy streams (Hugging Face name, tensor) pairs, gathered over its tensor and pipeline ranks one at a time; every
rank hands the stream to its own vLLM worker, which keeps its shard. All ranks walk the stream in step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from da3po_cli.errors import SyncError, UsageError
from da3po_cli.runtime import SyncReport

if TYPE_CHECKING:
    import torch

    from da3po_cli.algos.types import MicroBatch
    from da3po_cli.runtime.rollout import VllmGenerator

PROBE_TOKENS = 64  # of each probe sequence, so that the probe costs little beside long prompts


class WeightSource(Protocol):
    """What the sync needs of a policy; both methods are collective."""

    temperature: float

    def iter_hf_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All weights as (Hugging Face name, full tensor), `lm_head.weight` also where it is tied to the embedding."""
        ...

    def logprobs(self, batches: Sequence[MicroBatch]) -> list[torch.Tensor]: ...


class VllmSync:
    """`WeightSync` from a policy to a `VllmGenerator` in the same processes.

    Args:
        policy: the source of the weights.
        generator: their target.
        probe: token sequences, the same on every rank, scored by both after each push (the first 64 tokens of each).
        max_gap: largest allowed |trainer - engine| log-prob, nats.

    Raises:
        UsageError: no probe sequence has two tokens.
    """

    def __init__(
        self, policy: WeightSource, generator: VllmGenerator, probe: Sequence[Sequence[int]], max_gap: float
    ) -> None:
        self._policy, self._generator, self._max_gap = policy, generator, max_gap
        self._probe = [list(tokens[:PROBE_TOKENS]) for tokens in probe if len(tokens) > 1]
        if not self._probe:
            raise UsageError(
                f"none of the {len(probe)} probe sequences has two tokens, so the two engines can't be compared",
                where="data.train",
                hint="give prompts of at least two tokens",
            )

    def push(self) -> SyncReport:
        """Send all weights, then score the probe on both sides (a collective; the report is the same on every rank).

        Raises:
            SyncError: the gap is above the limit, or not a number.
        """
        start = time.perf_counter()
        stream = _WeightStream(self._policy, self._generator.dtype, self._generator.tied_head)
        self._generator.load_weights(iter(stream))
        seconds = time.perf_counter() - start
        seconds, gap = self._generator.largest([seconds, self._gap()])
        if gap > self._max_gap:  # infinite where a log-prob is not a number
            raise SyncError(
                f"after the weight sync the rollout engine's log-probs are off by {gap:.3g} nats from the trainer's "
                f"(limit {self._max_gap:g}, {sum(map(len, self._probe))} probe tokens, {self._generator.dtype})",
                where="rollout.max_logprob_gap",
                hint="a gap of tenths can be rounding, in bfloat16 or FP8: raise rollout.max_logprob_gap; "
                "one of whole nats means that weights did not arrive",
            )
        return SyncReport(seconds=seconds, gigabytes=stream.bytes / 1e9, logprob_gap=gap)

    def _gap(self) -> float:
        """Largest |trainer - engine| over the probe as this rank sees it; infinite if any value is not finite."""
        from da3po_cli.algos.batching import collate
        from da3po_cli.algos.types import Trajectory

        scores = self._generator.score(self._probe, self._policy.temperature)
        trajectories = [
            Trajectory(prompt_ids=tuple(tokens[:1]), response_ids=tokens[1:], rollout_logprobs=values, advantage=0.0)
            for tokens, values in zip(self._probe, scores, strict=True)
        ]
        batch = collate(trajectories, range(len(trajectories)))
        gaps = (self._policy.logprobs([batch])[0] - batch.rollout_logprobs).abs()[batch.mask]
        worst = gaps.max().item()  # not a number if any is
        return worst if math.isfinite(worst) else math.inf


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
