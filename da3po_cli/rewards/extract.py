"""Which part of a response is its answer. One function owns this; nothing else looks for boxes."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")
_BARE_BOX = re.compile(r"\s*([^\s{}$.,;\\]+)")
_ANSWER_LINE = re.compile(r"(?i)\banswer\W{0,4}:[ \t]*(?:\n\s*)?(\S[^\n]*)")
_SPECIAL = re.compile(r"<\|[^|<>]*\|>")


def extract_answer(response: str) -> tuple[str | None, str]:
    """The answer that a response commits to, and the rule that found it.

    Only text after the last `</think>` counts; a `<think>` that is never closed leaves no answer. There, the last
    box decides (`\\boxed{..}`, `\\fbox{..}`, `\\boxed 5`): one that is cut off gives no answer, not an earlier box.
    Without any box, the last line `Answer: ...` does. The last number of a text is never taken for its answer.
    """
    text = _SPECIAL.sub("", response)
    head, closed, tail = text.rpartition("</think>")
    if not closed and "<think>" in tail:
        return None, "unfinished thinking"
    text = tail if closed or not head else text
    boxes = list(_BOX.finditer(text))
    if boxes:
        return box_content(text, boxes[-1].end()), "last box"
    lines = _ANSWER_LINE.findall(text)
    if lines:
        return _plain(lines[-1]), "answer line"
    return None, "no answer"


def unwrap_box(text: str) -> str:
    """The inside of the box that is all of `text`; any other text as it is (a gold answer stored with its box)."""
    match = _BOX.match(text.strip())
    content = box_content(text.strip(), match.end()) if match else None
    return text if content is None or not text.strip().endswith(("}", content)) else content


def box_content(text: str, start: int) -> str | None:
    """What follows `\\boxed` at `start`: the inside of balanced braces, or one bare token; None if cut off."""
    rest = text[start:].lstrip(" ")
    if not rest.startswith("{"):
        bare = _BARE_BOX.match(rest)
        return bare[1] if bare else None
    depth = 0
    escaped = False
    for position, char in enumerate(rest):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return rest[1:position]
    return None


def _plain(line: str) -> str:
    """An answer line without markdown, quotes and the full stop."""
    line = line.strip().strip("*_` ").rstrip(".").strip("*_` ")
    for mark in ('"', "'"):
        if len(line) > 1 and line.startswith(mark) and line.endswith(mark):
            line = line[1:-1]
    return line.strip()
