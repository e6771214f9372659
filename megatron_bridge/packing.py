"""Sequences packed end to end: no forward pass spends anything on padding.

The algorithms see micro-batches as padded [B, S] tensors; the model sees one row of T tokens, and every sequence
attends to itself only (Megatron's "thd" format).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from da3po_cli.algos.types import MicroBatch


@dataclass
class Sequences(PackedSeqParams):
    """Megatron's parameters of a packed row, with the sequences' lengths where the host can read them."""

    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Packed:
    """A micro-batch as the model reads it: one row of T tokens."""

    tokens: Tensor  # int64 [1, T]
    targets: Tensor  # int64 [1, T]
    positions: Tensor  # int64 [1, T], from 0 in every sequence
    sequences: Sequences
    cells: Tensor  # int64 [tokens that are not filling], their places in the flattened [B, S]

    def unpack(self, values: Tensor, shape: torch.Size) -> Tensor:
        """[1, T] -> [B, S], 0 where the model saw no token; gradients pass."""
        flat = values.new_zeros(shape.numel())
        return flat.index_put((self.cells,), values[0, : self.cells.numel()]).view(shape)


def row_lengths(batch: MicroBatch) -> Tensor:
    """Tokens of each row [B] that some log-prob depends on: those up to the last position with a target."""
    return (batch.mask * torch.arange(1, batch.mask.shape[1] + 1)).amax(dim=1)


def packed_length(batch: MicroBatch, multiple: int) -> int:
    """The T of a micro-batch: its tokens, filled up to a multiple of what kernels or sequence parallelism ask for."""
    return max(1, -(-int(row_lengths(batch).sum()) // multiple)) * multiple


def pack(batch: MicroBatch, total: int, device: torch.device, lengths_on: torch.device) -> Packed:
    """Pack a micro-batch into `total` tokens.

    Rows go longest first, so that neighbours are of like length. What fills up is a sequence of its own.

    Args:
        total: T, at least `packed_length`.
        lengths_on: where the attention wants the cumulative lengths.
    """
    width = batch.tokens.shape[1]
    lengths = row_lengths(batch)
    order = torch.argsort(lengths, descending=True, stable=True)
    real = [length for length in lengths[order].tolist() if length]
    filling = total - sum(real)
    all_lengths = (*real, filling) if filling else tuple(real)
    places = [row * width + torch.arange(n) for row, n in zip(order.tolist(), real, strict=False)]
    cells = torch.cat(places or [order[:0]])
    tokens = F.pad(batch.tokens.flatten()[cells], (0, filling))
    targets = F.pad(batch.targets.flatten()[cells], (0, filling))
    positions = torch.cat([torch.arange(length) for length in all_lengths])
    ends = torch.tensor([0, *accumulate(all_lengths)], dtype=torch.int32, device=lengths_on)
    longest = max(all_lengths)
    sequences = Sequences(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        lengths=all_lengths,
    )
    tokens, targets, positions, cells = (x.to(device, non_blocking=True) for x in (tokens, targets, positions, cells))
    return Packed(tokens[None], targets[None], positions[None], sequences, cells)


class PackedAttention(MegatronModule):
    """`packed_attention` in place of Megatron's DotProductAttention: same constructor, same call."""

    def __init__(self, config: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config=config)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *args: Any, packed_seq_params: Sequences, **kwargs: Any
    ) -> Tensor:
        """query [T, NH, D], key and value [T, G, D] (per rank) -> [T, NH * D]."""
        return packed_attention(query, key, value, packed_seq_params.lengths)


def packed_attention(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]) -> Tensor:
    """Causal attention within each of the packed sequences, by torch's fused kernel.

    The same as one pass with a block-diagonal causal mask, without its T x T cost: neighbours whose lengths lie
    between the same powers of two go through the kernel together, padded on the right to the longest of them, where
    causality keeps the padding out of every real position.

    Args:
        query: [T, NH, D].
        key, value: [T, G, D], NH a multiple of G.
        lengths: of the sequences; they add up to T.

    Returns:
        [T, NH * D].
    """
    out, start = [], 0
    for _, run in groupby(lengths, key=int.bit_length):
        alike = list(run)
        stop = start + sum(alike)
        out.append(_together(query[start:stop], key[start:stop], value[start:stop], alike))
        start = stop
    return torch.cat(out)


def _together(query: Tensor, key: Tensor, value: Tensor, lengths: list[int]) -> Tensor:
    """`packed_attention` in one call of the kernel, over [n, heads, S, D]."""
    q, k, v = (pad_sequence(list(x.split(lengths)), batch_first=True).transpose(1, 2) for x in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    rows = out.transpose(1, 2).flatten(2)  # [n, S, NH * D]
    return torch.cat([row[:length] for row, length in zip(rows, lengths, strict=True)])
