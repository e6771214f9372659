"""Packed rows: what goes in comes out, attention equals a block-diagonal mask, and nothing depends on the filling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from da3po_cli.algos.batching import collate
from da3po_cli.algos.types import MicroBatch, Trajectory

CPU = torch.device("cpu")


def trajectories(lengths: list[tuple[int, int]]) -> list[Trajectory]:
    """(prompt, response) tokens; every token has a value of its own."""
    ids = iter(range(1, 1000))
    return [
        Trajectory(
            tuple(next(ids) for _ in range(prompt)),
            [next(ids) for _ in range(response)],
            [0.0] * response,
            1.0,
        )
        for prompt, response in lengths
    ]


def batch(lengths: list[tuple[int, int]]) -> MicroBatch:
    return collate(trajectories(lengths), range(len(lengths)))


@pytest.mark.parametrize("multiple", [1, 2, 16, 128])
def test_every_position_with_a_target_is_packed_once(multiple: int) -> None:
    from megatron_bridge.packing import pack, packed_length

    one = batch([(2, 3), (4, 1), (1, 9), (3, 0)])
    total = packed_length(one, multiple)
    needed = (2 + 3 - 1) + (4 + 1 - 1) + (1 + 9 - 1)  # the last token of a row predicts nothing; the last row nothing
    assert total == -(-needed // multiple) * multiple
    packed = pack(one, total, CPU, CPU)
    assert packed.tokens.shape == packed.targets.shape == packed.positions.shape == (1, total)
    lengths = packed.sequences.lengths
    assert sum(lengths) == total and list(lengths[:3]) == [9, 4, 4]
    assert packed.sequences.cu_seqlens_q.tolist() == [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    assert packed.sequences.cu_seqlens_q.dtype == torch.int32
    assert packed.sequences.max_seqlen_q == max(lengths)
    start = 0
    for length in lengths:
        assert packed.positions[0, start : start + length].tolist() == list(range(length))
        start += length
    unpacked = packed.unpack(packed.targets, one.targets.shape)
    assert torch.equal(unpacked * one.mask, one.targets * one.mask)
    assert torch.equal(packed.unpack(packed.tokens, one.tokens.shape) * one.mask, one.tokens * one.mask)


def test_a_batch_without_targets_is_all_filling() -> None:
    from megatron_bridge.packing import pack, packed_length

    nothing = collate([], [])
    assert packed_length(nothing, 16) == 16
    packed = pack(nothing, 16, CPU, CPU)
    assert packed.sequences.lengths == (16,)
    assert packed.unpack(torch.ones(1, 16), nothing.tokens.shape).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("lengths", [[7], [5, 5], [9, 8, 4, 3, 3, 1, 1, 6], [1, 64, 2]])
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (4, 1)])
def test_attention_equals_a_block_diagonal_causal_mask(lengths: list[int], heads: int, groups: int) -> None:
    """Output and gradients, in float64, against one dense pass with the mask written out."""
    from megatron_bridge.packing import packed_attention

    torch.manual_seed(0)
    total, size = sum(lengths), 8
    q, k, v = (
        torch.randn(total, count, size, dtype=torch.float64, requires_grad=True) for count in (heads, groups, groups)
    )
    block = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = (block[:, None] == block[None, :]) & torch.ones(total, total, dtype=torch.bool).tril()
    dense = F.scaled_dot_product_attention(
        q.transpose(0, 1),
        k.transpose(0, 1).repeat_interleave(heads // groups, 0),
        v.transpose(0, 1).repeat_interleave(heads // groups, 0),
        attn_mask=mask,
    )
    want = dense.transpose(0, 1).reshape(total, -1)
    weights = torch.randn_like(want)
    want_grads = torch.autograd.grad((want * weights).sum(), (q, k, v))

    got = packed_attention(q, k, v, lengths)
    grads = torch.autograd.grad((got * weights).sum(), (q, k, v))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    for one, other in zip(grads, want_grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_filling_changes_nothing(models: Path, single: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As FP8 and sequence parallelism fill up rows: log-probs, loss and gradients stay."""
    from da3po_cli.config.schema import TrainConfig
    from megatron_bridge import build_policy
    from megatron_bridge.backends import Local

    small = [Trajectory((3, 1, 4), [1, 5, 9][:n], [0.0] * n, 1.0) for n in (3, 1, 2)]
    one = collate(small, range(3))

    def loss(logprobs: torch.Tensor, entropy: torch.Tensor, batch: MicroBatch) -> Any:
        return -(logprobs * batch.mask).sum(), {}

    runs = []
    for multiple in (1, 32):
        monkeypatch.setattr(Local, "token_multiple", lambda self, _, multiple=multiple: multiple)
        policy = build_policy(
            models / "qwen3-tied",
            dtype="float32",
            parallel=single,
            train=TrainConfig(lr=0.0),
            temperature=1.0,
            seed=1,
        )
        logprobs = policy.logprobs([one])[0]
        update = policy.update([one], loss)
        grads = torch.cat([param.main_grad.flatten() for param in policy.chunks[0].parameters()])
        runs.append((logprobs, update.loss, grads.clone()))
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=0, atol=1e-6)
    assert runs[0][1] == pytest.approx(runs[1][1], rel=1e-6)
    assert float((runs[0][2] - runs[1][2]).norm() / runs[0][2].norm()) < 1e-5
