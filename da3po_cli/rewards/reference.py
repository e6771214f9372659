"""math-verify as a reward, to compare verdicts with: `da3po grade --compare`. Not used in training.

Import path `da3po_cli.rewards.reference:grade_math_verify`; grading workers import it before their first deadline.
"""

from __future__ import annotations

import logging
import re

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from da3po_cli.rewards.types import Grade

_MARKED = re.compile(r"\\boxed|\\fbox|\$|\\\(|\\\[")

logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns that its time-outs are off; ours are on


def grade_math_verify(response: str, finish_reason: str, gold: str) -> Grade:
    """The way public trainers call it: a bare gold answer in a box, else half of it would be read."""
    wanted = parse(gold if _MARKED.search(gold) else rf"\boxed{{{gold}}}", parsing_timeout=0)
    found = parse(response, [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=0)
    extracted = str(found[-1]) if found else None
    if not wanted:
        return Grade("unknown", extracted, "math-verify cannot read the gold answer")
    same = verify(wanted, found, timeout_seconds=None)
    return Grade("correct" if same else "wrong", extracted, "math-verify")
