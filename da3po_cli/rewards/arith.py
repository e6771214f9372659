"""The grader of the demo task: the number after the last `=`, which must end the text."""

from __future__ import annotations

import re

from da3po_cli.rewards.types import Grade

_RESULT = re.compile(r"= ?(-?\d+)$")


def grade_arith(response: str, finish_reason: str, gold: str) -> Grade:
    """Outcome only: intermediate steps are not judged. A response cut at the token limit has no final result."""
    result = final_result(response) if finish_reason == "stop" else None
    return Grade("correct" if result == gold else "wrong", result, "last result")


def final_result(response: str) -> str | None:
    """What a response claims as its result: the number after its last `=`, which must end the text; else None."""
    match = _RESULT.search(response.strip())
    return match[1] if match else None
