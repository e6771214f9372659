"""How a problem becomes the token ids of a prompt, and which tokens end a response."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from da3po_cli.data.formats import Message
from da3po_cli.errors import UsageError

Template = Literal["chat", "dapo", "boxed", "none"]

# The instruction of DAPO's public data set (BytedTsinghua-SIA/DAPO-Math-17k).
DAPO_PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'
BOXED_SUFFIX = "\nPlease reason step by step, and put your final answer within \\boxed{}."

# What published rows carry around the problem. Another template takes it off first: no prompt asks for two forms.
_KNOWN_WRAPS = (
    (DAPO_PREFIX, DAPO_SUFFIX),
    ("", BOXED_SUFFIX),
    ("", " Let's think step by step and output the final answer within \\boxed{}."),
    ("", ' Let\'s think step by step and output the final answer after "####".'),
)


def bare_problem(text: str) -> str:
    """The problem without the answer instruction of a published data set."""
    for prefix, suffix in _KNOWN_WRAPS:
        if text.startswith(prefix) and text.endswith(suffix):
            return text[len(prefix) : len(text) - len(suffix)]
    return text


def render(messages: Sequence[Message], template: Template, tokenizer: Any) -> str:
    """The text of a prompt.

    `chat` is the tokenizer's chat template over the messages as they are. `dapo` and `boxed` put their instruction
    around the problem, and `none` leaves it as it is; these three are plain text for base models.

    Raises:
        UsageError: `chat` with a tokenizer that has no chat template, or a conversation without `chat`.
    """
    if template == "chat":
        if not getattr(tokenizer, "chat_template", None):
            raise UsageError(
                "data.template=chat, and the tokenizer has no chat template",
                hint="set data.template=dapo, boxed or none",
                where="data.template",
            )
        return tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
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


def encode(text: str, tokenizer: Any, *, from_chat: bool) -> tuple[int, ...]:
    """Token ids of a prompt, with exactly one BOS where the tokenizer has the habit, and never an EOS at the end.

    A chat template writes its own BOS, so there the tokenizer may not add another.
    """
    bos = tokenizer.bos_token
    has_bos = bool(bos) and text.startswith(bos)
    ids: list[int] = tokenizer(text, add_special_tokens=not (from_chat or has_bos))["input_ids"]
    if not from_chat and ids and ids[-1] == tokenizer.eos_token_id and not text.endswith(tokenizer.eos_token):
        ids = ids[:-1]
    return tuple(ids)


def stop_token_ids(tokenizer: Any, model_path: str | Path) -> tuple[int, ...]:
    """The tokens that end a response: the tokenizer's EOS and those of the model's generation_config.json, ascending.

    `model_path` is a local directory; without that file the tokenizer's EOS is all there is.
    """
    ids: set[int] = set() if tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
    file = Path(model_path) / "generation_config.json"
    if file.is_file():
        listed = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        ids.update(listed if isinstance(listed, list) else [] if listed is None else [listed])
    if not ids:
        raise UsageError(
            f"{model_path}: neither the tokenizer nor generation_config.json names an end token",
            hint="add eos_token_id to generation_config.json",
            where="model.path",
        )
    return tuple(sorted(ids))
