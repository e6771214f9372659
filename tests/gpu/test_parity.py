"""Log-probs on the GPU against transformers there: float32 to rounding, bf16 as close as transformers' own bf16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

MODELS = [("qwen3", True), ("qwen2", False), ("llama", True)]


@pytest.fixture(scope="module", params=MODELS, ids=[f"{family}-{'tied' * tied or 'untied'}" for family, tied in MODELS])
def model(request: pytest.FixtureRequest, small_of: Any) -> Path:
    return small_of(*request.param)


def test_float32(build: Any, model: Path, batches: Any, reference: Any, record_property: Any) -> None:
    (batch,) = batches()
    gap = (build(model, "local", "float32").logprobs([batch])[0] - reference(model, batch, "float32")).abs().max()
    record_property("max gap", f"{float(gap):.1e}")
    assert float(gap) < 2e-3


@pytest.mark.parametrize("layers", ["te", "local"])
def test_bf16(build: Any, model: Path, batches: Any, reference: Any, layers: str, record_property: Any) -> None:
    """Both are compared with float32, so the tolerance is transformers' own rounding."""
    (batch,) = batches()
    exact, theirs = reference(model, batch, "float32"), reference(model, batch, "bfloat16")
    ours = build(model, layers).logprobs([batch])[0]
    error, their_error = ((one - exact).abs()[batch.mask].mean().item() for one in (ours, theirs))
    record_property("mean gap", f"{error:.1e} (transformers {their_error:.1e})")
    assert error < 2 * their_error + 1e-3
