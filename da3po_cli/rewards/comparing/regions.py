"""Sets of real numbers: intervals, unions, inequalities and finite sets, brought to sorted disjoint intervals."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from da3po_cli.rewards.expressions.equality import close
from da3po_cli.rewards.expressions.evaluate import Irrational, Numeric, TooLarge, Undefined, exact, symbols
from da3po_cli.rewards.expressions.expression import parse
from da3po_cli.rewards.expressions.nodes import Node, NotAnExpression
from da3po_cli.rewards.reading.answer import Answer

Bound = Any  # a Fraction, a real number of mpmath, or an infinity
Interval = tuple[Bound, bool, Bound, bool]
"""(low, whether it belongs, high, whether it belongs)."""

_INTERVALS = {"()", "[]", "[)", "(]"}
_EVERYTHING: Interval = (-math.inf, False, math.inf, False)
_FLIPPED = {"<": ">", ">": "<", "≤": "≥", "≥": "≤", "≠": "≠"}


class NoRegion(Exception):
    """Not a set of real numbers with numeric bounds."""


def region(answer: Answer) -> list[Interval]:
    """The set as sorted disjoint intervals.

    Raises:
        NoRegion
    """
    try:
        return _region(answer)
    except (NotAnExpression, Irrational, TooLarge, Undefined) as error:
        raise NoRegion from error


def same_region(gold: list[Interval], given: list[Interval], rel_tol: float = 0.0) -> bool:
    """Whether two sets are the same; bounds may differ by `rel_tol`, relatively."""

    def same(a: Bound, b: Bound) -> bool:
        return _equal(a, b) or bool(rel_tol and not math.isinf(a) and abs(float(a - b)) <= rel_tol * abs(float(a)))

    return len(gold) == len(given) and all(
        same(a[0], b[0]) and a[1] == b[1] and same(a[2], b[2]) and a[3] == b[3]
        for a, b in zip(gold, given, strict=True)
    )


def _region(answer: Answer) -> list[Interval]:
    kind, items = answer.kind, answer.items
    if kind in _INTERVALS and len(items) == 2:
        low, high = (_bound(item.text) for item in items)
        return [(low, kind[0] == "[", high, kind[1] == "]")]
    if kind == "union":
        return _merged([interval for item in items for interval in _region(item)])
    if kind == "both":
        found = [_EVERYTHING]
        for item in items:
            found = _intersection(found, _region(item))
        return found
    if kind == "minus":
        found = _region(items[0])
        for item in items[1:]:
            found = _intersection(found, _complement(_region(item)))
        return found
    if kind == "set":
        return _merged([(value, True, value, True) for value in (_bound(item.text) for item in items)])
    if kind == "relation":
        return _relation(answer)
    if kind == "list" and items and all(item.kind == "relation" and item.signs == "≠" for item in items):
        found = [_EVERYTHING]
        for item in items:
            found = _intersection(found, _relation(item))
        return found
    if kind == "leaf" and answer.text in (r"\mathbb{R}", r"\mathbb R"):
        return [_EVERYTHING]
    raise NoRegion


def _bound(text: str) -> Bound:
    text = text.strip()
    if text in ("∞", "+∞"):
        return math.inf
    if text == "-∞":
        return -math.inf
    return _value(parse(text))


def _value(node: Node) -> Bound:
    if symbols(node):
        raise NoRegion
    try:
        return exact(node)
    except Irrational:
        value = Numeric({}).value(node)
        if value.imag:
            raise NoRegion from None
        return value.real


def _relation(answer: Answer) -> list[Interval]:
    """a < x ≤ b and the like, linear in one symbol."""
    sides = [item.text for item in answer.items]
    found = [_EVERYTHING]
    for left, sign, right in zip(sides, answer.signs, sides[1:], strict=False):
        found = _intersection(found, _half_line(left, sign, right))
    return found


def _half_line(left: str, sign: str, right: str) -> list[Interval]:
    for side, other, towards in ((left, right, sign), (right, left, _FLIPPED[sign])):
        if side.strip() in ("∞", "+∞", "-∞"):  # x < ∞ says nothing
            if (side.strip() == "-∞") == (towards in "<≤") and symbols(parse(other)):
                return [_EVERYTHING]
            raise NoRegion
    difference = Node("+", (parse(left), Node("neg", (parse(right),))))
    names = symbols(difference)
    if len(names) != 1:
        raise NoRegion
    name = names.pop()

    def at(value: int) -> Bound:
        return _at(difference, name, value)

    start = at(0)
    slope = at(1) - start
    if slope == 0 or not _equal(at(7), start + 7 * slope) or not _equal(at(-3), start - 3 * slope):
        raise NoRegion
    root = -start / slope
    sign = sign if slope > 0 else _FLIPPED[sign]
    if sign == "≠":
        return [(-math.inf, False, root, False), (root, False, math.inf, False)]
    belongs = sign in "≤≥"
    return [(-math.inf, False, root, belongs)] if sign in "<≤" else [(root, belongs, math.inf, False)]


def _at(node: Node, name: str, value: int) -> Bound:
    env = {name: Fraction(value)}
    try:
        return exact(node, env)
    except Irrational:
        found = Numeric(env).value(node)
        if found.imag:
            raise NoRegion from None
        return found.real


def _equal(left: Bound, right: Bound) -> bool:
    if left == right:
        return True
    if isinstance(left, float) or isinstance(right, float):  # an infinity
        return False
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return False
    return close(*(_number(value) for value in (left, right)))


def _number(value: Bound) -> Any:
    return Numeric({}).value(Node("number", (), value)) if isinstance(value, Fraction) else value


def _below(left: Bound, right: Bound) -> bool:
    if _equal(left, right):
        return False
    if isinstance(left, Fraction) != isinstance(right, Fraction) and not isinstance(left, float | int):
        return bool(_number(left) < (right if isinstance(right, float) else _number(right)))
    if isinstance(right, Fraction) and not isinstance(left, Fraction | float):
        return bool(left < _number(right))
    return bool(left < right)


def _merged(intervals: list[Interval]) -> list[Interval]:
    """Sorted, with those that touch joined."""
    found: list[Interval] = []
    left = [interval for interval in intervals if not _is_void(interval)]
    while left:
        low = 0
        for at in range(1, len(left)):
            if _below(left[at][0], left[low][0]) or (_equal(left[at][0], left[low][0]) and left[at][1]):
                low = at
        found.append(left.pop(low))
        if len(found) > 1:
            a, b = found[-2:]
            touches = not _below(a[2], b[0]) and (not _equal(a[2], b[0]) or a[3] or b[1])
            if touches:
                longer = b if _below(a[2], b[2]) else a
                closed = (a[3] or b[3]) if _equal(a[2], b[2]) else longer[3]
                found[-2:] = [(a[0], a[1], longer[2], closed)]
    return found


def _is_void(interval: Interval) -> bool:
    low, low_in, high, high_in = interval
    return _below(high, low) or (_equal(low, high) and not (low_in and high_in))


def _intersection(left: list[Interval], right: list[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for a in left:
        for b in right:
            low, low_in = (b[0], b[1]) if _below(a[0], b[0]) else (a[0], a[1])
            if _equal(a[0], b[0]):
                low_in = a[1] and b[1]
            high, high_in = (a[2], a[3]) if _below(a[2], b[2]) else (b[2], b[3])
            if _equal(a[2], b[2]):
                high_in = a[3] and b[3]
            found.append((low, low_in, high, high_in))
    return _merged(found)


def _complement(intervals: list[Interval]) -> list[Interval]:
    found: list[Interval] = []
    low: Bound = -math.inf
    low_in = False
    for interval in intervals:
        found.append((low, low_in, interval[0], not interval[1] and not isinstance(interval[0], float)))
        low, low_in = interval[2], not interval[3] and not isinstance(interval[2], float)
    found.append((low, low_in, math.inf, False))
    return _merged(found)
