"""What training and the parts under it agree on: four protocols and the values they exchange.

Every rank runs the same loop in step; each call below is collective unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from da3po_cli.algos.types import Group, MicroBatch, Prompt

if TYPE_CHECKING:
    import torch

    from da3po_cli.algos.types import LossFn

SumsCheck = Callable[[Mapping[str, float]], None]
"""Looks at the sums of an update before the optimizer's step, and raises where that must not be taken."""


@dataclass(frozen=True)
class Sampling:
    """How to sample. Training forces top_p = 1 and top_k = -1, so that log-probs are those of the whole softmax."""

    n: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int = 0  # mixed with the prompt's uid and the sample's number, so no two samples share a stream
    context: int | None = None  # most tokens of a prompt with its response; None: `max_tokens` alone is the limit

    def limit(self, prompt: Prompt) -> int:
        """Longest response to this prompt, in tokens; below 1 where it leaves no room. No other prompt matters."""
        room = self.max_tokens if self.context is None else self.context - len(prompt.token_ids)
        return min(self.max_tokens, room)


@dataclass(frozen=True)
class Update:
    """One optimizer step, the same on every rank."""

    loss: float
    grad_norm: float  # before clipping
    lr: float
    skipped: bool  # True when the loss, a log-prob or the gradient was not finite: the optimizer step was a no-op
    sums: dict[str, float]  # the loss function's sums over micro-batches and data-parallel ranks


@dataclass(frozen=True)
class SyncReport:
    """One push of the trainer's weights into the rollout engine."""

    seconds: float
    gigabytes: float  # sent by this job, each weight counted once


@dataclass(frozen=True)
class Validation:
    """What held-out problems say of the weights."""

    metrics: dict[str, float]  # val/<bench>/...
    correct: dict[str, dict[str, int]]  # benchmark -> uid of the prompt -> correct samples


class Comm(Protocol):
    """Where this rank stands, and the two collectives of Python objects that the loop needs."""

    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def data_rank(self) -> int: ...
    @property
    def data_size(self) -> int: ...

    def broadcast(self, value: Any) -> Any:
        """Rank 0's `value`, on every rank."""
        ...

    def barrier(self) -> None: ...


class PendingSave(Protocol):
    """A checkpoint of the policy that is being written in the background."""

    seconds: float  # that this rank's writer took; 0 until it is through

    def done(self) -> bool:
        """Whether every rank has written its part."""
        ...

    def finish(self) -> None:
        """Wait for that, then make the checkpoint whole.

        Raises:
            errors.EnvironmentProblem: a rank could not write.
        """
        ...


class Policy(Protocol):
    """The model under training."""

    def logprobs(
        self, batches: Sequence[MicroBatch], *, reference: bool = False, temperature: float | None = None
    ) -> list[torch.Tensor]:
        """Log-probs of `targets` under the current (or the frozen initial) weights, at the given or own temperature.

        `batches` are those of this data-parallel rank. Returns float32 [B, S] on the CPU, 0 where mask is False,
        one per batch, on every rank of the model-parallel group.
        """
        ...

    def update(self, batches: Sequence[MicroBatch], loss: LossFn, check: SumsCheck | None = None) -> Update:
        """Forward, backward over this rank's micro-batches of one mini-batch, then `check`, then one optimizer step."""
        ...

    def advance_schedule(self) -> None:
        """Move the learning-rate schedule on by one rollout step."""
        ...

    def save(self, directory: Path) -> None:
        """Write weights, optimizer, schedule and RNG state below `directory`."""
        ...

    def begin_save(self, directory: Path) -> PendingSave:
        """`save` in the background: returns when all is copied, so that training may go on. One at a time."""
        ...

    def load(self, directory: Path) -> None:
        """The inverse of `save`, on any (TP, PP, DP)."""
        ...


class Generator(Protocol):
    """The rollout engine."""

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Group]:
        """`sampling.n` responses per prompt, in prompt order, the same list on every rank.

        `prompts` is the same list on every rank too; it is split over the engines inside.
        """
        ...

    def sleep(self) -> None:
        """Give the device memory back to the trainer; nothing on CPU."""
        ...


class WeightSync(Protocol):
    """Resharding from the policy to the generator."""

    def push(self) -> SyncReport:
        """Wake the generator, stream all weights into it, reset its prefix cache; the first time score a probe on both.

        Raises:
            errors.SyncError: trainer and engine disagree on the probe.
        """
        ...

    def check(self, sums: Mapping[str, float], batches: Sequence[MicroBatch], where: str) -> None:
        """Compare trainer and engine on the tokens that the engine sampled since the last push.

        Args:
            sums: of the loss function over an update, before its optimizer step; the same on every rank.
            batches: this rank's part of it.
            where: step and update, for the error.

        Raises:
            errors.SyncError: they disagree, with the likely cause. On every rank.
        """
        ...
