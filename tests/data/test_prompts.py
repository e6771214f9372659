"""The prompt stream: permutations by seed and epoch, exact resume at any position, and what it counts."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from da3po_cli.config.schema import DataConfig
from da3po_cli.data import arithmetic
from da3po_cli.data.prompts import PromptStream, open_stream
from da3po_cli.data.verify import Golds
from da3po_cli.errors import UsageError
from da3po_cli.rewards.types import Grade

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
    assert stream.state()["drawn"] == [0]
    assert not {prompt.uid for prompt in stream.all()} & {prompt.uid for prompt in small(data, tokenizer).next(ROWS)}


def test_overlong_prompts_are_counted_in_tokens(data: DataConfig, tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "1+1=?", "answer": "2"}\n{"problem": "11+1=?", "answer": "12"}\n')
    config = DataConfig(train=str(path), template="none", max_prompt_tokens=5)
    stream = open_stream(config, tokenizer, "train", 0)
    assert [prompt.text for prompt in stream.all()] == ["1+1=?"]
    assert stream.dropped.counts == {"overlong": 1}
    assert stream.dropped.examples == {"overlong": ["rows row 1: 6 tokens"]}
    with pytest.raises(UsageError, match=r"no usable prompt .* of 2 rows dropped: 2 overlong") as caught:
        open_stream(DataConfig(train=str(path), template="none", max_prompt_tokens=4), tokenizer, "train", 0)
    assert caught.value.hint == "raise data.max_prompt_tokens=4: the shortest prompt has 5 tokens"


def test_prompts_that_the_tokenizer_cannot_write_are_dropped(tokenizer: Any, tmp_path: Path) -> None:
    """The demo's tokenizer knows ASCII; what it does not know would reach the model as the same one token."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "1+1=?", "answer": "2"}\n{"problem": "π+1=?", "answer": "4"}\n', encoding="utf-8")
    stream = open_stream(DataConfig(train=str(path), template="none"), tokenizer, "train", 0)
    assert [prompt.text for prompt in stream.all()] == ["1+1=?"]
    assert stream.dropped.counts == {"unknown_token": 1}


def test_golds_that_do_not_verify_are_dropped_and_named(data: DataConfig, tokenizer: Any) -> None:
    asked: list[tuple[str, str]] = []

    def verify(golds: Golds) -> list[Grade]:
        asked.extend(golds)
        return [Grade("unknown" if gold == "3" else "correct", gold, "a rule") for _, gold in golds]

    stream = open_stream(data, tokenizer, "train", 0, verify)
    assert asked == [("rows", str(n + 1)) for n in range(ROWS)]
    assert [prompt.index for prompt in stream.all()] == [0, 1, 3, 4, 5, 6]
    assert stream.dropped.counts == {"unverifiable": 1}
    assert stream.dropped.examples["unverifiable"] == ["rows row 2: gold '3' is unknown (a rule)"]


def test_unset_data_is_named(tokenizer: Any) -> None:
    with pytest.raises(UsageError, match=r"data\.validation is not set"):
        open_stream(DataConfig(train="arith", template="none"), tokenizer, "validation", 0)


def test_arith_streams_do_not_overlap_and_validation_is_the_same_for_every_seed(tokenizer: Any) -> None:
    config = DataConfig(train="arith", validation="arith", template="none")
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


def test_arith_is_drawn_in_the_order_of_its_seed(tokenizer: Any) -> None:
    """The demo's results depend on which problem comes when, and on its uid, which seeds the samples."""
    config = DataConfig(train="arith", validation="arith", template="none", max_prompt_tokens=64)
    chains = arithmetic.problems("train", 10_000)
    expected: list[tuple[str, int, str]] = []
    for epoch in range(2):
        order = list(range(len(chains)))
        random.Random(f"prompts-5-{epoch}").shuffle(order)
        expected += [(f"{epoch}-{row}", row, chains[row].text) for row in order]
    drawn = open_stream(config, tokenizer, "train", 5).next(len(expected))
    assert [(prompt.uid, prompt.index, prompt.text) for prompt in drawn] == expected


# --------------------------------------------------------------------------------------------------- several files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three files of 5, 3 and 2 different problems; the rows of each are numbered from 0."""
    folder = tmp_path_factory.mktemp("files")
    found: list[str] = []
    for number, rows in enumerate((5, 3, 2)):
        path = folder / f"file{number}.jsonl"
        path.write_text("".join(json.dumps({"problem": f"{number}{n}+0", "answer": n}) + "\n" for n in range(rows)))
        found.append(str(path))
    return found


def mixture(files: list[str], tokenizer: Any, *weights: str, seed: int = 0) -> PromptStream:
    spec = ", ".join(file + weight for file, weight in zip(files, weights, strict=True))
    return open_stream(DataConfig(train=spec, template="none"), tokenizer, "train", seed)


