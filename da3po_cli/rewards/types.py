"""What a grader is: a function from (response text, finish reason, gold answer) to a Grade."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from da3po_cli.algos.types import Verdict


@dataclass(frozen=True)
class Grade:
    """A verdict with its reasons.

    Attributes:
        verdict: "unknown" when the grader could not decide; never the same as "wrong".
        extracted: the part of the response that was taken as its answer; None when there is none.
        rule: the rule that decided.
    """

    verdict: Verdict
    extracted: str | None
    rule: str


class Reward(Protocol):
    """A grader; pure, and safe to call from any thread."""

    def __call__(self, response: str, finish_reason: str, gold: str, /) -> Grade: ...
