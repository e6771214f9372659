"""Templates against real tokenizers: the text that goes in, one BOS, and the tokens that stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from da3po_cli.data.templates import encode, make_renderer, stop_token_ids, unknown_token_id
from da3po_cli.data.wraps import DAPO_PREFIX, DAPO_SUFFIX, bare_problem
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
    text = make_renderer("dapo", None)(QUESTION)
    assert text == (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\n1 + 1\n\nRemember to put your answer "
        'on its own line after "Answer:".'
    )
    assert make_renderer("dapo", None)([{"role": "user", "content": text}]) == text


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public training rows are not beside this checkout")
def test_a_public_row_is_not_wrapped_twice() -> None:
    row = json.loads((SHARED / "train_data" / "dapo_verl_400.jsonl").read_text().splitlines()[0])
    content = row["prompt"][0]["content"]
    assert make_renderer("dapo", None)(row["prompt"]) == make_renderer("none", None)(row["prompt"]) == content
    assert bare_problem(content) == content.removeprefix(DAPO_PREFIX).removesuffix(DAPO_SUFFIX)


def test_boxed_replaces_the_instruction_of_another_form() -> None:
    gsm8k = '1 + 1 Let\'s think step by step and output the final answer after "####".'
    expected = "1 + 1\nPlease reason step by step, and put your final answer within \\boxed{}."
    assert make_renderer("boxed", None)([{"role": "user", "content": gsm8k}]) == expected
    assert make_renderer("boxed", None)(QUESTION) == expected


def test_chat_writes_bos_once() -> None:
    tokenizer = word_tokenizer(bos=True, chat=True)
    text = make_renderer("chat", tokenizer)(QUESTION)
    (ids,) = encode([text], tokenizer, from_chat=True)
    assert tokenizer.convert_ids_to_tokens(ids) == ["[B]", "<user>", "1", "+", "1", "<assistant>"]


@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("text", ["1 + 1", "[B] 1 + 1"])
def test_plain_text_gets_one_bos_and_no_eos(text: str, eos: bool) -> None:
    tokenizer = word_tokenizer(bos=True, eos=eos)
    (ids,) = encode([text], tokenizer, from_chat=False)
    assert tokenizer.convert_ids_to_tokens(ids) == ["[B]", "1", "+", "1"]


def test_a_tokenizer_without_bos_gets_none() -> None:
    assert encode(["1 + 1"], word_tokenizer(bos=False), from_chat=False) == [(3, 4, 3)]


def test_a_batch_is_each_of_its_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Order is kept where some texts bring their BOS, and over more than one batch."""
    monkeypatch.setattr("da3po_cli.data.templates._BATCH", 3)
    tokenizer = word_tokenizer(bos=True, eos=True)
    texts = ["1", "[B] 1 + 1", "+ 1", "", "[B] +", "1 1 1 1", "[E]"]
    for from_chat in (False, True):
        single = [encode([text], tokenizer, from_chat=from_chat)[0] for text in texts]
        assert encode(texts, tokenizer, from_chat=from_chat) == single
    assert encode([], tokenizer, from_chat=False) == []


THINKING = CHAT + "{% if enable_thinking is defined and not enable_thinking %}[E]{% endif %}"


def test_thinking_is_a_switch_of_the_template() -> None:
    tokenizer = word_tokenizer(bos=True)
    tokenizer.chat_template = THINKING
    texts = [make_renderer("chat", tokenizer, thinking)(QUESTION) for thinking in (None, True, False)]
    assert [text.endswith("[E]") for text in texts] == [False, False, True]
    with pytest.raises(UsageError, match=r"data\.thinking=false, and the template chat has no switch"):
        make_renderer("chat", word_tokenizer(bos=True, chat=True), False)
    with pytest.raises(UsageError, match="the template boxed has no switch"):
        make_renderer("boxed", tokenizer, True)


