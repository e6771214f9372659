"""The grader of mathematical answers: extract, normalise, compare structure, exact value, then symbolically."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from da3po_cli.algos.types import Verdict
from da3po_cli.rewards.extract import extract_answer, unwrap_box
from da3po_cli.rewards.normalise import normalise, strip_assignment
from da3po_cli.rewards.symbolic import symbolic_verdict
from da3po_cli.rewards.types import Grade
from da3po_cli.rewards.units import quantity, same_quantity

MAX_ANSWER = 2000  # characters; beyond it only the identical text is correct

_SEPARATOR = re.compile(r" (?:or|and) ")
# a ratio or time, a number with its base, the empty set, juxtaposed numbers: only the same text equals them
_LITERAL = re.compile(r":|^\d[0-9A-F]*_|\\emptyset|\d \d")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,]).*")


def grade_math(response: str, finish_reason: str, gold: str) -> Grade:
    """Grade the answer of a response against the gold answer.

    A response without an answer, cut off or not, is wrong; an answer that cannot be compared safely is unknown. An
    empty answer is never correct.
    """
    answer, rule = extract_answer(response)
    if answer is None:
        return Grade("wrong", None, rule)
    try:
        verdict, rule = equivalent(gold, answer)
    except RecursionError:
        return Grade("unknown", answer, "nested too deeply")
    return Grade(verdict, answer, rule)


def equivalent(gold: str, answer: str) -> tuple[Verdict, str]:
    """Whether `answer` means `gold` (the order matters), and the rule that decided."""
    gold_text, answer_text = normalise(unwrap_box(gold)), normalise(answer)
    if not gold_text:
        return "unknown", "empty gold answer"
    if not answer_text:
        return "wrong", "empty answer"
    if gold_text == answer_text or _words(gold_text) == _words(answer_text) != "":
        return "correct", "same text"
    if max(len(gold_text), len(answer_text)) > MAX_ANSWER:
        return "wrong", "too long"
    return _compare(_read(gold_text), _read(answer_text))


@dataclass(frozen=True)
class _Value:
    """An answer's outer structure.

    `kind` is "one" (`items` is that one text), "list" (bare commas), "set", "union", or the pair of brackets.
    """

    kind: str
    items: tuple[str, ...]


def _read(text: str) -> _Value:
    text = strip_assignment(text)
    parts = _split(text, r"\cup")
    if len(parts) > 1:
        return _Value("union", parts)
    if text.startswith(r"\{") and text.endswith(r"\}"):
        return _Value("set", _split(text[2:-2], ","))
    parts = _split(text, ",")
    if text[0] in "([" and text[-1] in ")]" and len(parts) == 1:
        inner = _split(text[1:-1], ",")
        if len(inner) > 1 and _closed(text[1:-1]):
            return _Value(text[0] + text[-1], inner)
    if len(parts) > 1 and _THOUSANDS.fullmatch(text):
        return _Value("one", (text,))
    if len(parts) == 1 and r"\pm" in text and text.count(r"\pm") == 1:
        before, _, after = text.partition(r"\pm")
        return _Value("list", (f"{before}+{after}" if before else after.strip(), f"{before}-{after}"))
    return _Value("list" if len(parts) > 1 else "one", parts)


def _compare(gold: _Value, given: _Value) -> tuple[Verdict, str]:
    if gold.kind == given.kind == "one":
        return _compare_one(gold.items[0], given.items[0])
    if len(gold.items) != len(given.items):
        return "wrong", "different number of parts"
    kinds = {gold.kind, given.kind}
    if kinds <= {"list", "set", "one"} or kinds == {"union"}:
        return _match_unordered(gold.items, given.items)
    if len(kinds) == 1 or kinds == {"list", "()"}:
        return _all(_compare(_read(a), _read(b)) for a, b in zip(gold.items, given.items, strict=True))
    return "wrong", "different brackets"


def _compare_one(gold: str, given: str) -> tuple[Verdict, str]:
    if gold == given:
        return "correct", "same text"
    gold_number, given_number = quantity(gold), quantity(given)
    if gold_number and given_number:
        return ("correct" if same_quantity(gold_number, given_number) else "wrong"), "exact value"
    if any(_LITERAL.search(text) for text in (gold, given)):
        return "wrong", "not a formula, and the texts differ"
    return symbolic_verdict(gold, given)


def _match_unordered(gold: tuple[str, ...], given: tuple[str, ...]) -> tuple[Verdict, str]:
    """Pair every gold part with another given part; unknown when only undecided pairs could complete the pairing."""
    left = list(given)
    undecided = False
    for part in gold:
        verdicts = [_compare(_read(part), _read(other))[0] for other in left]
        if "correct" in verdicts:
            del left[verdicts.index("correct")]
        elif "unknown" in verdicts:
            undecided = True
        else:
            return "wrong", "unordered parts"
    return ("unknown" if undecided else "correct"), "unordered parts"


def _all(results: Iterable[tuple[Verdict, str]]) -> tuple[Verdict, str]:
    verdicts = {verdict for verdict, _ in results}
    worst: Verdict = "wrong" if "wrong" in verdicts else "unknown" if "unknown" in verdicts else "correct"
    return worst, "ordered parts"


def _split(text: str, separator: str) -> tuple[str, ...]:
    """Cut at the separator outside all brackets; `or` and `and` separate like a comma."""
    if separator == ",":
        text = _SEPARATOR.sub(",", text)
    parts, depth, start, position = list[str](), 0, 0, 0
    while position < len(text):
        char = text[position]
        depth += (char in "([{") - (char in ")]}")
        if depth == 0 and text.startswith(separator, position):
            parts.append(text[start:position])
            start = position + len(separator)
            position = start
            continue
        position += 1
    parts.append(text[start:])
    return tuple(stripped for part in parts if (stripped := part.strip())) or (text,)


def _closed(text: str) -> bool:
    """Whether no bracket of `text` closes one that was opened before it: `1,2` in `(1,2)`, not `1)+(2`."""
    depth = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            return False
    return True


def _words(text: str) -> str:
    """The text in lower case if it is made of words only, else nothing."""
    return text.casefold() if re.fullmatch(r"[A-Za-z]{2,}(?:[ -][A-Za-z]+)*", text) else ""
