"""FP8 training with TransformerEngine: every recipe that this GPU has kernels for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

# A product of E4M3 numbers (3 bits of mantissa) is off by 2^4 times as much as one of bf16 numbers (7 bits); some room.
COARSER = 64


@pytest.fixture(params=["tensorwise", "delayed", "blockwise", "mxfp8"])
def recipe(request: pytest.FixtureRequest, need_te: Any) -> str:
    """Every recipe that can run here."""
    import torch

    from da3po_cli.checks.layout import FP8_CAPABILITY

    need_te()
    major, minor = torch.cuda.get_device_capability()
    needed = FP8_CAPABILITY[request.param]
    if major + minor / 10 < needed:
        pytest.skip(f"{request.param} needs compute capability {needed}, this GPU has {major}.{minor}")
    return request.param


@pytest.mark.parametrize("format_", ["hybrid", "e4m3"])
def test_recipe(
    build: Any, small: Path, batches: Any, reference: Any, cross_entropy: Any, recipe: Any, format_: Any,
    record_property: Any,
) -> None:  # fmt: skip
    """FP8 is in use (not the numbers of bf16), as exact as its mantissa says, and learns."""
    import torch

    from da3po_cli.config.schema import Fp8Config, TrainConfig

    train = TrainConfig(lr=1e-3, warmup_steps=0)
    (batch,) = data = batches()
    exact = reference(small, batch, "float32")
    plain = build(small, "te").logprobs(data)[0]
    policy = build(small, "te", train=train, fp8=Fp8Config(format=format_, recipe=recipe))
    got = policy.logprobs(data)[0]
    error, plain_error = ((one - exact).abs()[batch.mask].mean().item() for one in (got, plain))
    record_property("mean gap", f"{error:.1e} (bf16 {plain_error:.1e})")
    assert not torch.equal(got, plain)
    assert error < COARSER * plain_error
    loss = cross_entropy(int(batch.mask.sum()))
    updates = [policy.update(data, loss) for _ in range(6)]
    assert not any(one.skipped for one in updates)
    assert updates[-1].loss < updates[0].loss - 0.1


def test_weights_kept_in_fp8_leave_as_bf16(
    build: Any, small: Path, batches: Any, cross_entropy: Any, recipe: Any
) -> None:
    """`fp8.param_gather`: what is exported and resharded is plain numbers, at most half an E4M3 step off the source.

    So it is after a step that is too small to be seen, which rounds them anew from the main parameters.
    """
    import torch
    from safetensors.torch import load_file

    from da3po_cli.config.schema import Fp8Config, TrainConfig

    fp8 = Fp8Config(format="hybrid", recipe=recipe, param_gather=True)
    policy = build(small, "te", train=TrainConfig(lr=1e-9, warmup_steps=0, weight_decay=0.0), fp8=fp8)
    source = load_file(small / "model.safetensors", device="cuda")
    data = batches()
    for updates in range(2):
        if updates:
            assert not policy.update(data, cross_entropy(int(data[0].mask.sum()))).skipped
        for name, tensor in policy.iter_hf_weights(include_tied_head=False):
            assert type(tensor) is torch.Tensor and tensor.dtype is torch.bfloat16
            want = source[name].float()
            off = (tensor.float() - want).abs()
            # relative 2^-4 plus bf16's 2^-8, or the smallest step of a tensor whose largest value is scaled to 224..448
            bound = want.abs() * (2**-4 + 2**-8) + want.abs().max() * 2**-8 / 448
            assert bool((off <= bound).all()), f"{name} after {updates} update(s)"
