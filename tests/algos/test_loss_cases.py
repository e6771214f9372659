"""The loss at one token: clipping, dual clip, clamps, the KL penalty and TIS, against closed forms."""

import math
from dataclasses import replace

import pytest
import torch

from da3po_cli.algos import ALGORITHMS
from da3po_cli.algos.batching import denominators
from da3po_cli.algos.losses import finish_metrics, k3, policy_loss
from da3po_cli.algos.types import MicroBatch, Trajectory


def config(name, **changes):
    return replace(ALGORITHMS[name].defaults, **changes)


def one_token(advantage, log_ratio, *, rollout_gap=0.0, ref_gap=None):
    """One row with one response token; the gaps are old - rollout and ref - current."""
    logp = torch.tensor([[-1.0, 5.0]], dtype=torch.float64, requires_grad=True)
    old = -1.0 - log_ratio
    batch = MicroBatch(
        tokens=torch.tensor([[1, 2]]),
        targets=torch.tensor([[2, 0]]),
        mask=torch.tensor([[True, False]]),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        rollout_logprobs=torch.tensor([[old - rollout_gap, 0.0]], dtype=torch.float64),
        old_logprobs=torch.tensor([[old, 0.0]], dtype=torch.float64),
        ref_logprobs=None if ref_gap is None else torch.tensor([[-1.0 + ref_gap, 0.0]], dtype=torch.float64),
    )
    return logp, batch


def run(algo, logp, batch, tis=False):
    """Loss, gradient at the one response token, and metrics."""
    counts = denominators([Trajectory((1,), [2], [0.0], 0.0)], 10)
    loss, sums = policy_loss(logp, batch, algo, counts, tis=tis, entropy=torch.full_like(logp, 2.0).detach())
    (grad,) = torch.autograd.grad(loss, logp)
    assert grad[0, 1] == 0
    return loss.item(), grad[0, 0].item(), finish_metrics({key: float(value) for key, value in sums.items()})


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "active", "metric"),
    [
        (1.0, 1.1, -1.1, True, None),
        (1.0, 1.5, -1.28, False, "clip_high"),
        (1.0, 0.5, -0.5, True, None),  # the clip never blocks the way back
        (-1.0, 0.9, 0.9, True, None),
        (-1.0, 0.5, 0.8, False, "clip_low"),
        (-1.0, 1.5, 1.5, True, None),
        (-1.0, 9.9, 9.9, True, None),
        (-1.0, 12.0, 10.0, False, "dual_clip"),
        (-0.5, 100.0, 5.0, False, "dual_clip"),
        (2.0, 12.0, -2.56, False, "clip_high"),  # the dual clip is for negative advantages only
        (0.0, 12.0, 0.0, None, None),
    ],
)
def test_clip_cases_of_dapo(advantage, ratio, loss, active, metric):
    value, grad, metrics = run(config("dapo"), *one_token(advantage, math.log(ratio)))
    assert value == pytest.approx(loss, rel=1e-12)
    assert grad == pytest.approx(-advantage * ratio if active else 0.0, rel=1e-12)
    shares = {name: metrics[f"train/{name}"] for name in ("clip_high", "clip_low", "dual_clip")}
    assert shares == {name: float(name == metric) for name in shares}


def test_without_dual_clip_a_large_ratio_is_not_bounded():
    assert run(config("grpo"), *one_token(-1.0, math.log(100.0)))[:2] == pytest.approx((100.0, 100.0))


@pytest.mark.parametrize("log_ratio", [25.0, 800.0, -25.0, -800.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_beyond_the_clamp_loss_is_finite_and_gradient_zero(advantage, log_ratio):
    value, grad, _ = run(config("grpo"), *one_token(advantage, log_ratio))
    expected = {(1, 1): -1.2, (1, -1): -math.exp(-20), (-1, 1): math.exp(20), (-1, -1): 0.8}
    assert value == pytest.approx(expected[math.copysign(1, advantage), math.copysign(1, log_ratio)], rel=1e-9)
    assert grad == 0


@pytest.mark.parametrize("gap", [-30.0, -3.0, -0.1, 0.0, 0.1, 2.0, 19.9])
def test_k3_value_and_gradient(gap):
    algo = config("grpo", kl_coef=0.5)
    value, grad, metrics = run(algo, *one_token(0.0, 0.0, ref_gap=gap))
    assert value == pytest.approx(0.5 * (math.expm1(gap) - gap), rel=1e-9, abs=1e-12)
    assert grad == pytest.approx(0.5 * (1 - math.exp(gap)), rel=1e-9, abs=1e-12)
    assert metrics["train/ref_kl"] == pytest.approx(2 * value, abs=1e-12)


def test_k3_far_above_the_cap_still_pulls_the_right_way():
    gap = torch.tensor([20.0, 25.0, 500.0], dtype=torch.float64, requires_grad=True)
    values = k3(gap)
    (grad,) = torch.autograd.grad(values.sum(), gap)
    assert values.isfinite().all()
    assert (values.diff() > 0).all()
    torch.testing.assert_close(grad, torch.full_like(grad, math.exp(20) - 1))


def test_kl_needs_reference_logprobs():
    with pytest.raises(ValueError, match=r"kl_coef is 0\.1"):
        run(config("grpo", kl_coef=0.1), *one_token(1.0, 0.0))


@pytest.mark.parametrize(
    ("gap", "weight"), [(0.0, 1.0), (math.log(1.5), 1.5), (math.log(5.0), 2.0), (-2.0, math.exp(-2))]
)
def test_tis_weight_is_truncated_and_has_no_gradient(gap, weight):
    value, grad, metrics = run(config("dapo"), *one_token(1.0, 0.1, rollout_gap=gap), tis=True)
    assert value == pytest.approx(-weight * math.exp(0.1))
    assert grad == pytest.approx(-weight * math.exp(0.1))
    assert metrics["train/tis"] == pytest.approx(weight)
    assert metrics["train/tis_capped"] == float(gap > math.log(2))
    assert metrics["train/rollout_gap"] == pytest.approx(abs(gap))
    assert metrics["train/rollout_far"] == float(abs(gap) > 1)
    assert metrics["train/rollout_kl"] == pytest.approx(math.expm1(gap) - gap, abs=1e-12)
    assert run(config("dapo"), *one_token(1.0, 0.1, rollout_gap=gap))[0] == pytest.approx(-math.exp(0.1))


def test_tis_on_policy_uses_the_current_logprobs_without_gradient():
    logp, batch = one_token(1.0, 0.0, rollout_gap=math.log(1.5))
    batch.old_logprobs = None
    value, grad, _ = run(config("dapo"), logp, batch, tis=True)
    assert (value, grad) == pytest.approx((-1.5, -1.5))


def test_tis_does_not_weigh_the_kl_term():
    algo = config("grpo", kl_coef=1.0)
    value, _, _ = run(algo, *one_token(0.0, 0.0, rollout_gap=3.0, ref_gap=1.0), tis=True)
    assert value == pytest.approx(math.e - 2)
