"""The shipped model: an ordinary Hugging Face directory, small, loadable, and with room to learn."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, Qwen3ForCausalLM

from da3po_cli.data.arithmetic import problems
from da3po_cli.rewards.arith import final_result

DEMO = Path(__file__).resolve().parents[2] / "da3po_cli" / "demo_model"
CHARACTERS = "\n\t" + "".join(map(chr, range(32, 127)))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(DEMO)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)


TOKENIZER = AutoTokenizer.from_pretrained(DEMO)


@given(st.text(alphabet=CHARACTERS, max_size=60))
def test_text_comes_back_as_it_went_in(text: str) -> None:
    ids = TOKENIZER(text)["input_ids"]
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text


def test_every_token_is_one_character_or_special(tokenizer: Any) -> None:
    assert set(tokenizer.get_vocab()) == set(CHARACTERS) | {"<pad>", "<eos>", "<unk>"}
    assert set(string.printable) - {"\r", "\x0b", "\x0c"} == set(CHARACTERS)
    assert tokenizer("é")["input_ids"] == [tokenizer.unk_token_id]
    assert tokenizer.decode([tokenizer.eos_token_id], skip_special_tokens=True) == ""
    assert tokenizer.bos_token is None


def test_directory_is_small_and_complete() -> None:
    names = {file.name for file in DEMO.iterdir()}
    assert names >= {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(file.stat().st_size for file in DEMO.iterdir()) <= 3 * 2**20


def test_shape_fits_tensor_and_pipeline_parallel_by_two(model: Any, tokenizer: Any) -> None:
    config = model.config
    assert isinstance(model, Qwen3ForCausalLM)
    assert 0.5e6 <= model.num_parameters() <= 1.5e6
    assert config.vocab_size == len(tokenizer)
    for size in (
        config.vocab_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.num_hidden_layers,
        config.intermediate_size,
    ):
        assert size % 2 == 0
    assert config.head_dim == 32 and config.tie_word_embeddings
    assert GenerationConfig.from_pretrained(DEMO).eos_token_id == tokenizer.eos_token_id == config.eos_token_id


def test_pass_rates_leave_room_in_both_directions(model: Any, tokenizer: Any) -> None:
    """96 held-out problems, 8 samples each at temperature 1; three standard errors are about 0.09."""
    torch.manual_seed(0)
    chains = problems("validation", 96)
    tokenizer.padding_side = "left"
    inputs = tokenizer([chain.text for chain in chains], return_tensors="pt", padding=True)
    output = model.generate(**inputs, do_sample=True, top_k=0, max_new_tokens=72, num_return_sequences=8)
    texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [final_result(text) == chains[row // 8].answer for row, text in enumerate(texts)]
    correct = [sum(right[row : row + 8]) for row in range(0, len(right), 8)]
    accuracy = sum(correct) / len(right)
    assert 0.22 <= accuracy <= 0.42
    kept = [k for k in correct if 0 < k < 8]
    assert len(kept) >= len(correct) / 2
    assert sum(k < 4 for k in kept) >= len(kept) / 2 and sum(k > 4 for k in kept) >= len(kept) / 8
