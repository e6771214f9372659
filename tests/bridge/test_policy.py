"""The policy in a world of one rank: optimizer, schedule, skipping, checkpoint, reference weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from da3po_cli.algos.types import MicroBatch
from da3po_cli.config.schema import TrainConfig
from da3po_cli.errors import UsageError
from megatron_bridge import build_policy

# An epsilon well above rounding: with 1e-8 Adam makes full steps of gradients that are rounding errors.
TRAIN = TrainConfig(lr=1e-2, warmup_steps=0, weight_decay=0.1, grad_clip=0.5, adam_eps=1e-3)


def batch(seed: int = 0, rows: int = 4, length: int = 9) -> MicroBatch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 45, (rows, length), generator=generator)
    targets = torch.zeros_like(tokens)
    targets[:, :-1] = tokens[:, 1:]
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    mask[:, 3:-1] = True
    return MicroBatch(tokens, targets, mask, torch.ones(rows), torch.zeros(rows, length))


def cross_entropy(
    logprobs: torch.Tensor, entropy: torch.Tensor, one: MicroBatch
) -> tuple[torch.Tensor, dict[str, Any]]:
    return -(logprobs * one.mask).sum() / 20, {"tokens": one.mask.sum()}


def build(models: Path, single: Any, name: str = "qwen3-tied", train: TrainConfig = TRAIN, **options: Any) -> Any:
    options = {"dtype": "float32", "temperature": 1.0, "seed": 1, **options}
    return build_policy(models / name, parallel=single, train=train, **options)


def weights(policy: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.iter_hf_weights(include_tied_head=False)}


def test_steps_equal_torch_adamw_with_clipping(models: Path, single: Any) -> None:
    """Three updates against transformers, clip_grad_norm_ and AdamW with Megatron's groups: no decay on 1-D."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(models / "qwen3-tied", dtype=torch.float32)
    decayed = [param for param in model.parameters() if param.ndim > 1]
    plain = [param for param in model.parameters() if param.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(TRAIN.adam_beta1, TRAIN.adam_beta2),
        eps=TRAIN.adam_eps,
    )
    policy = build(models, single)
    for seed in range(3):
        one = batch(seed)
        optimizer.zero_grad()
        table = torch.log_softmax(model(one.tokens).logits, dim=-1)
        loss = -(table.gather(-1, one.targets[..., None])[..., 0] * one.mask).sum() / 20
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        update = policy.update([one], cross_entropy)
        assert update.loss == pytest.approx(loss.item(), rel=1e-5)
        assert update.grad_norm == pytest.approx(norm.item(), rel=1e-5)
        assert update.grad_norm > 0.5 and update.lr == 1e-2 and not update.skipped
        assert update.sums == {"tokens": 20.0}
    ours, want = weights(policy), dict(model.named_parameters())
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, want[name].detach(), rtol=0, atol=1e-5)


