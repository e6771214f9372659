"""Training on one NCCL rank: a step against torch's own AdamW, learning in bf16, checkpoints."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

LAYERS = ["te", "local"]


def tokens_of(batches: list[Any]) -> int:
    return sum(int(batch.mask.sum()) for batch in batches)


def adam_of(policy: Any) -> str:
    kind = type(policy.optimizer.chained_optimizers[0].optimizer)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def test_nccl(parallel: Any) -> None:
    import torch
    import torch.distributed as dist

    assert parallel.device.type == "cuda"
    assert "nccl" in str(dist.get_backend_config())
    one = torch.ones(3, device=parallel.device)
    dist.all_reduce(one)  # a world of one: nothing changes, but NCCL must come up
    torch.cuda.synchronize()
    assert one.tolist() == [1.0, 1.0, 1.0]


def test_float32_steps_equal_torch_adamw(
    build: Any, small: Path, batches: Any, cross_entropy: Any, record_property: Any
) -> None:
    """Two updates of the local layers in float32 against transformers, clip_grad_norm_ and AdamW."""
    import torch
    from transformers import AutoModelForCausalLM

    from da3po_cli.config.schema import TrainConfig

    train = TrainConfig(lr=1e-3, warmup_steps=0, weight_decay=0.1, grad_clip=0.5, adam_eps=1e-3)
    policy = build(small, "local", "float32", train)
    model = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32).cuda()
    groups = [
        {"params": [p for p in model.parameters() if (p.ndim > 1) is decayed], "weight_decay": 0.1 * decayed}
        for decayed in (True, False)
    ]
    adam = torch.optim.AdamW(groups, lr=1e-3, betas=(train.adam_beta1, train.adam_beta2), eps=1e-3)
    for seed in range(2):
        (batch,) = batches(seed=seed)
        tokens = tokens_of([batch])
        adam.zero_grad()
        table = torch.log_softmax(model(batch.tokens.cuda()).logits, dim=-1)
        picked = table.gather(-1, batch.targets[..., None].cuda())[..., 0]
        loss = -(picked * batch.mask.cuda()).sum() / tokens
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        adam.step()
        update = policy.update([batch], cross_entropy(tokens))
        assert update.loss == pytest.approx(loss.item(), rel=1e-4)
        assert update.grad_norm == pytest.approx(norm.item(), rel=1e-3)
    want = dict(model.named_parameters())
    for name, tensor in policy.iter_hf_weights(include_tied_head=False):
        torch.testing.assert_close(tensor, want[name].detach(), rtol=0, atol=1e-4)
    record_property("adam", adam_of(policy))


@pytest.mark.parametrize("layers", LAYERS)
def test_bf16_gradient_is_that_of_float32(
    build: Any, small: Path, batches: Any, cross_entropy: Any, layers: str, record_property: Any
) -> None:
    """The gradient as a whole, [all weights]: its angle to float32's, from torch's autograd, is small."""
    import torch
    from transformers import AutoModelForCausalLM

    (batch,) = batches()
    tokens = tokens_of([batch])
    model = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32).cuda()
    table = torch.log_softmax(model(batch.tokens.cuda()).logits, dim=-1)
    picked = table.gather(-1, batch.targets[..., None].cuda())[..., 0]
    (-(picked * batch.mask.cuda()).sum() / tokens).backward()
    policy = build(small, layers)
    for chunk in policy.chunks:
        chunk.zero_grad_buffer()
    policy.accumulate([batch], cross_entropy(tokens))
    dot = ours = theirs = 0.0
    grads = {name: param.grad.double() for name, param in model.named_parameters()}
    for name, tensor in policy.exporter.tensors(include_tied_head=False, values=lambda param: param.main_grad):
        got, want = tensor.double(), grads[name]
        dot, ours, theirs = dot + (got * want).sum(), ours + got.square().sum(), theirs + want.square().sum()
    cosine = float(dot / (ours * theirs).sqrt())
    record_property("cosine", f"{cosine:.5f}")
    assert cosine > 0.99
    assert float(ours.sqrt() / theirs.sqrt()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("layers", LAYERS)
def test_bf16_learns(
    build: Any, wide: Path, batches: Any, cross_entropy: Any, layers: str, recompute: bool, record_property: Any
) -> None:
    """0.6 B parameters memorise eight sequences, and how fast."""
    import torch

    from da3po_cli.config.schema import TrainConfig

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    policy = build(wide, layers, train=TrainConfig(lr=3e-4, warmup_steps=0, recompute=recompute))
    data = batches(rows=8, length=1024, vocab=20000, per_batch=4)
    loss = cross_entropy(tokens_of(data))
    updates = [policy.update(data, loss) for _ in range(3)]
    torch.cuda.synchronize()
    start = time.perf_counter()
    updates += [policy.update(data, loss) for _ in range(3)]
    seconds = time.perf_counter() - start
    assert not any(one.skipped for one in updates)
    assert updates[-1].loss < updates[0].loss - 0.2
    record_property("tokens/s", f"{3 * tokens_of(data) / seconds:,.0f}")
    record_property("peak", f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    record_property("adam", adam_of(policy))


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("background", [False, True])
def test_a_resume_goes_on(
    build: Any, small: Path, batches: Any, cross_entropy: Any, layers: str, background: bool, tmp_path: Path
) -> None:
    """Some kernels add in another order each time, so this is close, not equal as on a CPU."""
    import torch

    from da3po_cli.config.schema import TrainConfig

    train = TrainConfig(lr=1e-3, warmup_steps=0)
    data = [batches(seed=seed) for seed in range(4)]
    loss = cross_entropy(tokens_of(data[0]))
    policy = build(small, layers, train=train)
    for one in data[:2]:
        policy.update(one, loss)
    saving = policy.begin_save(tmp_path / "two") if background else policy.save(tmp_path / "two")
    straight = [policy.update(one, loss) for one in data[2:]]  # while the copy is being written
    if background:
        saving.finish()
    resumed = build(small, layers, train=train)
    resumed.load(tmp_path / "two")
    again = [resumed.update(one, loss) for one in data[2:]]
    for want, got in zip(straight, again, strict=True):
        assert got.loss == pytest.approx(want.loss, rel=2e-3)
        assert got.grad_norm == pytest.approx(want.grad_norm, rel=2e-2)
    torch.cuda.empty_cache()
