"""The values that travel through a training step.

Legend of shapes: G responses of one prompt (the group), B sequences of a micro-batch, S its padded length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # keeps `import da3po_cli.algos` free of torch
    from collections.abc import Callable

    import torch

    # (log-probs [B, S], entropy [B, S], batch) -> (loss, sums). The loss is already divided by the global denominators;
    # `sums` are scalars that may be added over micro-batches and data-parallel ranks.
    LossFn = Callable[[torch.Tensor, torch.Tensor, "MicroBatch"], tuple[torch.Tensor, dict[str, torch.Tensor]]]

DropReason = Literal["too_easy", "too_hard", "failed", "surplus"]
Verdict = Literal["correct", "wrong", "unknown"]


@dataclass(frozen=True)
class Prompt:
    """One problem as drawn from the data.

    `uid` is given at the draw and tells groups apart; the same row drawn in two epochs has two uids.
    """

    uid: str
    token_ids: tuple[int, ...]
    text: str
    answer: str
    source: str
    index: int


@dataclass
class Response:
    """One sampled answer; the fields below `finish_reason` are filled by grading and by the advantage stage."""

    token_ids: list[int]  # with the stop token, when one was sampled
    logprobs: list[float]  # of the rollout engine, one per token, of logits / temperature
    text: str  # without special tokens
    finish_reason: Literal["stop", "length", "failed"]
    verdict: Verdict = "unknown"  # unknown responses take no part in the group's statistics; advantage 0
    acc: int = 0  # 1 iff verdict is "correct"
    reward: float = 0.0  # +1 / -1 and shaping
    advantage: float = 0.0  # after DAA
    daa_weight: float = 1.0  # lambda (of the schedule) where amplified, else 1


@dataclass
class Group:
    """A prompt and its G responses; `drop_reason` is None for a group that is trained on."""

    prompt: Prompt
    responses: list[Response]
    drop_reason: DropReason | None = None
    first_solve: bool = False  # the first group of its row of the data, in this run, with a correct response
    step: int = 0  # in which it was sampled: from the weights before that step's first update

    @property
    def correct(self) -> int:
        """k, the number of correct responses."""
        return sum(response.acc for response in self.responses)

    @property
    def known(self) -> list[Response]:
        """The responses that the grader could judge; an unknown one is neither right nor wrong."""
        return [response for response in self.responses if response.verdict != "unknown"]

    @property
    def pass_rate(self) -> float:
        """p = k / G over the known responses; 0 when there is none."""
        return self.correct / max(1, len(self.known))


@dataclass
class Trajectory:
    """One response made ready for training: what the batcher and the trainer see."""

    prompt_ids: tuple[int, ...]
    response_ids: list[int]
    rollout_logprobs: list[float]
    advantage: float

    @property
    def length(self) -> int:
        """Tokens of prompt and response together."""
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass
class MicroBatch:
    """Right-padded sequences for one forward pass.

    Position t of a row predicts `targets[b, t] == tokens[b, t + 1]`; `mask` is True exactly where that target is a
    response token, so a row has as many True positions as its response has tokens.

    Attributes:
        tokens: int64 [B, S].
        targets: int64 [B, S]; 0 in the last position and in padding.
        mask: bool [B, S].
        advantages: float32 [B], one per sequence.
        rollout_logprobs: float32 [B, S], aligned with `targets`, 0 where mask is False.
        old_logprobs: float32 [B, S] of the trainer before this step's first update; None means exactly on-policy.
        ref_logprobs: float32 [B, S] of the frozen initial policy; None without a KL term.
        rows: index of each row among the step's trajectories.
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    mask: torch.Tensor
    advantages: torch.Tensor
    rollout_logprobs: torch.Tensor
    old_logprobs: torch.Tensor | None = None
    ref_logprobs: torch.Tensor | None = None
    rows: list[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class Denominators:
    """Global denominators of one mini-batch (all micro-batches, all data-parallel ranks)."""

    tokens: int  # response tokens
    sequences: int  # sequences with at least one response token
    norm_length: int  # the constant of "seq-mean-token-sum-norm" (Dr. GRPO): rollout.max_tokens


Metrics = dict[str, Any]
