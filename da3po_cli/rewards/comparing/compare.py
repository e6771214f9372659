"""Whether two answers mean the same: structure against structure, then leaf against leaf.

Gold comes first everywhere, and the order matters: a gold answer decides what may be left out of a given one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from da3po_cli.rewards.comparing.leaves import Leaves, Result, all_of, as_result, counted, parsed
from da3po_cli.rewards.comparing.regions import NoRegion, region, same_region
from da3po_cli.rewards.expressions.equality import proportional, same_value
from da3po_cli.rewards.expressions.evaluate import symbols
from da3po_cli.rewards.expressions.expression import parse
from da3po_cli.rewards.expressions.nodes import Node, NotAnExpression
from da3po_cli.rewards.reading import words
from da3po_cli.rewards.reading.answer import Answer, TooNested, flat, read
from da3po_cli.rewards.reading.normalise import normalise
from da3po_cli.rewards.reading.quantity import single_unit
from da3po_cli.rewards.types import MathOptions

MAX_ANSWER = 2000  # characters; beyond it only the identical text is correct

_TUPLES = {"()", "[]", "[)", "(]"}
_EXPLICIT = {"relation", "union", "both", "minus", "[)", "(]", "[]"}
_FLIPPED = {"<": ">", ">": "<", "≤": "≥", "≥": "≤", "≠": "≠"}
_PLAIN = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)")
_FRACTION = re.compile(r"([-+]?)\\frac\{(\d+)\}\{(\d+)\}|([-+]?)(\d+)/(\d+)")
_DECIMAL_COMMA = re.compile(r"([-+]?\d+),(\d+)")
_LEAD = re.compile(r"^\\text\{[^{}]*\b(?:is|are|equals)[: ]*\} ?")


def equivalent(gold: str, answer: str, options: MathOptions | None = None) -> Result:
    """Whether `answer` means `gold`, and the rule that decided (the reason, for unknown)."""
    options = options or MathOptions()
    if max(len(answer), len(gold)) > MAX_ANSWER:
        if answer.strip() == gold.strip() != "":
            return "correct", "same text"
        return ("unknown", "gold answer too long") if len(gold) > MAX_ANSWER else ("wrong", "longer than any answer")
    gold_text, answer_text = normalise(gold), normalise(answer)
    if not gold_text:
        return "unknown", "empty gold answer"
    if not answer_text:
        return "wrong", "empty answer"
    if gold_text == answer_text:
        return "correct", "same text"
    gold_value, given_value = _simple(gold_text), _simple(answer_text)
    if gold_value is not None and given_value is not None and not options.rel_tol:
        if gold_value == given_value:
            return "correct", "exact value"
        if max(len(gold_text), len(answer_text)) < 12:
            return "wrong", "exact value"
    gold_text, answer_text = counted(gold_text), counted(answer_text)
    gold_date, given_date = words.date(gold_text), words.date(answer_text)
    if gold_date and given_date:
        return ("correct" if gold_date == given_date else "wrong"), "dates"
    try:
        gold_text, answer_text = single_unit(gold_text), single_unit(_LEAD.sub("", answer_text) or answer_text)
        result = _Comparison(options).compare(read(gold_text), read(answer_text))
    except (TooNested, RecursionError):
        return "wrong", "nested deeper than any answer"
    if result[0] != "correct" and "," in gold_text + answer_text:
        comma = _decimal_comma(gold_text, answer_text)
        return comma or result
    return result


def _simple(text: str) -> Fraction | None:
    """The value of a plain decimal or fraction: the fast path of most answers."""
    if len(text) > 200:
        return None
    if _PLAIN.fullmatch(text):
        return Fraction(text.rstrip(".")) if text[-1:] != "." else Fraction(text[:-1])
    match = _FRACTION.fullmatch(text)
    if match:
        sign, top, bottom = match.group(1, 2, 3) if match[2] else match.group(4, 5, 6)
        return Fraction(int(sign + top), int(bottom)) if int(bottom) else None
    return None


def _decimal_comma(gold: str, given: str) -> Result | None:
    """`1000,99` is 1000.99 where gold is that decimal and the comma can't be one of thousands.

    A gold answer `5,15` is a list; only one such as `0,125` is a decimal.
    """
    for comma, point in ((gold, given), (given, gold)):
        match = _DECIMAL_COMMA.fullmatch(comma)
        if not match or not _PLAIN.fullmatch(point) or "." not in point:
            continue
        if comma is gold and not (match[1].lstrip("+-") == "0" and len(match[2]) >= 3):
            continue
        thousands = len(match[2]) == 3 and len(match[1].lstrip("+-")) <= 3 and not match[1].lstrip("+-").startswith("0")
        if not thousands and Fraction(f"{match[1]}.{match[2]}") == Fraction(point):
            return "correct", "decimal comma"
    return None


class _Comparison:
    """One pair of answers under one set of options."""

    def __init__(self, options: MathOptions) -> None:
        self._options = options
        self._leaves = Leaves(options)

    def compare(self, gold: Answer, given: Answer) -> Result:
        """Structures of all kinds."""
        if gold.text == given.text and gold.kind == given.kind:
            return "correct", "same text"
        if gold.kind == "named" or given.kind == "named":
            return self._named(gold, given)
        if gold.kind == given.kind == "leaf":
            return self._leaves.compare(gold.text, given.text)
        as_regions = self._regions(gold, given)
        if as_regions is not None:
            return as_regions
        if gold.kind == given.kind == "equation":
            return self._equations(gold, given)
        if gold.kind == given.kind == "relation":
            return self._relations(gold, given)
        if "equation" in (gold.kind, given.kind):
            return self._equation_and_value(gold, given)
        return self._collections(gold, given)

    # -- collections

    def _collections(self, gold: Answer, given: Answer) -> Result:
        kinds = {gold.kind, given.kind}
        if "empty" in kinds:
            other = next((a for a in (gold, given) if a.kind != "empty"), None)
            return ("correct" if other is None or words.words(other.text) == "∅" else "wrong"), "empty set"
        if kinds <= {"list", "set"} and (_all_named(gold) or _all_named(given)):
            return self._named_lists(gold, given)
        if kinds <= {"list", "set", "leaf"}:
            return self._unordered(_items(gold), _items(given), sets=_may_repeat(gold))
        if kinds == {"union"} or kinds == {"both"}:
            return self._unordered(gold.items, given.items, sets=False)
        if kinds in ({"minus"}, {"column"}, {"row"}) or (len(kinds) == 1 and gold.kind in _TUPLES):
            return self._ordered(gold.items, given.items)
        if kinds <= {"list", "()", "column"} or kinds == {"list", "[]"} or kinds == {"row", "()"}:
            return self._ordered(_values(gold), _values(given))
        if "leaf" in kinds:
            return self._leaf_and_structure(gold, given)
        return "wrong", "different structure"

    def _leaf_and_structure(self, gold: Answer, given: Answer) -> Result:
        if {gold.kind, given.kind} & {"column", "row"}:
            return self._leaves.compare(gold.text, given.text)
        return "wrong", "different structure"

    def _ordered(self, gold: Sequence[Answer], given: Sequence[Answer]) -> Result:
        if len(gold) != len(given):
            return "wrong", "different number of parts"
        return all_of((self.compare(a, b) for a, b in zip(gold, given, strict=True)), "ordered parts")

    def _unordered(self, gold: Sequence[Answer], given: Sequence[Answer], *, sets: bool) -> Result:
        """Pair every gold part with another given part; unknown when only undecided pairs could complete the pairing.

        With `sets`, parts may be repeated.
        """
        if len(gold) != len(given) and not sets:
            return "wrong", "different number of parts"
        left = list(given)
        undecided = False
        for part in gold:
            verdicts = [self.compare(part, other)[0] for other in left]
            if "correct" in verdicts:
                index = verdicts.index("correct")
                del left[index]
            elif "unknown" in verdicts:
                undecided = True
            else:
                return "wrong", "unordered parts"
        for part in left if sets else []:
            verdicts = {self.compare(other, part)[0] for other in gold}
            if "correct" not in verdicts:
                if "unknown" not in verdicts:
                    return "wrong", "unordered parts"
                undecided = True
        return ("unknown" if undecided else "correct"), "unordered parts"

    def _regions(self, gold: Answer, given: Answer) -> Result | None:
        """Both as sets of real numbers; None where one is none, or where both are plain tuples or lists."""
        kinds = {gold.kind, given.kind}
        if not kinds & _EXPLICIT or (kinds <= {"[]", "list", "leaf", "()"} and kinds != {"[]"}):
            return None
        if kinds == {"[]"} and len(gold.items) != 2:
            return None
        try:
            left, right = region(gold), region(given)
        except NoRegion:
            return None
        return ("correct" if same_region(left, right, self._options.rel_tol) else "wrong"), "sets of numbers"

    # -- names and equations

    def _named(self, gold: Answer, given: Answer) -> Result:
        """`x = 5` is 5, and so is `y = 5`: equal numbers are enough. For formulas the names must go together."""
        if gold.kind == given.kind:
            formula = _has_symbols(gold.items[0].text)
            if formula and not _same_role(gold.signs, given.signs):
                result: Result = ("wrong", "different names")
            else:
                result = self.compare(gold.items[0], given.items[0])
            if result[0] == "correct" or not _has_symbols(gold.text):
                return result
            return self._sides(gold.items[1:], given.items[1:])
        named, other = (gold, given) if gold.kind == "named" else (given, gold)
        if other.kind == "equation":
            sides = Answer("equation", "", named.items[1:])
            return self._equations(sides, other) if named is gold else self._equations(other, sides)
        if other.kind in _TUPLES | {"list", "set"} and named.items[0].kind == "leaf" and len(other.items) > 1:
            return "wrong", "one named value and several values"
        return self.compare(gold.items[0] if named is gold else gold, given.items[0] if named is given else given)

    def _named_lists(self, gold: Answer, given: Answer) -> Result:
        gold_items, given_items = _items(gold), _items(given)
        gold_names, given_names = _names(gold_items), _names(given_items)
        if gold_names and given_names and sorted(gold_names) == sorted(given_names) and len(set(gold_names)) > 1:
            pairs = _by_name(gold_items, given_items)
            if pairs is not None:
                return all_of((self.compare(a.items[0], b.items[0]) for a, b in pairs), "named parts")
        gold_values, given_values = flat(_values(gold)), flat(_values(given))
        if _distinct(gold_names) or _distinct(given_names):
            return self._ordered(gold_values, given_values)
        return self._unordered(gold_values, given_values, sets=False)

    def _equations(self, gold: Answer, given: Answer) -> Result:
        if len(gold.items) != 2 or len(given.items) != 2:
            return self._ordered(gold.items, given.items)
        return self._sides(gold.items, given.items)

    def _sides(self, gold: Sequence[Answer], given: Sequence[Answer]) -> Result:
        """left = right as left - right = 0, up to a constant factor."""
        try:
            return as_result(proportional(_difference(gold), _difference(given)), "same equation")
        except NotAnExpression:
            return "unknown", "cannot read the equation"

    def _equation_and_value(self, gold: Answer, given: Answer) -> Result:
        """`2 + 3 = 5` is 5 when it holds; an equation between symbols is no value."""
        equation, other = (gold, given) if gold.kind == "equation" else (given, gold)
        if other.kind != "leaf":
            return "wrong", "equation and value"
        try:
            sides = [parse(item.text) for item in equation.items]
        except NotAnExpression:
            return "wrong", "equation and value"
        if any(symbols(side) for side in sides) or not all(same_value(sides[0], side) for side in sides[1:]):
            return "wrong", "equation and value"
        value = equation.items[-1].text
        return self._leaves.compare(value, other.text) if equation is gold else self._leaves.compare(other.text, value)

    def _relations(self, gold: Answer, given: Answer) -> Result:
        """Inequalities in several symbols: side by side, each up to a positive factor."""
        results: list[Result] = []
        for flip in (False, True):
            items, signs = list(given.items), given.signs
            if flip:
                items, signs = items[::-1], "".join(_FLIPPED[sign] for sign in reversed(signs))
            if signs == gold.signs:
                results.append(self._ordered(gold.items, items))
                if results[-1][0] != "correct" and len(signs) == 1:
                    results.append(self._scaled(gold.items, items, positive=signs != "≠"))
        if not results and len(gold.signs) == len(given.signs) == 1 and given.signs == _FLIPPED[gold.signs]:
            results.append(self._scaled(gold.items, given.items[::-1], positive=True))
        return max(results, key=lambda result: ("wrong", "unknown", "correct").index(result[0])) if results else (
            "wrong", "different relations"
        )  # fmt: skip

    def _scaled(self, gold: Sequence[Answer], given: Sequence[Answer], *, positive: bool) -> Result:
        try:
            return as_result(proportional(_difference(gold), _difference(given), positive=positive), "same relation")
        except NotAnExpression:
            return "unknown", "cannot read the relation"


def _items(answer: Answer) -> Sequence[Answer]:
    return answer.items if answer.kind in ("list", "set") else (answer,)


def _values(answer: Answer) -> list[Answer]:
    """Items without their names."""
    return [item.items[0] if item.kind == "named" else item for item in answer.items]


def _may_repeat(gold: Answer) -> bool:
    """Sets and lists of tuples don't count repetitions; a list of numbers (sides, roots) does."""
    return gold.kind == "set" or (gold.kind == "list" and all(item.kind in _TUPLES for item in gold.items))


