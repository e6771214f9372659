"""Tiny Hugging Face models, a batch, and a single-rank world inside the test process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

# name -> (family, tied, vocabulary). 45 and 15 are no multiples of 16: Megatron pads them, and with tensor parallelism
# 2 the second rank of 15 holds padding only.
MODELS = {
    "qwen3-tied": ("qwen3", True, 45),
    "qwen3-untied": ("qwen3", False, 45),
    "qwen2-tied": ("qwen2", True, 45),
    "qwen2-untied": ("qwen2", False, 45),
    "llama-tied": ("llama", True, 45),
    "llama-untied": ("llama", False, 15),
}


def make_model(directory: Path, family: str, tied: bool, vocab: int, **config: Any) -> None:
    """Write a random model whose norms and biases are not trivial, so that a swapped pair would show."""
    import transformers as hf

    fields: dict[str, Any] = dict(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        initializer_range=0.1,
    )
    torch.manual_seed(len(family) + vocab + tied)
    if family == "qwen3":  # head size 16 is not hidden / heads = 8
        model: Any = hf.Qwen3ForCausalLM(hf.Qwen3Config(**{**fields, "head_dim": 16, **config}))
    elif family == "qwen2":
        model = hf.Qwen2ForCausalLM(hf.Qwen2Config(**{**fields, **config}))
    else:
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**{**fields, **config}))
    for name, param in model.named_parameters():
        if param.ndim == 1:
            torch.nn.init.normal_(param, mean=1.0 if "norm" in name else 0.0, std=0.3)
    # The untied Qwen2 comes in several files with an index, the others in one.
    model.save_pretrained(directory, max_shard_size="20KB" if family == "qwen2" and not tied else "1GB")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one model per entry of MODELS, and `llama3-rope`."""
    root = tmp_path_factory.mktemp("models")
    for name, (family, tied, vocab) in MODELS.items():
        make_model(root / name, family, tied, vocab)
    llama3 = dict(
        rope_type="llama3",
        rope_theta=10000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    make_model(root / "llama3-rope", "llama", True, 45, rope_parameters=llama3)
    return root


@pytest.fixture(scope="session")
def rows() -> list[dict[str, Any]]:
    """8 sequences of unlike lengths below vocabulary 15, each with an advantage and rollout log-probs."""
    generator = torch.Generator().manual_seed(7)
    out = []
    for length in (9, 5, 14, 7, 11, 6, 13, 8):
        ids = torch.randint(0, 15, (length,), generator=generator)
        # of both signs, but not so that the loss is a small difference of large terms
        advantage = torch.rand((), generator=generator).item() + (0.5 if length != 7 else -1.5)
        out.append(dict(ids=ids, prompt=3, advantage=advantage, rollout=-torch.rand(length, generator=generator) - 1))
    return out
