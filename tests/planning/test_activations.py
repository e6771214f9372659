"""The activations of Megatron's local layers, against the tensors that autograd keeps in a real training pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from da3po_cli.config.models import model_facts
from da3po_cli.config.schema import Fp8Config, ParallelConfig, TrainConfig
from da3po_cli.planning.activations import activations
from da3po_cli.planning.shape import shape_of

pytestmark = pytest.mark.slow
ROWS, LENGTH = 16, 65  # of one length: 64 tokens of each are packed, and the attention pads nothing
SIZES: dict[str, Any] = dict(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=192,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=128,
)


def kept(directory: Path, parallel: Any) -> int:
    """Bytes of the storages that backward needs, other than those of the weights."""
    import torch

    from da3po_cli.algos.batching import collate
    from da3po_cli.algos.types import Trajectory
    from megatron_bridge import build_policy

    policy = build_policy(directory, dtype="float32", parallel=parallel, train=TrainConfig(), temperature=1.0, seed=1)
    rows = [Trajectory((1,), [row % 60 + 1] * (LENGTH - 1), [-1.0] * (LENGTH - 1), 1.0) for row in range(ROWS)]
    storages: list[Any] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages.append(tensor.untyped_storage())  # held, so that no address comes twice
        return tensor

    def loss(logprobs: torch.Tensor, entropy: torch.Tensor, batch: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        return -(logprobs * batch.mask).sum(), {}

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policy.accumulate([collate(rows, range(ROWS))], loss)
    weights = {param.untyped_storage().data_ptr() for chunk in policy.chunks for param in chunk.parameters()}
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return sum(size for address, size in sizes.items() if address not in weights)


def write(root: Path, name: str) -> Path:
    import transformers as hf

    made: dict[str, Any] = {
        "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=False)),
        "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SIZES, tie_word_embeddings=False)),
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, tie_word_embeddings=True)),
    }
    made[name]().save_pretrained(root / name)
    return root / name


@pytest.mark.parametrize("name", ["qwen3", "qwen2", "llama"])
def test_what_autograd_keeps(single: Any, tmp_path: Path, name: str) -> None:
    model = write(tmp_path, name)
    facts = model_facts(str(model))
    assert facts is not None
    shape, tokens = shape_of(facts), ROWS * (LENGTH - 1)
    layout = ParallelConfig()
    plan = activations(shape, layout, 0, tokens, 1, "float32", Fp8Config(), recompute=False, fused=False).kept
    logits = tokens * shape.padded_vocab(1) * 4  # counted with what comes and goes
    assert kept(model, single) == pytest.approx(plan + logits, rel=0.03)
