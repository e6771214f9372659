"""Pure tensor operations between Hugging Face's layout of a weight and Megatron's.

An op relates one Megatron parameter to one or more Hugging Face tensors:

    copy     the same tensor.
    qkv      q, k, v -> rows ordered by query group: for each group its NH/G query heads, one key head, one value head.
    gate_up  gate, up -> [gate; up].

Tensor parallelism cuts every part along the same axis before the merge (whole query groups; gate and up each), so
`merge` of the cut parts is the shard, and the same functions serve full tensors and shards.

Shapes: NH query heads, G query groups (key/value heads), D head size, H hidden size, FF feed-forward size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Op = Literal["copy", "qkv", "gate_up"]


def merge(op: Op, parts: Sequence[Tensor], head_dim: int) -> Tensor:
    """Hugging Face tensors -> the Megatron parameter.

    Args:
        op: how they relate.
        parts: one tensor (copy), [q, k, v] or [gate, up]; 2-D weights or 1-D biases.
        head_dim: D; read by `qkv` only.
    """
    if op == "copy":
        (part,) = parts
        return part
    if op == "gate_up":
        return torch.cat(list(parts), dim=0)
    q, k, v = parts
    groups, tail = k.shape[0] // head_dim, list(k.shape[1:])
    blocks = [part.reshape([groups, -1, *tail]) for part in (q, k, v)]  # [G, NH/G * D | D | D, ...]
    return torch.cat(blocks, dim=1).reshape([-1, *tail])


def split(op: Op, tensor: Tensor, head_dim: int, heads_per_group: int) -> list[Tensor]:
    """The Megatron parameter -> Hugging Face tensors; the inverse of `merge`.

    Args:
        op: how they relate.
        tensor: the parameter or one tensor-parallel shard of it.
        head_dim: D.
        heads_per_group: NH / G.
    """
    if op == "copy":
        return [tensor]
    if op == "gate_up":
        return list(tensor.chunk(2, dim=0))
    tail = list(tensor.shape[1:])
    blocks = tensor.reshape([-1, (heads_per_group + 2) * head_dim, *tail])  # [G, (NH/G + 2) * D, ...]
    parts = torch.split_with_sizes(blocks, [heads_per_group * head_dim, head_dim, head_dim], dim=1)
    return [part.reshape([-1, *tail]) for part in parts]


def shard(tensor: Tensor, dim: int, stride: int, rank: int, size: int) -> Tensor:
    """Rank `rank` of `size`'s piece of a full Megatron parameter.

    The full tensor is cut along `dim` into size * stride blocks and the rank takes blocks rank, rank + size, ...
    (Megatron's `partition_dim` and `partition_stride`; stride 2 cuts gate and up each).
    """
    blocks = tensor.chunk(size * stride, dim=dim)
    return torch.cat(blocks[rank::size], dim=dim)


def unshard(shards: Sequence[Tensor], dim: int, stride: int) -> Tensor:
    """The full Megatron parameter from the shards of all ranks; the inverse of `shard`."""
    pieces = [one.chunk(stride, dim=dim) for one in shards]
    return torch.cat([piece[block] for block in range(stride) for piece in pieces], dim=dim)
