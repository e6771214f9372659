"""The grader of mathematical answers: extract, normalise, compare."""

from __future__ import annotations

from da3po_cli.rewards.comparing.compare import equivalent
from da3po_cli.rewards.reading.extract import Found, extract_answer, gold_answer
from da3po_cli.rewards.types import Grade, MathOptions

__all__ = ["equivalent", "grade_math"]

_DEFAULT = MathOptions()


def grade_math(response: str, finish_reason: str, gold: str, *, options: MathOptions = _DEFAULT) -> Grade:
    """Grade the answer of a response against the gold answer; docs/grading.md states the policies.

    A response without an answer, cut off or not, is wrong; an answer that cannot be compared safely is unknown. An
    empty answer is never correct. Boxes that stand side by side, joined by commas or "and", are one list where the
    gold answer has as many parts; the last box alone decides otherwise.
    """
    found = extract_answer(response, options)
    if found.text is None:
        return Grade("wrong", None, found.rule)
    wanted = gold_answer(gold)
    verdict, rule = equivalent(", ".join(wanted), found.text, options)
    if verdict != "correct" and found.side_by_side:
        row = _row(found, wanted)
        if row is not None and equivalent(", ".join(wanted), row, options)[0] == "correct":
            return Grade("correct", row, "boxes side by side")
    return Grade(verdict, found.text, rule)


def _row(found: Found, wanted: tuple[str, ...]) -> str | None:
    """The boxes side by side as one list."""
    return ", ".join(found.side_by_side) if found.side_by_side else None