def test_one_two_and_four_micro_batches_give_the_same_gradient(models: Path, single: Any) -> None:
    whole = batch(rows=8)
    policy = build(models, single, train=TrainConfig(lr=0.0))
    runs = []
    for count in (1, 2, 4):
        fields = [
            [getattr(whole, key).chunk(count)[part] for key in ("tokens", "targets", "mask")] for part in range(count)
        ]
        cuts = [MicroBatch(*one, torch.ones(8 // count), torch.zeros(one[0].shape)) for one in fields]
        update = policy.update(cuts, cross_entropy)
        grads = torch.cat([param.main_grad.flatten() for param in policy.chunks[0].parameters()])
        runs.append((update, grads.clone()))
    for update, grads in runs[1:]:
        assert update.loss == pytest.approx(runs[0][0].loss, rel=1e-6)
        assert update.grad_norm == pytest.approx(runs[0][0].grad_norm, rel=1e-6)
        assert float((grads - runs[0][1]).norm() / runs[0][1].norm()) < 1e-6


def test_warmup_is_linear_over_rollout_steps_then_constant(models: Path, single: Any) -> None:
    policy = build(models, single, train=TrainConfig(lr=1.0, warmup_steps=4))
    rates = []
    for _ in range(6):
        rates.append(policy.schedule.lr)
        assert {group["lr"] for group in policy.optimizer.param_groups} == {rates[-1]}
        policy.advance_schedule()
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(models: Path, single: Any, bad: float) -> None:
    policy, twin = build(models, single), build(models, single)
    for one in (policy, twin):
        one.update([batch()], cross_entropy)
    before = weights(policy)

    def broken(logprobs: torch.Tensor, entropy: torch.Tensor, one: MicroBatch) -> tuple[torch.Tensor, dict[str, Any]]:
        return logprobs.sum() * bad, {}

    update = policy.update([batch()], broken)
    assert update.skipped and not math.isfinite(update.grad_norm)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(policy).items())
    assert policy.update([batch(1)], cross_entropy) == twin.update([batch(1)], cross_entropy)


def test_a_fresh_policy_can_be_saved_and_loaded(models: Path, single: Any, tmp_path: Path) -> None:
    """Fault 1 of Megatron's optimizer: no state before the first step."""
    policy, other = build(models, single), build(models, single)
    policy.save(tmp_path / "fresh")
    other.update([batch()], cross_entropy)
    other.load(tmp_path / "fresh")
    assert other.update([batch(1)], cross_entropy) == policy.update([batch(1)], cross_entropy)
    assert all(map(torch.equal, weights(policy).values(), weights(other).values()))


def test_loading_keeps_one_step_counter_per_parameter(models: Path, single: Any, tmp_path: Path) -> None:
    """Faults 2 and 3: the step is restored, and counts once per update, not once per parameter."""
    policy = build(models, single)
    for seed in range(2):
        policy.update([batch(seed)], cross_entropy)
        policy.advance_schedule()
    policy.save(tmp_path / "two")
    straight = [policy.update([batch(seed)], cross_entropy) for seed in (2, 3, 4)]
    resumed = build(models, single)
    resumed.load(tmp_path / "two")
    assert [resumed.update([batch(seed)], cross_entropy) for seed in (2, 3, 4)] == straight
    inner = resumed.optimizer.chained_optimizers[0].optimizer
    assert {float(state["step"]) for state in inner.state.values()} == {5.0}
    assert resumed.schedule.position == 2


def test_random_state_comes_back(models: Path, single: Any, tmp_path: Path) -> None:
    policy = build(models, single)
    policy.save(tmp_path / "rng")
    drawn = torch.rand(3)
    torch.rand(5)
    policy.load(tmp_path / "rng")
    assert torch.equal(torch.rand(3), drawn)


def test_no_checkpoint_to_load(models: Path, single: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no policy checkpoint in"):
        build(models, single).load(tmp_path)


def test_reference_must_be_asked_for(models: Path, single: Any) -> None:
    policy = build(models, single, with_reference=True)
    initial = policy.logprobs([batch()])
    policy.update([batch()], cross_entropy)
    after = weights(policy)
    assert torch.equal(policy.logprobs([batch()], reference=True)[0], initial[0])
    assert not torch.equal(policy.logprobs([batch()])[0], initial[0])
    assert all(torch.equal(after[name], tensor) for name, tensor in weights(policy).items())
    assert policy.logprobs([]) == []
    with pytest.raises(RuntimeError, match="with_reference"):
        build(models, single).logprobs([batch()], reference=True)


def test_llama3_rope_scaling(models: Path, single: Any) -> None:
    """Over 200 positions, where the scaled frequencies differ by far more than the tolerance."""
    from transformers import AutoModelForCausalLM

    one = batch(rows=2, length=200)
    model = AutoModelForCausalLM.from_pretrained(models / "llama3-rope", dtype=torch.float64)
    with torch.no_grad():
        table = torch.log_softmax(model(one.tokens).logits, dim=-1)
    want = table.gather(-1, one.targets[..., None])[..., 0] * one.mask
    got = build(models, single, "llama3-rope").logprobs([one])[0]
    torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-5)


def test_recomputation_gives_the_same_update(models: Path, single: Any) -> None:
    plain = build(models, single).update([batch()], cross_entropy)
    recomputed = build(models, single, train=TrainConfig(**{**vars(TRAIN), "recompute": True}))
    assert recomputed.update([batch()], cross_entropy) == plain


def test_the_shim_leaves_torch_as_it_was() -> None:
    from megatron_bridge.cpu import cpu_device

    names = ["zeros", "empty", "tensor"]
    before = [getattr(torch, name) for name in names]
    with pytest.raises(ValueError), cpu_device(), cpu_device():
        assert torch.zeros(2, device="cuda").device.type == "cpu"
        assert torch.zeros(1).type() == "torch.cuda.FloatTensor"
        assert torch.cuda.current_device() == "cpu"
        raise ValueError
    assert [getattr(torch, name) for name in names] == before
    assert torch.zeros(1).type() == "torch.FloatTensor"
    assert "cuda" not in vars(torch.Tensor) and "type" not in vars(torch.Tensor)


def test_the_checkpoint_of_another_model_is_refused(models: Path, single: Any, tmp_path: Path) -> None:
    """Qwen2 has no norms of queries and keys."""
    build(models, single, "qwen2-tied").save(tmp_path / "policy")
    with pytest.raises(UsageError, match="is not of this model") as caught:
        build(models, single, "qwen3-tied").load(tmp_path / "policy")
    assert caught.value.where == str(tmp_path / "policy")


def test_main_parameters_of_fp8_weights_come_from_the_file() -> None:
    """TransformerEngine's interface: what an FP8 parameter was made from, until an optimizer has taken it."""
    from megatron_bridge.weights import _set_origin

    param: Any = torch.nn.Parameter(torch.zeros(2))
    _set_origin(param, torch.tensor([1.0, 2.0]))  # not an FP8 parameter
    kept: list[torch.Tensor | None] = [torch.full((2,), math.nan)]
    param.get_high_precision_init_val = lambda: kept[0]
    _set_origin(param, torch.tensor([1.0, 2.0]))
    assert kept[0] is not None and kept[0].tolist() == [1.0, 2.0]
    kept[0] = None
    _set_origin(param, torch.tensor([1.0, 2.0]))
