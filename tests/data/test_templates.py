"""Templates against real tokenizers: the text that goes in, one BOS, and the tokens that stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from da3po_cli.data.templates import DAPO_PREFIX, DAPO_SUFFIX, bare_problem, encode, render, stop_token_ids
from da3po_cli.errors import UsageError

SHARED = Path(__file__).resolve().parents[3] / "shared"
QUESTION = [{"role": "user", "content": "1 + 1"}]
CHAT = "{{ bos_token }}{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}<assistant>"


def word_tokenizer(*, bos: bool, eos: bool = False, chat: bool = False) -> Any:
    """Whitespace words, with the habit of adding `[B]` in front and, on demand, `[E]` behind."""
    words = ["[U]", "[B]", "[E]", "1", "+", "<user>", "<assistant>"]
    inner = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[U]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos:
        inner.post_processor = processors.TemplateProcessing(
            single="[B] $A [E]" if eos else "[B] $A", special_tokens=[("[B]", 1), ("[E]", 2)]
        )
    special = {"bos_token": "[B]"} if bos else {}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[U]", eos_token="[E]", **special)
    if chat:
        tokenizer.chat_template = CHAT
    return tokenizer


def test_dapo_text_is_that_of_the_public_rows() -> None:
    text = render(QUESTION, "dapo", None)
    assert text == (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\n1 + 1\n\nRemember to put your answer "
        'on its own line after "Answer:".'
    )
    assert render([{"role": "user", "content": text}], "dapo", None) == text


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public training rows are not beside this checkout")
def test_a_public_row_is_not_wrapped_twice() -> None:
    row = json.loads((SHARED / "train_data" / "dapo_verl_400.jsonl").read_text().splitlines()[0])
    content = row["prompt"][0]["content"]
    assert render(row["prompt"], "dapo", None) == render(row["prompt"], "none", None) == content
    assert bare_problem(content) == content.removeprefix(DAPO_PREFIX).removesuffix(DAPO_SUFFIX)


def test_boxed_replaces_the_instruction_of_another_form() -> None:
    gsm8k = '1 + 1 Let\'s think step by step and output the final answer after "####".'
    expected = "1 + 1\nPlease reason step by step, and put your final answer within \\boxed{}."
    assert render([{"role": "user", "content": gsm8k}], "boxed", None) == expected
    assert render(QUESTION, "boxed", None) == expected


def test_chat_writes_bos_once() -> None:
    tokenizer = word_tokenizer(bos=True, chat=True)
    text = render(QUESTION, "chat", tokenizer)
    ids = encode(text, tokenizer, from_chat=True)
    assert tokenizer.convert_ids_to_tokens(ids) == ["[B]", "<user>", "1", "+", "1", "<assistant>"]


@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("text", ["1 + 1", "[B] 1 + 1"])
def test_plain_text_gets_one_bos_and_no_eos(text: str, eos: bool) -> None:
    tokenizer = word_tokenizer(bos=True, eos=eos)
    ids = encode(text, tokenizer, from_chat=False)
    assert tokenizer.convert_ids_to_tokens(ids) == ["[B]", "1", "+", "1"]


def test_a_tokenizer_without_bos_gets_none() -> None:
    assert encode("1 + 1", word_tokenizer(bos=False), from_chat=False) == (3, 4, 3)


def test_chat_needs_a_template_and_plain_text_one_message() -> None:
    with pytest.raises(UsageError, match="has no chat template") as caught:
        render(QUESTION, "chat", word_tokenizer(bos=True))
    assert "data.template=dapo" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="one has 2"):
        render([{"role": "system", "content": "Be brief."}, *QUESTION], "none", None)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (None, (2,)),
        ({}, (2,)),
        ({"eos_token_id": 7}, (2, 7)),
        ({"eos_token_id": [9, 2, 5]}, (2, 5, 9)),
        ({"eos_token_id": None}, (2,)),
    ],
)
def test_stop_tokens(tmp_path: Path, generation: dict[str, Any] | None, expected: tuple[int, ...]) -> None:
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert stop_token_ids(word_tokenizer(bos=True), tmp_path) == expected


def test_no_stop_token_at_all_is_an_error(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(bos=True)
    tokenizer.eos_token = None
    with pytest.raises(UsageError, match="names an end token"):
        stop_token_ids(tokenizer, tmp_path)


@pytest.mark.skipif(not (SHARED / "models" / "qwen3-tokenizer").is_dir(), reason="the Qwen3 tokenizer is not here")
def test_qwen3_prompt_has_no_bos_and_comes_back() -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(SHARED / "models" / "qwen3-tokenizer")
    text = render(QUESTION, "dapo", tokenizer)
    assert tokenizer.decode(encode(text, tokenizer, from_chat=False)) == text
