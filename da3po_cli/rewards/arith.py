"""The grader of the demo task: the number after the last `=`, which must end the text."""

from __future__ import annotations

from da3po_cli.data.arithmetic import final_result
from da3po_cli.rewards.types import Grade


def grade_arith(response: str, finish_reason: str, gold: str) -> Grade:
    """Outcome only: intermediate steps are not judged. A response cut at the token limit has no final result."""
    result = final_result(response) if finish_reason == "stop" else None
    return Grade("correct" if result == gold else "wrong", result, "last result")
