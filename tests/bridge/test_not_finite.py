"""Numbers that are not finite, with real Megatron-Core: no weight moves, and no checkpoint is made of broken ones."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from da3po_cli.config.models import DEMO_MODEL
from da3po_cli.config.schema import Config, ModelConfig, TrainConfig
from da3po_cli.errors import DivergedError

pytestmark = pytest.mark.slow


@pytest.fixture
def policy(single):
    from da3po_cli.training.build import make_policy

    config = replace(Config(), model=ModelConfig(path="demo", dtype="float32"), train=TrainConfig(lr=1e-2))
    return make_policy(config, DEMO_MODEL, single)


def batch():
    """Two sequences, every token but the first a response."""
    import torch

    from da3po_cli.algos.types import MicroBatch

    tokens = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 8, 7, 6, 5, 4]])
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, -1] = False
    return MicroBatch(tokens, tokens.roll(-1, dims=1) * mask, mask, torch.ones(2), torch.zeros(tokens.shape))


def state(policy):
    """All weights and moments, and the number of steps."""
    parts = policy.optimizer.chained_optimizers
    moments = [value for part in parts for one in part.optimizer.state.values() for value in one.values()]
    return [tensor.clone() for _, tensor in policy.iter_hf_weights()] + [tensor.clone() for tensor in moments]


@pytest.mark.parametrize("where", ["loss", "gradient", "log-probs"])
def test_an_update_is_skipped_and_nothing_moves(policy, where):
    """Also where the gradient is finite: a log-prob of -inf has one behind a clamp."""
    import torch

    def loss(logprobs, entropy, one):
        total = (logprobs * one.mask).sum() / 10
        worst = (logprobs * one.mask).sum().detach() - math.inf
        if where == "log-probs":
            return -total, {"logp_sum": worst}
        if where == "gradient":
            return -(total - total.detach()).sqrt(), {"logp_sum": total.detach()}  # 1 / sqrt(0)
        return -total * math.nan, {"logp_sum": total.detach()}

    before = state(policy)
    update = policy.update([batch()], loss)
    assert update.skipped
    assert math.isfinite(update.grad_norm) == (where == "log-probs")
    assert math.isfinite(update.loss) == (where != "loss")
    assert all(torch.equal(*pair) for pair in zip(before, state(policy), strict=True))
    good = policy.update([batch()], lambda logprobs, entropy, one: (-(logprobs * one.mask).sum() / 10, {}))
    assert not good.skipped
    assert not all(torch.equal(*pair) for pair in zip(before, state(policy), strict=True))


def test_no_checkpoint_of_weights_that_are_not_finite(policy, tmp_path):
    import torch

    name, weight = next(iter(policy.chunks[0].named_parameters()))
    with torch.no_grad():
        weight[0, 0] = math.inf
    for save in (policy.save, policy.begin_save):
        with pytest.raises(DivergedError, match="not finite, so no checkpoint is written") as caught:
            save(tmp_path / "policy")
        assert name.removeprefix("module.") in caught.value.message
        assert caught.value.exit_code == 5
    assert not (tmp_path / "policy").exists()
