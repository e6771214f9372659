"""The prompt stream: permutations by seed and epoch, exact resume at any position, and what it counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from da3po_cli.config.schema import DataConfig
from da3po_cli.data import arithmetic
from da3po_cli.data.prompts import PromptStream, open_stream
from da3po_cli.errors import UsageError

DEMO = Path(__file__).resolve().parents[2] / "da3po_cli" / "demo_model"
ROWS = 7


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(DEMO)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    path.write_text("".join(json.dumps({"problem": f"{n}+1=?", "answer": n + 1}) + "\n" for n in range(ROWS)))
    return DataConfig(train=str(path), validation=str(path), template="none")


def small(data: DataConfig, tokenizer: Any, seed: int = 0) -> PromptStream:
    return open_stream(data, tokenizer, "train", seed)


def test_every_epoch_holds_every_prompt_once_in_a_new_order(data: DataConfig, tokenizer: Any) -> None:
    stream = small(data, tokenizer)
    epochs = [stream.next(ROWS) for _ in range(4)]
    for number, epoch in enumerate(epochs):
        assert sorted(prompt.index for prompt in epoch) == list(range(ROWS))
        assert all(prompt.uid == f"{number}-{prompt.index}" for prompt in epoch)
        assert all(prompt.text == f"{prompt.index}+1=?" and prompt.answer == str(prompt.index + 1) for prompt in epoch)
    orders = {tuple(prompt.index for prompt in epoch) for epoch in epochs}
    assert len(orders) > 1


def test_drawing_in_pieces_changes_nothing(data: DataConfig, tokenizer: Any) -> None:
    whole = small(data, tokenizer).next(3 * ROWS)
    stream = small(data, tokenizer)
    assert [prompt for size in (1, 5, 0, 9, 6) for prompt in stream.next(size)] == whole
    assert len({prompt.uid for prompt in whole}) == 3 * ROWS


def test_seeds_give_different_orders(data: DataConfig, tokenizer: Any) -> None:
    orders = {tuple(prompt.index for prompt in small(data, tokenizer, seed).next(ROWS)) for seed in range(5)}
    assert len(orders) > 1


@pytest.mark.parametrize("position", range(2 * ROWS + 2))
def test_a_resume_is_exact_at_every_position(data: DataConfig, tokenizer: Any, position: int) -> None:
    stream = small(data, tokenizer)
    stream.next(position)
    state = json.loads(json.dumps(stream.state()))
    rest = stream.next(2 * ROWS)
    resumed = small(data, tokenizer)
    resumed.load_state(state)
    assert resumed.next(2 * ROWS) == rest
    assert resumed.state() == stream.state()


def test_a_state_of_other_data_or_another_seed_is_refused(data: DataConfig, tokenizer: Any, tmp_path: Path) -> None:
    state = small(data, tokenizer).state()
    with pytest.raises(UsageError, match=r"seed 0, this run's has 1"):
        small(data, tokenizer, seed=1).load_state(state)
    other = tmp_path / "other.jsonl"
    other.write_text('{"problem": "1+1=?", "answer": "3"}\n')
    with pytest.raises(UsageError, match="fingerprint"):
        small(DataConfig(train=str(other), template="none"), tokenizer).load_state(state)


def test_validation_keeps_file_order_and_the_cursor(data: DataConfig, tokenizer: Any) -> None:
    stream = open_stream(data, tokenizer, "validation", 3)
    assert [prompt.index for prompt in stream.all()] == list(range(ROWS))
    assert [prompt.uid for prompt in stream.all(2)] == ["validation-0", "validation-1"]
    assert stream.state()["position"] == 0
    assert not {prompt.uid for prompt in stream.all()} & {prompt.uid for prompt in small(data, tokenizer).next(ROWS)}


def test_overlong_prompts_are_counted_in_tokens(data: DataConfig, tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "1+1=?", "answer": "2"}\n{"problem": "11+1=?", "answer": "12"}\n')
    config = DataConfig(train=str(path), template="none", max_prompt_tokens=5)
    stream = open_stream(config, tokenizer, "train", 0)
    assert [prompt.text for prompt in stream.all()] == ["1+1=?"]
    assert stream.dropped == {"empty": 0, "duplicate": 0, "conflict": 0, "overlong": 1}
    with pytest.raises(UsageError, match="no usable prompt"):
        open_stream(DataConfig(train=str(path), template="none", max_prompt_tokens=4), tokenizer, "train", 0)


def test_unset_data_is_named(tokenizer: Any) -> None:
    with pytest.raises(UsageError, match=r"data\.validation is not set"):
        open_stream(DataConfig(train="arith", template="none"), tokenizer, "validation", 0)


def test_arith_streams_do_not_overlap_and_validation_is_the_same_for_every_seed(tokenizer: Any) -> None:
    config = DataConfig(train="arith", validation="arith", template="none", reward="arith")
    train = open_stream(config, tokenizer, "train", 0)
    held_out = open_stream(config, tokenizer, "validation", 1).all()
    assert held_out == open_stream(config, tokenizer, "validation", 2).all()
    assert len(held_out) >= 200
    texts = {prompt.text for prompt in train.all()}
    assert len(texts) == len(train)
    assert not texts & {prompt.text for prompt in held_out}
    for prompt in held_out:
        assert prompt.answer == str(arithmetic.solve(prompt.text))
        assert tokenizer.decode(prompt.token_ids) == prompt.text
        assert prompt.source == "arith"
