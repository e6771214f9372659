"""The pure tensor operations: against indices written out by hand, and as inverses of each other."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_bridge.ops import merge, shard, split, unshard

sizes = st.integers(1, 4)


def test_qkv_rows_are_ordered_by_group() -> None:
    """2 groups of 2 query heads, head size 1: q0 q1 k0 v0 q2 q3 k1 v1."""
    q, k, v = torch.tensor([0, 1, 2, 3]), torch.tensor([10, 11]), torch.tensor([20, 21])
    assert merge("qkv", [q, k, v], head_dim=1).tolist() == [0, 1, 10, 20, 2, 3, 11, 21]


def test_gate_up_is_concatenated_and_copy_is_the_tensor() -> None:
    gate, up = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])
    assert merge("gate_up", [gate, up], head_dim=1)[:, 0].tolist() == [1, 2, 3, 4]
    assert merge("copy", [gate], head_dim=1) is gate


def test_stride_two_cuts_gate_and_up_each() -> None:
    full = torch.arange(8)  # gate 0..3, up 4..7
    assert shard(full, dim=0, stride=2, rank=0, size=2).tolist() == [0, 1, 4, 5]
    assert shard(full, dim=0, stride=2, rank=1, size=2).tolist() == [2, 3, 6, 7]
    assert shard(full, dim=0, stride=1, rank=1, size=2).tolist() == [4, 5, 6, 7]


@settings(deadline=None)
@given(groups=sizes, heads=sizes, head_dim=sizes, hidden=sizes, bias=st.booleans())
def test_split_inverts_merge(groups: int, heads: int, head_dim: int, hidden: int, bias: bool) -> None:
    tail = () if bias else (hidden,)
    q = torch.randn(groups * heads * head_dim, *tail)
    k, v = torch.randn(groups * head_dim, *tail), torch.randn(groups * head_dim, *tail)
    for part, back in zip((q, k, v), split("qkv", merge("qkv", [q, k, v], head_dim), head_dim, heads), strict=True):
        assert torch.equal(part, back)
    gate, up = torch.randn(2 * groups, *tail), torch.randn(2 * groups, *tail)
    assert all(map(torch.equal, split("gate_up", merge("gate_up", [gate, up], 1), 1, 1), (gate, up)))


@settings(deadline=None)
@given(size=sizes, stride=st.integers(1, 2), block=sizes, dim=st.integers(0, 1), other=sizes)
def test_unshard_inverts_shard(size: int, stride: int, block: int, dim: int, other: int) -> None:
    shape = [other, other]
    shape[dim] = size * stride * block
    full = torch.randn(shape)
    shards = [shard(full, dim, stride, rank, size) for rank in range(size)]
    assert all(one.shape[dim] == stride * block for one in shards)
    assert torch.equal(unshard(shards, dim, stride), full)


@settings(deadline=None)
@given(size=sizes, groups=sizes, heads=sizes, head_dim=sizes, hidden=sizes)
def test_merging_cut_parts_is_cutting_the_merged(
    size: int, groups: int, heads: int, head_dim: int, hidden: int
) -> None:
    """What lets a rank read only its slices: the cut commutes with qkv (stride 1) and gate_up (stride 2)."""
    q = torch.randn(size * groups * heads * head_dim, hidden)
    k, v = (torch.randn(size * groups * head_dim, hidden) for _ in range(2))
    gate, up = (torch.randn(size * groups, hidden) for _ in range(2))
    for rank in range(size):
        parts = [part.chunk(size)[rank] for part in (q, k, v)]
        assert torch.equal(merge("qkv", parts, head_dim), shard(merge("qkv", [q, k, v], head_dim), 0, 1, rank, size))
        parts = [part.chunk(size)[rank] for part in (gate, up)]
        assert torch.equal(merge("gate_up", parts, 1), shard(merge("gate_up", [gate, up], 1), 0, 2, rank, size))
