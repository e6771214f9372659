"""Log-probs and entropy from vocabulary-parallel logits.

Shapes: B sequences, S positions, V the model's vocabulary, P the padded columns that one tensor-parallel rank holds.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_CHUNK_ELEMENTS = 1 << 24  # float32 working copy of the logits: 64 MiB at a time


def token_logprobs(
    logits: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    vocab: int,
    tensor_rank: int = 0,
    tensor_group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target, and the entropy of each position, under softmax(logits / temperature).

    With x = logits / T over the V real columns of all ranks and m = max x, Z = sum exp(x - m):
    log p = x_target - m - log Z and H = log Z - sum exp(x - m) (x - m) / Z. Columns >= V are vocabulary padding: they
    take no probability and get no gradient.

    Args:
        logits: this rank's columns, [B, S, P], any float type.
        targets: token ids over the whole vocabulary, int64 [B, S].
        temperature: T > 0.
        vocab: V.
        tensor_rank: columns start at tensor_rank * P.
        tensor_group: the tensor-parallel group; None is one rank.

    Returns:
        (log-probs [B, S], entropy [B, S]), float32, the same on all ranks of the group. The log-probs carry the
        gradient; the entropy does not.
    """
    columns = logits.shape[-1]
    start = tensor_rank * columns
    real = min(max(vocab - start, 0), columns)
    group = tensor_group if tensor_group is not None and tensor_group.size() > 1 else None
    logprobs, entropy = _TokenLogprobs.apply(
        logits.reshape(-1, columns), targets.reshape(-1) - start, temperature, real, group
    )
    return logprobs.view(targets.shape), entropy.view(targets.shape)


class _TokenLogprobs(torch.autograd.Function):
    """logits [N, P], targets [N] relative to this rank's columns -> (log-probs [N], entropy [N])."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, real: int, group: dist.ProcessGroup | None
    ) -> tuple[Tensor, Tensor]:
        rows = logits.shape[0]
        peak = torch.full((rows,), -torch.inf, dtype=torch.float32, device=logits.device)
        if real:
            peak = logits[:, :real].amax(dim=-1).float() / temperature
        if group is not None:
            dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)

        sums = torch.zeros((3, rows), dtype=torch.float32, device=logits.device)  # Z, sum exp(x-m)(x-m), x_target - m
        mine = (targets >= 0) & (targets < real)
        column = targets.clamp(0, max(real - 1, 0))
        for part in _chunks(rows, real):
            x = logits[part, :real].float().div(temperature).sub_(peak[part, None])
            sums[2, part] = x.gather(1, column[part, None])[:, 0] * mine[part]
            weights = x.exp()
            sums[0, part] = weights.sum(dim=-1)
            sums[1, part] = weights.mul_(x).sum(dim=-1)
        if group is not None:
            dist.all_reduce(sums, group=group)
        log_z = sums[0].log()
        ctx.save_for_backward(logits, column, mine, peak + log_z)
        ctx.temperature, ctx.real = temperature, real
        entropy = log_z - sums[1] / sums[0]
        ctx.mark_non_differentiable(entropy)
        return sums[2] - log_z, entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _entropy: Tensor) -> tuple[Tensor, None, None, None, None]:  # type: ignore[override]
        """d log p / d logits = (onehot - softmax) / T."""
        logits, column, mine, normaliser = ctx.saved_tensors
        out = torch.zeros_like(logits) if ctx.real < logits.shape[1] else torch.empty_like(logits)
        scaled = grad / ctx.temperature
        for part in _chunks(logits.shape[0], ctx.real):
            x = logits[part, : ctx.real].float().div(ctx.temperature).sub_(normaliser[part, None])
            x.exp_().mul_(-scaled[part, None])
            x.scatter_add_(1, column[part, None], (scaled[part] * mine[part])[:, None])
            out[part, : ctx.real] = x.to(out.dtype)
        return out, None, None, None, None


def _chunks(rows: int, columns: int) -> list[slice]:
    """Slices of rows that bound the float32 working copy; none when there is no real column."""
    if not columns:
        return []
    step = max(1, _CHUNK_ELEMENTS // columns)
    return [slice(start, start + step) for start in range(0, rows, step)]