def test_a_jinja_file_gets_messages_problem_and_switches(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{{ messages[-1].role }}|{{ problem }}|{{ enable_thinking }}|{{ add_generation_prompt }}é")
    dressed = [{"role": "system", "content": "x"}, {"role": "user", "content": DAPO_PREFIX + "1 + 1" + DAPO_SUFFIX}]
    tokenizer = word_tokenizer(bos=True, chat=True)
    assert make_renderer(str(path), tokenizer, False)(dressed) == "user|1 + 1|False|Trueé"


def test_a_jinja_file_of_plain_text_gets_one_bos(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(bos=True)
    path = tmp_path / "mine.j2"
    for source in ("{{ problem }} +", "{{ bos_token }} {{ problem }} +"):
        path.write_text(source)
        text = make_renderer(str(path), tokenizer)(QUESTION)
        (ids,) = encode([text], tokenizer, from_chat=False)
        assert tokenizer.convert_ids_to_tokens(ids) == ["[B]", "1", "+", "1", "+"]


def test_templates_that_do_not_work_are_named(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(bos=True)
    path = tmp_path / "mine.jinja"
    with pytest.raises(UsageError, match="no such file"):
        make_renderer(str(path), tokenizer)
    with pytest.raises(UsageError, match=r"data\.template=boxd: no such template"):
        make_renderer("boxd", tokenizer)
    for source, why in (("{% if %}", "TemplateSyntaxError"), ("{{ raise_exception('no system role') }}", "no system")):
        path.write_text(source)
        with pytest.raises(UsageError, match=why):
            make_renderer(str(path), tokenizer)(QUESTION)


def test_chat_needs_a_template_and_plain_text_one_message() -> None:
    with pytest.raises(UsageError, match="has no chat template") as caught:
        make_renderer("chat", word_tokenizer(bos=True))(QUESTION)
    assert "data.template=dapo" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="one has 2"):
        make_renderer("none", None)([{"role": "system", "content": "Be brief."}, *QUESTION])


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


@pytest.mark.parametrize(("generation", "expected"), [(None, (2, 5)), ({}, (2, 5)), ({"eos_token_id": 4}, (2, 4))])
def test_stop_tokens_of_config_json_where_the_other_has_none(
    tmp_path: Path, generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [5, 2]}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert stop_token_ids(word_tokenizer(bos=True), tmp_path) == expected


@pytest.mark.parametrize(
    ("more", "expected"), [("", (2,)), ("[U]", (0, 2)), ("0,  5", (0, 2, 5)), ("<user>,[E]", (2, 5)), ("2", (2,))]
)
def test_stop_tokens_of_the_user(tmp_path: Path, more: str, expected: tuple[int, ...]) -> None:
    assert stop_token_ids(word_tokenizer(bos=True), tmp_path, more) == expected


@pytest.mark.parametrize("more", ["[X]", "7", "-1"])
def test_a_stop_token_must_exist(tmp_path: Path, more: str) -> None:
    with pytest.raises(UsageError, match="has no token") as caught:
        stop_token_ids(word_tokenizer(bos=True), tmp_path, f"[E],{more}")
    assert "ids up to 6" in (caught.value.hint or "")


def test_unknown_tokens() -> None:
    tokenizer = word_tokenizer(bos=True)
    assert unknown_token_id(tokenizer) == 0
    tokenizer.eos_token = "[U]"  # as GPT-2's, which knows every byte
    assert unknown_token_id(tokenizer) is None
    tokenizer.unk_token = None
    assert unknown_token_id(tokenizer) is None


def test_no_stop_token_at_all_is_an_error(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(bos=True)
    tokenizer.eos_token = None
    with pytest.raises(UsageError, match="names an end token"):
        stop_token_ids(tokenizer, tmp_path)


@pytest.mark.skipif(not (SHARED / "models" / "qwen3-tokenizer").is_dir(), reason="the Qwen3 tokenizer is not here")
def test_qwen3_prompt_has_no_bos_and_comes_back() -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(SHARED / "models" / "qwen3-tokenizer")
    text = make_renderer("dapo", tokenizer)(QUESTION)
    assert [tokenizer.decode(ids) for ids in encode([text], tokenizer, from_chat=False)] == [text]


@pytest.mark.skipif(not (SHARED / "models" / "qwen3-tokenizer").is_dir(), reason="the Qwen3 tokenizer is not here")
def test_qwen3_ids() -> None:
    """Ids from the vocabulary's own documentation."""
    tokenizer: Any = AutoTokenizer.from_pretrained(SHARED / "models" / "qwen3-tokenizer")
    assert encode(["Hello world"], tokenizer, from_chat=False) == [(9707, 1879)]
    assert unknown_token_id(tokenizer) is None
    stops = stop_token_ids(tokenizer, SHARED / "models" / "qwen3-tokenizer", "<|im_end|>, 151643, <think>")
    assert stops == (151643, 151645, 151667)
    tokenizer.chat_template = "<|im_start|>user\n{{ messages[-1].content }}<|im_end|>\n<|im_start|>assistant{{ '\\n' }}"
    (ids,) = encode([make_renderer("chat", tokenizer)(QUESTION)], tokenizer, from_chat=True)
    assert ids[0] == 151644 and ids.count(151645) == 1 and ids[-1] == tokenizer("\n")["input_ids"][0]
