"""How a problem becomes the token ids of a prompt, and which tokens end a response."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from da3po_cli.config.paths import expanded
from da3po_cli.data.formats import Message
from da3po_cli.data.spec import JINJA_SUFFIXES, TEMPLATES
from da3po_cli.data.wraps import BOXED_SUFFIX, DAPO_PREFIX, DAPO_SUFFIX, bare_problem
from da3po_cli.errors import UsageError

Render = Callable[[Sequence[Message]], str]

_BATCH = 2048  # prompts that are tokenised at a time


def make_renderer(template: str, tokenizer: Any, thinking: bool | None = None) -> Render:
    """The function from a conversation to the text of its prompt.

    `chat` is the tokenizer's chat template over the messages as they are. `dapo` and `boxed` put their instruction
    around the problem, and `none` leaves it as it is; these three are plain text for base models. A .jinja or .j2
    file is a template of the user's own in the form of a chat template, with one more variable: `problem`, the last
    message without the answer instruction of a published data set.

    Args:
        thinking: what the template gets as `enable_thinking`; None leaves it to the template.

    Raises:
        UsageError: no such template, `chat` with a tokenizer that has none, `thinking` for a template without the
            switch; and, when it is called, a conversation that a plain template cannot hold.
    """
    if template in ("dapo", "boxed", "none"):
        _check_thinking("", template, thinking)
        return lambda messages: _plain_prompt(messages, template)
    if template == "chat":
        source = getattr(tokenizer, "chat_template", None)
        if not source:
            raise UsageError(
                "data.template=chat, and the tokenizer has no chat template",
                hint="set data.template=dapo, boxed or none, or a .jinja file",
                where="data.template",
            )
    else:
        source = read_template(template)
    _check_thinking(str(source), template, thinking)
    switches = {} if thinking is None else {"enable_thinking": thinking}

    def render(messages: Sequence[Message]) -> str:
        asked = bare_problem(messages[-1]["content"])
        problem = {} if template == "chat" else {"problem": asked}
        try:
            text = tokenizer.apply_chat_template(
                list(messages),
                chat_template=None if template == "chat" else source,
                tokenize=False,
                add_generation_prompt=True,
                **switches,
                **problem,
            )
        except Exception as error:  # Jinja's own errors, and what the template itself raises
            raise UsageError(
                f"data.template={template} fails: {type(error).__name__}: {error}",
                hint="mend the template, or choose another",
                where="data.template",
            ) from error
        if template != "chat" and "".join(asked.split()) not in "".join(text.split()):
            raise UsageError(
                f"data.template={template} makes a prompt without its problem: {text[:60]!r}",
                hint=f"the template gets messages and problem{_unknown_names(str(source))}",
                where="data.template",
            )
        return text

    return render


def _unknown_names(source: str) -> str:
    """What a template asks for and nobody gives it, as a part of a hint."""
    from jinja2 import Environment, meta

    given = {"messages", "problem", "add_generation_prompt", "enable_thinking", "tools", "documents", "raise_exception"}
    names = meta.find_undeclared_variables(Environment().parse(source)) - given
    unknown = sorted(name for name in names if not name.endswith("_token") and name != "strftime_now")
    return f"; {', '.join(unknown)} is unknown" if unknown else ""


def read_template(template: str) -> str:
    """The text of a Jinja file.

    Raises:
        UsageError: not the name of a template, or no such file.
    """
    path = expanded(template)
    if path.suffix not in JINJA_SUFFIXES or not path.is_file():
        what = "no such file" if path.suffix in JINJA_SUFFIXES else "no such template"
        raise UsageError(
            f"data.template={template}: {what}",
            hint=f"set one of {', '.join(TEMPLATES)}, or the path of a {' or '.join(JINJA_SUFFIXES)} file",
            where="data.template",
        )
    return path.read_text(encoding="utf-8")


def _check_thinking(source: str, template: str, thinking: bool | None) -> None:
    if thinking is not None and "enable_thinking" not in source:
        raise UsageError(
            f"data.thinking={str(thinking).lower()}, and the template {template} has no switch enable_thinking",
            hint="leave data.thinking=null",
            where="data.thinking",
        )


def _plain_prompt(messages: Sequence[Message], template: str) -> str:
    if len(messages) != 1:
        raise UsageError(
            f"data.template={template} takes prompts of one message, and one has {len(messages)}",
            hint="set data.template=chat",
            where="data.template",
        )
    text = messages[0]["content"]
    if template == "dapo":
        return DAPO_PREFIX + bare_problem(text) + DAPO_SUFFIX
    if template == "boxed":
        return bare_problem(text) + BOXED_SUFFIX
    return text


def encode(texts: Sequence[str], tokenizer: Any, *, from_chat: bool) -> list[tuple[int, ...]]:
    """Token ids of prompts, with exactly one BOS where the tokenizer has the habit, and never an EOS at the end.

    A chat template writes its own BOS, so there the tokenizer may not add another. Nothing is cut.
    """
    bos, eos, eos_id = tokenizer.bos_token, tokenizer.eos_token, tokenizer.eos_token_id
    add_special = [not (from_chat or (bool(bos) and text.startswith(bos))) for text in texts]
    found: list[tuple[int, ...]] = [()] * len(texts)
    for special in (True, False):
        rows = [row for row, add in enumerate(add_special) if add is special]
        for start in range(0, len(rows), _BATCH):
            chunk = rows[start : start + _BATCH]
            encoded = tokenizer(
                [texts[row] for row in chunk],
                add_special_tokens=special,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )["input_ids"]
            for row, ids in zip(chunk, encoded, strict=True):
                added_eos = not from_chat and ids and ids[-1] == eos_id and not texts[row].endswith(eos)
                found[row] = tuple(ids[:-1] if added_eos else ids)
    return found


def unknown_token_id(tokenizer: Any) -> int | None:
    """The token that stands for any character the tokenizer does not know; None where every text has its tokens.

    Byte-level tokenizers know every character; some of them name their EOS or BOS as the unknown token as well.
    """
    unknown = getattr(tokenizer, "unk_token_id", None)
    others = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    return None if unknown in others else unknown


def stop_token_ids(tokenizer: Any, model_path: str | Path, more: str | None = None) -> tuple[int, ...]:
    """The tokens that end a response, ascending: the tokenizer's EOS, those of the model, and `more`.

    The model's are in generation_config.json, or else in config.json, where transformers and vLLM look too.

    Args:
        model_path: a local directory.
        more: tokens as texts or ids, separated by commas.

    Raises:
        UsageError: a token of `more` is not in the vocabulary, or there is no end token at all.
    """
    ids: set[int] = set() if tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
    for name in ("generation_config.json", "config.json"):
        listed = _json(Path(model_path) / name).get("eos_token_id")
        if listed is not None:
            ids.update(listed if isinstance(listed, list) else [listed])
            break
    ids.update(_token_id(token.strip(), tokenizer) for token in (more or "").split(",") if token.strip())
    if not ids:
        raise UsageError(
            f"{model_path}: neither the tokenizer nor generation_config.json nor config.json names an end token",
            hint="add eos_token_id to generation_config.json, or set data.stop_tokens",
            where="model.path",
        )
    return tuple(sorted(ids))


def _json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _token_id(token: str, tokenizer: Any) -> int:
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    found = int(token) if token.isascii() and token.isdigit() else vocabulary.get(token)
    if found is None or found > max(vocabulary.values()):
        raise UsageError(
            f"data.stop_tokens: the tokenizer has no token {token!r}",
            hint=f"give tokens of the vocabulary, or ids up to {max(vocabulary.values())}",
            where="data.stop_tokens",
        )
    return found
