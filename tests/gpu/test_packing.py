"""Packed sequences (THD) on the GPU: as one by one, and blind to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

KINDS = [("te", "bfloat16"), ("local", "bfloat16"), ("local", "float32")]


@pytest.mark.parametrize(("layers", "dtype"), KINDS)
def test_packed_equals_one_by_one(
    build: Any, small: Path, batches: Any, reference: Any, layers: str, dtype: str, record_property: Any
) -> None:
    policy = build(small, layers, dtype)
    (packed,) = batches(rows=8, per_batch=8)
    singles = batches(rows=8, per_batch=1)
    exact = reference(small, packed, "float32")
    together, alone = policy.logprobs([packed])[0], policy.logprobs(singles)
    gaps = [
        (together[row, : one.shape[1]] - one[0]).abs()[batch.mask[0]]
        for row, (one, batch) in enumerate(zip(alone, singles, strict=True))
    ]
    worst = max(float(gap.max()) for gap in gaps)
    noise = float((together - exact).abs().max())  # what this dtype rounds away
    record_property("max gap", f"{worst:.1e} (rounding {noise:.1e})")
    assert worst <= (1e-4 if dtype == "float32" else 2 * noise)


@pytest.mark.parametrize(("layers", "dtype"), KINDS)
def test_a_sequence_does_not_see_its_neighbours(build: Any, small: Path, batches: Any, layers: str, dtype: str) -> None:
    """Bit for bit: the shapes stay, and no row of a matrix product depends on another."""
    import torch

    policy = build(small, layers, dtype)
    (batch,) = batches()
    before = policy.logprobs([batch])[0]
    batch.tokens[0, :20] = (batch.tokens[0, :20] + 1) % 1000  # the longest sequence, so the first of the packed row
    after = policy.logprobs([batch])[0]
    assert torch.equal(before[1:], after[1:])
    assert not torch.equal(before[0], after[0])


@pytest.mark.parametrize(("layers", "dtype"), KINDS)
def test_cutting_the_batch_leaves_the_gradient(
    build: Any, small: Path, batches: Any, cross_entropy: Any, layers: str, dtype: str, record_property: Any
) -> None:
    import torch

    policy = build(small, layers, dtype)
    found = []
    for per_batch in (8, 2, 1):
        data = batches(rows=8, per_batch=per_batch)
        for chunk in policy.chunks:
            chunk.zero_grad_buffer()
        policy.accumulate(data, cross_entropy(sum(int(batch.mask.sum()) for batch in data)))
        found.append(torch.cat([param.main_grad.flatten() for param in policy.chunks[0].parameters()]))
    distance = max(float((one - found[0]).norm() / found[0].norm()) for one in found[1:])
    record_property("relative distance", f"{distance:.1e}")
    assert distance < (1e-4 if dtype == "float32" else 0.05)
