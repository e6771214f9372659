"""DAPO's own string rule, to reproduce published runs: `Answer:` in the last 300 characters, normalised texts equal.

The normalisation is that of Minerva (arXiv 2206.14858, appendix D.1) as the DAPO recipe (arXiv 2503.14476) uses it,
with its known weaknesses: see docs/grading.md. Use `math` for anything else.
"""

from __future__ import annotations

import re

from da3po_cli.rewards.types import Grade

TAIL = 300  # characters of the response that are read

_ANSWER = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_REPLACED = [
    ("an ", ""), ("a ", ""), (".$", "$"), (r"\$", ""), (r"\ ", ""), (" ", ""), ("mbox", "text"),
    (r",\text{and}", ","), (r"\text{and}", ","), (r"\text{m}", r"\text{}"),
]  # fmt: skip
_REMOVED = [
    "square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", r"\ldots", "sue", "points",
    "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students",
    "childrentickets", "multiples", r"\text{s}", r"\text{.}", "\\text{\ns}", r"\text{}^2", r"\text{}^3", "\\text{\n}",
    r"\text{}", r"\mathrm{th}", r"^\circ", r"^{\circ}", r"\;", r",\!", "{,}", '"', r"\dots",
]  # fmt: skip
_REWRITES = [
    (re.compile(pattern), to)
    for pattern, to in [
        (r"(.*?)(\$)(.*?)(\$)(.*)", r"$\3$"),
        (r"(\\text\{)(.*?)(\})", r"\2"),
        (r"(\\textbf\{)(.*?)(\})", r"\2"),
        (r"(\\overline\{)(.*?)(\})", r"\2"),
        (r"(\\boxed\{)(.*)(\})", r"\2"),
        (r"(frac)([^{])(.)", r"frac{\2}{\3}"),
        (r"(sqrt)([^{])", r"sqrt{\2}"),
    ]
]


def grade_dapo(response: str, finish_reason: str, gold: str) -> Grade:
    """Correct iff the normalised texts are the same; without an `Answer:` the response is wrong."""
    found = _ANSWER.findall(response[-TAIL:])
    if not found:
        return Grade("wrong", None, "no answer")
    same = normalise_minerva(found[-1]) == normalise_minerva(gold)
    return Grade("correct" if same else "wrong", found[-1], "same text")


def normalise_minerva(answer: str) -> str:
    """The part after the last `=`, without units, text wrappers and dollars."""
    answer = answer.split("=")[-1]
    for before, after in _REPLACED:
        answer = answer.replace(before, after)
    for phrase in _REMOVED:
        answer = answer.replace(phrase, "")
    for pattern, to in _REWRITES:
        answer = pattern.sub(to, answer)
    answer = answer.replace("$", "")
    if answer.replace(",", "").isdigit():
        answer = answer.replace(",", "")
    return answer.strip()