def _all_named(answer: Answer) -> bool:
    return answer.kind in ("list", "set") and all(item.kind == "named" for item in answer.items)


def _names(items: Sequence[Answer]) -> list[str]:
    return [item.signs for item in items if item.kind == "named"] if all(i.kind == "named" for i in items) else []


def _distinct(names: list[str]) -> bool:
    return len({name.partition("_")[0] for name in names}) > 1


def _by_name(gold: Sequence[Answer], given: Sequence[Answer]) -> list[tuple[Answer, Answer]] | None:
    by_name = {item.signs: item for item in given}
    if len(by_name) != len(given):
        return None
    return [(item, by_name[item.signs]) for item in gold]


def _same_role(gold: str, given: str) -> bool:
    """Whether two names may stand for the same formula: f(x), g(x) and y do, f(n) and f(x) do not, nor a and b."""
    arguments = {name.partition("(")[2] for name in (gold, given) if not name.startswith("(")} - {""}
    if len(arguments) > 1:
        return False
    return gold == given or max(len(gold), len(given)) > 1 or bool({gold, given} & set("fghy"))


def _has_symbols(text: str) -> bool:
    node = parsed(text)
    return node is None or bool(symbols(node))


def _difference(sides: Sequence[Answer]) -> Node:
    left, right = (parse(side.text) for side in sides)
    return Node("+", (left, Node("neg", (right,))))
