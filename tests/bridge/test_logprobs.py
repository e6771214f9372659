"""Log-probs, entropy and their gradient against torch's own, in float64."""

from __future__ import annotations

import pytest
import torch

from megatron_bridge import logprobs as module
from megatron_bridge.logprobs import token_logprobs


def reference(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    table = torch.log_softmax(logits.double() / temperature, dim=-1)
    entropy = torch.distributions.Categorical(logits=table).entropy()
    return table.gather(-1, targets[..., None])[..., 0], entropy


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("chunk", [1 << 24, 30])
def test_values_and_gradient(temperature: float, padding: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", chunk)
    torch.manual_seed(0)
    vocab = 13
    real = torch.randn(3, 5, vocab) * 4
    targets = torch.randint(0, vocab, (3, 5))
    weights = torch.randn(3, 5)
    # Padded columns hold the largest logits: they would take all the mass.
    logits = torch.cat([real, torch.full((3, 5, padding), 100.0)], dim=-1).requires_grad_()
    got, entropy = token_logprobs(logits, targets, temperature=temperature, vocab=vocab)
    exact = real.double().requires_grad_()
    want, want_entropy = reference(exact, targets, temperature)
    torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=2e-6)
    torch.testing.assert_close(entropy.double(), want_entropy, rtol=1e-6, atol=2e-6)
    assert got.dtype is entropy.dtype is torch.float32 and not entropy.requires_grad

    (got * weights).sum().backward()
    (want * weights).sum().backward()
    assert logits.grad is not None and exact.grad is not None
    torch.testing.assert_close(logits.grad[..., :vocab].double(), exact.grad, rtol=1e-5, atol=1e-6)
    assert logits.grad[..., vocab:].abs().sum() == 0


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[[1e4, -1e4, 0.0]]], requires_grad=True)
    got, entropy = token_logprobs(logits, torch.tensor([[1]]), temperature=0.5, vocab=3)
    assert got.item() == -4e4 and entropy.item() == 0.0
    got.sum().backward()
    assert logits.grad is not None and torch.isfinite(logits.grad).all()


def test_bfloat16_logits_are_summed_in_float32() -> None:
    logits = (torch.randn(2, 4, 1000) * 3).bfloat16()
    targets = torch.randint(0, 1000, (2, 4))
    got, entropy = token_logprobs(logits, targets, temperature=1.0, vocab=1000)
    want, want_entropy = reference(logits, targets, 1.0)
    torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(entropy.double(), want_entropy, rtol=1e-6, atol=1e-5)


def test_sequences_of_one_token_and_uniform_entropy() -> None:
    got, entropy = token_logprobs(torch.zeros(1, 1, 8), torch.zeros(1, 1, dtype=torch.int64), temperature=1.0, vocab=8)
    assert got.item() == pytest.approx(-torch.log(torch.tensor(8.0)).item())
    assert entropy.item() == pytest.approx(torch.log(torch.tensor(8.0)).item())
