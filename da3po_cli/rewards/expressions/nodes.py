"""The tree of a formula, and numbers as they are written."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

MAX_DIGITS = 4000  # of one number


class Node(NamedTuple):
    """One operation.

    `op` is "number" (`value` a Fraction), "symbol" (`value` its name), "matrix" (`value` the number of columns), or
    one of + * / ^ neg root abs floor ceil ! and the names of functions.
    """

    op: str
    args: tuple[Node, ...] = ()
    value: Fraction | str | int | None = None
    digits: int = 0  # significant digits of a number that was written as a decimal


class NotAnExpression(Exception):
    """The text is not in the grammar, or beyond its caps."""


def number(value: Fraction | int) -> Node:
    return Node("number", (), Fraction(value))


def read_number(token: str) -> Node:
    """A decimal literal, exactly."""
    mantissa, _, exponent = token.lower().partition("e")
    if len(token) > MAX_DIGITS or abs(int(exponent or 0)) > MAX_DIGITS:
        raise NotAnExpression("too many digits")
    value = Fraction(mantissa.rstrip(".") or "0")
    if exponent:
        value *= Fraction(10) ** int(exponent)
    digits = len(mantissa.replace(".", "").lstrip("0")) if "." in mantissa or exponent else 0
    return Node("number", (), value, digits)


def repeating(start: str, digits: str) -> Node:
    """The value of `start` followed by `digits` for ever: repeating("0.1", "6") is 1/6."""
    whole, _, fraction = start.partition(".")
    scale = 10 ** len(fraction)
    value = Fraction(int(whole or "0") * scale + int(fraction or "0"), scale)
    return number(value + Fraction(int(digits), (10 ** len(digits) - 1) * scale))


def continued(token: str) -> Node:
    """0.333… is 1/3 and 0.1212… is 4/33; anything that does not clearly repeat is no number."""
    match = re.fullmatch(r"(\d*\.\d*?)(\d{1,6})\2+", token[:60])
    if match is None or (len(match[2]) == 1 and not token.endswith(match[2] * 3)):
        raise NotAnExpression("…")
    return repeating(match[1], match[2])