def test_files_without_weights_are_one_pool(files: list[str], tokenizer: Any) -> None:
    stream = mixture(files, tokenizer, "", "@[1:]", "")
    assert len(stream) == 9
    rows = {(0, n) for n in range(5)} | {(1, 1), (1, 2), (2, 0), (2, 1)}
    for epoch in range(3):
        drawn = stream.next(9)
        assert {prompt.uid for prompt in drawn} == {f"{epoch}-{file}:{row}" for file, row in rows}
        assert {(prompt.source, prompt.index) for prompt in drawn} == {(f"file{file}", row) for file, row in rows}


@pytest.mark.parametrize("weights", [("1", "1", "1"), ("3", "2", "1"), ("0.5", "0.25", "0.25"), ("7", "0.1", "1.3")])
def test_a_mixture_keeps_its_weights_all_along(files: list[str], tokenizer: Any, weights: tuple[str, ...]) -> None:
    drawn = mixture(files, tokenizer, *(f"*{weight}" for weight in weights)).next(200)
    shares = [float(weight) / sum(map(float, weights)) for weight in weights]
    for n in range(1, 201):
        counts = Counter(prompt.source for prompt in drawn[:n])
        assert all(abs(counts[f"file{k}"] - share * n) < len(weights) - 1 for k, share in enumerate(shares))


def test_each_file_of_a_mixture_goes_round_in_its_own_epochs(files: list[str], tokenizer: Any) -> None:
    drawn = mixture(files, tokenizer, "*1", "*2", "*1").next(120)
    assert len({prompt.uid for prompt in drawn}) == 120
    orders: dict[int, list[tuple[int, ...]]] = {}
    for file, size in enumerate((5, 3, 2)):
        own = [prompt for prompt in drawn if prompt.source == f"file{file}"]
        assert len(own) == (60 if file == 1 else 30)
        for epoch in range(len(own) // size):
            part = own[epoch * size : (epoch + 1) * size]
            assert sorted(prompt.uid for prompt in part) == [f"{epoch}-{file}:{row}" for row in range(size)]
            orders.setdefault(file, []).append(tuple(prompt.index for prompt in part))
    assert all(len(set(orders[file])) > 1 for file in orders)


@pytest.mark.parametrize("weights", [("", "", ""), ("*3", "*2", "*1"), ("*0.3", "*1.7", "*1")])
def test_a_mixture_resumes_exactly_at_every_position(
    files: list[str], tokenizer: Any, weights: tuple[str, str, str]
) -> None:
    whole = mixture(files, tokenizer, *weights).next(60)
    stream, resumed = mixture(files, tokenizer, *weights), mixture(files, tokenizer, *weights)
    for position in range(40):
        resumed.load_state(json.loads(json.dumps(stream.state())))
        assert resumed.next(20) == whole[position : position + 20]
        assert stream.next(1) == whole[position : position + 1]


def test_a_resume_refuses_other_weights_and_another_order(files: list[str], tokenizer: Any) -> None:
    state = mixture(files, tokenizer, "*3", "*2", "*1").state()
    for other in (
        mixture(files, tokenizer, "*3", "*2", "*2"),
        mixture(files, tokenizer, "", "", ""),
        mixture(files[::-1], tokenizer, "*3", "*2", "*1"),
    ):
        with pytest.raises(UsageError, match="fingerprint"):
            other.load_state(state)
    mixture(files, tokenizer, "*6", "*4", "*2").load_state(state)  # the same shares


def test_an_empty_file_of_a_mixture_is_named(files: list[str], tokenizer: Any) -> None:
    with pytest.raises(UsageError, match=r"no usable prompt in .*file1\.jsonl"):
        mixture(files, tokenizer, "*1", "@[3:]*1", "*1")


def test_validation_on_several_files_keeps_their_order(files: list[str], tokenizer: Any) -> None:
    data = DataConfig(validation=f"{files[2]}, {files[1]}", template="none")
    prompts = open_stream(data, tokenizer, "validation", 0).all()
    assert [prompt.uid for prompt in prompts] == [
        f"validation-{place}" for place in ("0:0", "0:1", "1:0", "1:1", "1:2")
    ]


def test_prompts_with_tokens_that_the_model_lacks_are_left_out(tmp_path: Path, tokenizer: Any) -> None:
    """A tokenizer with more tokens than the model: an embedding past the end, or a row of padding."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"problem": text, "answer": "1"}) + "\n" for text in ("11", "12", "19")))
    data = DataConfig(train=str(file), template="none")
    one, _, nine = (tokenizer.convert_tokens_to_ids(digit) for digit in "129")
    assert len(open_stream(data, tokenizer, "train", 0, vocabulary=nine + 1)) == 3
    stream = open_stream(data, tokenizer, "train", 0, vocabulary=nine)
    assert [prompt.text for prompt in stream.all()] == ["11", "12"]
    assert stream.dropped.examples == {
        "unknown_token": [f"rows row 2: the token '9' has the id {nine}, and the model has {nine} tokens"]
    }
    with pytest.raises(UsageError, match="3 unknown_token") as caught:
        open_stream(data, tokenizer, "train", 0, vocabulary=one)
    assert f"'1' has the id {one}" in (caught.value.hint or "")
