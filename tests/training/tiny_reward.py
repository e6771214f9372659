"""A reward for the demo's problems in a file: the last result of the response, or a boxed gold as the start checks."""

from __future__ import annotations

import re


def grade(response: str, finish_reason: str, gold: str) -> bool:
    """True iff the last number after `=` (or in a box) is the gold."""
    return finish_reason == "stop" and re.findall(r"(?:=|boxed\{)(-?\d+)", response)[-1:] == [gold]
