"""Comparing leaves: formulas, quantities, words, choices, times, ratios, numbers in another base."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

from da3po_cli.algos.types import Verdict
from da3po_cli.rewards.expressions.equality import Same, same_value
from da3po_cli.rewards.expressions.evaluate import Irrational, TooLarge, Undefined, exact
from da3po_cli.rewards.expressions.expression import parse
from da3po_cli.rewards.expressions.nodes import Node, NotAnExpression, number
from da3po_cli.rewards.reading import words
from da3po_cli.rewards.reading.answer import is_name, split
from da3po_cli.rewards.reading.quantity import Quantity, quantity
from da3po_cli.rewards.types import MathOptions

Result = tuple[Verdict, str]
"""A verdict and the rule that decided; the reason, for unknown."""

_BASE = re.compile(r"([-+]?[0-9A-Za-z]+)_\{?(\d{1,2}|\\text\{[a-z]+\})\}?")
_WORD_LETTERS = re.compile(r"[A-Za-z]{2,}")


class Leaves:
    """Compares two leaves, gold first, under one set of options."""

    def __init__(self, options: MathOptions) -> None:
        self._options = options

    def compare(self, gold: str, given: str) -> Result:
        """Texts without structure."""
        if gold == given:
            return "correct", "same text"
        special = self._special(gold, given)
        if special is not None:
            return special
        left, right = quantity(gold), quantity(given)
        if left.value == gold and right.value == given:
            return self._expressions(gold, given)
        return self._quantities(left, right)

    def _quantities(self, gold: Quantity, given: Quantity) -> Result:
        """Equal values; units only tell two quantities apart when both sides name one."""
        left, right = gold.large, given.large
        if gold.dimensions and given.dimensions:
            if gold.dimensions != given.dimensions:
                return "wrong", "different units"
            left, right = left * gold.factor, right * given.factor
        elif (gold.percent and given.dimensions) or (given.percent and gold.dimensions):
            return "wrong", "different units"
        if gold.percent == given.percent:
            return self._expressions(gold.value, given.value, left, right)
        result = self._expressions(
            gold.value, given.value, left / 100 if gold.percent else left, right / 100 if given.percent else right
        )
        if result[0] == "correct" or self._options.percent == "exact":
            return result
        if not gold.percent and not _above_one(gold.value):
            return result  # gold 0.5 does not take 0.5%, for a share below 1 is a plain number
        return self._expressions(gold.value, given.value, left, right)

    def _expressions(
        self, gold: str, given: str, left: Fraction = Fraction(1), right: Fraction = Fraction(1)
    ) -> Result:
        """Formulas, each times its factor."""
        if gold == given and left == right:
            return "correct", "same text"
        gold_node, given_node = parsed(gold), parsed(given)
        if gold_node is None or given_node is None:
            return _unreadable(gold, given, gold_node, given_node)
        symbols_alone = gold_node.op == given_node.op == "symbol"  # alpha is \alpha
        if not symbols_alone and (_WORD_LETTERS.fullmatch(gold) or _WORD_LETTERS.fullmatch(given)):
            return "wrong", "words differ"  # ab is not ba where it may be a word
        if left != 1:
            gold_node = Node("*", (gold_node, number(left)))
        if right != 1:
            given_node = Node("*", (given_node, number(right)))
        same = same_value(gold_node, given_node, self._options.rel_tol)
        return as_result(same, "same value", "value beyond the caps")

    def _special(self, gold: str, given: str) -> Result | None:
        """Leaves that are no formulas: choices, words, times, dates, ratios, numbers in another base."""
        result = _choices(gold, given)
        if result is not None:
            return result
        gold_words, given_words = words.words(gold), words.words(given)
        if gold_words and gold_words == given_words and (len(gold_words) > 1 or gold_words == "∅"):
            return "correct", "same words"
        gold_time, given_time = words.clock(gold), words.clock(given)
        if gold_time and given_time and not (gold.count(":") == given.count(":") == 0 and gold_time == given_time):
            return ("correct" if gold_time == given_time else "wrong"), "times"
        if ":" in gold or ":" in given:
            return self._ratios(gold, given)
        based = [_BASE.fullmatch(text) for text in (gold, given)]
        if any(match and match[1].lstrip("+-")[:1].isdigit() for match in based):
            same = all(based) and compact(gold) == compact(given)
            return ("correct" if same else "wrong"), "digits and base"
        texts = counted(gold), counted(given)
        return None if texts == (gold, given) else self.compare(*texts)

    def _ratios(self, gold: str, given: str) -> Result:
        left, right = split(gold, ":"), split(given, ":")
        if len(left) != len(right) or not all(left) or not all(right):
            return "wrong", "ratio"
        if is_name(gold) or is_name(given):
            return "wrong", "ratio"
        return all_of((self.compare(a, b) for a, b in zip(left, right, strict=True)), "ratio")


def as_result(same: Same, rule: str, reason: str = "could not be evaluated") -> Result:
    return ("unknown", reason) if same is None else ("correct" if same else "wrong", rule)


def all_of(results: Iterable[Result], rule: str) -> Result:
    undecided = None
    for verdict, why in results:
        if verdict == "wrong":
            return "wrong", rule
        if verdict == "unknown":
            undecided = why
    return ("unknown", undecided) if undecided else ("correct", rule)


def parsed(text: str) -> Node | None:
    try:
        return parse(text)
    except NotAnExpression:
        return None


def _unreadable(gold: str, given: str, gold_node: Node | None, given_node: Node | None) -> Result:
    """No expression on one side or both: words are wrong, formulas outside of the grammar unknown."""
    for text, node in ((gold, gold_node), (given, given_node)):
        if node is None and not re.search(r"\\(?!text)[a-zA-Z]|[∫∑]", text):
            return "wrong", "not the same words"
    if compact(gold) == compact(given):
        return "correct", "same text"
    return "unknown", "cannot read the formula"


def compact(text: str) -> str:
    return re.sub(r"[\s{}]", "", text)


def _above_one(text: str) -> bool:
    node = parsed(text)
    try:
        return node is not None and abs(exact(node)) > 1
    except (Irrational, TooLarge, Undefined):
        return False


def _choices(gold: str, given: str) -> Result | None:
    letter, chosen = words.choice(gold), words.chosen(gold)
    if letter:
        other = words.choice(given) or words.chosen(given)
        if other:
            return ("correct" if other == letter else "wrong"), "choice"
        if len(given) == 1 and letter in "ABCDE" and given.upper() == letter:
            return "correct", "choice"
        return None
    if chosen and (other := words.choice(given)):
        return ("correct" if other == chosen else "wrong"), "choice"
    return None


def counted(text: str) -> str:
    """A number in words as digits; any other text as it is."""
    value = words.number_in_words(text) if len(text) < 100 else None
    return text if value is None else str(value)
