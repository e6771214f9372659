"""What a grader is: a function from (response text, finish reason, gold answer) to a Grade."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from da3po_cli.algos.types import Verdict

Item = tuple[str, str, str]
"""What is graded: (response, finish reason, gold answer)."""


@dataclass(frozen=True)
class Grade:
    """A verdict with its reasons.

    Attributes:
        verdict: "unknown" when the grader could not decide; never the same as "wrong".
        extracted: the part of the response that was taken as its answer; None when there is none.
        rule: the rule that decided; for "unknown" the reason.
        seconds: CPU time of the process that graded, filled by the pool.
    """

    verdict: Verdict
    extracted: str | None
    rule: str
    seconds: float = 0.0


class Reward(Protocol):
    """A grader; pure, and safe to call from any thread."""

    def __call__(self, response: str, finish_reason: str, gold: str, /) -> Grade: ...


@dataclass(frozen=True)
class MathOptions:
    """The policies of the `math` reward that a benchmark or a published recipe may set otherwise."""

    thinking: Literal["auto", "always", "never"] = "auto"
    """Whether only text after the last `</think>` counts. `auto`: where a think tag occurs; `always`: a response
    without `</think>` has no answer; `never`: tags are text."""
    tail: int | None = None
    """Only the last this many characters are read, as in DAPO's released grader (300); null reads everything."""
    fallback: Literal["none", "prose", "bare"] = "none"
    """What is read when there is no box and no answer line. `none`: nothing; `prose`: the last sentence of the form
    "the answer is", the last formula or the last number; `bare`: the whole text, as if it stood in a box, or the
    same as `prose` where the whole text is a paragraph."""
    rel_tol: float = 0.0
    """Numbers this close to the gold answer, relatively, are correct; 0 compares exactly. Minerva uses 1e-2."""
    percent: Literal["lenient", "exact"] = "lenient"
    """`lenient`: gold 50 also takes 50% and gold 50% also takes 50; `exact`: 50% is 1/2 and nothing else."""
