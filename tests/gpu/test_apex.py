"""NVIDIA Apex, where it is installed: the fused norm against torch's, and that the optimizer takes its Adam."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu


def need_apex() -> None:
    from megatron_bridge.backends import apex_kind

    kind = apex_kind()
    if kind != "nvidia":
        pytest.skip("the `apex` of PyPI is another project" if kind else "NVIDIA Apex is not installed")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fused_norm(parallel: Any, small: Path, dtype: str) -> None:
    need_apex()
    import torch

    from da3po_cli.config.schema import ParallelConfig
    from megatron_bridge.arch import read_arch
    from megatron_bridge.backends import RMSNorm
    from megatron_bridge.model import DTYPES, transformer_config

    kind = DTYPES[dtype]
    config = transformer_config(read_arch(small), kind, parallel, ParallelConfig(), {})
    norm = RMSNorm(config, 256, eps=1e-6).to("cuda", kind)
    assert norm.fused
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 1.5, 256))
    x = torch.randn(64, 256, device="cuda", dtype=kind, requires_grad=True)
    found = torch.autograd.grad(norm(x).float().square().sum(), [x, norm.weight])
    exact = x.detach().double().requires_grad_()
    weight = norm.weight.detach().double().requires_grad_()
    want = torch.autograd.grad(
        torch.nn.functional.rms_norm(exact, (256,), weight, 1e-6).square().sum(), [exact, weight]
    )
    tolerance = 1e-4 if dtype == "float32" else 3e-2
    for got, right in zip(found, want, strict=True):
        assert float((got.double() - right).norm() / right.norm()) < tolerance


def test_adam(build: Any, small: Path) -> None:
    need_apex()
    if importlib.util.find_spec("transformer_engine") is not None:
        pytest.skip("with TransformerEngine, Megatron takes that one's Adam")
    adam = type(build(small, "local").optimizer.chained_optimizers[0].optimizer)
    assert (adam.__module__.partition(".")[0], adam.__name__) == ("apex", "FusedAdam")
