"""Exact rational value of a numeric expression in LaTeX or plain notation. Nothing is ever evaluated by Python."""

from __future__ import annotations

import re
from fractions import Fraction
from math import isqrt

MAX_BITS = 4096  # of a numerator or denominator; a larger number has no value here
MAX_DEPTH = 20

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?)|(?P<command>\\[a-zA-Z]+)|(?P<symbol>[-+*/^(){}]))"
)
_TIMES = {"*", "\\cdot", "\\times"}
_OVER = {"/", "\\div"}
_INTEGER = re.compile(r"\d+")


def exact_value(text: str) -> Fraction | None:
    """The value of sums, products, fractions, mixed numbers, integer powers and square roots of perfect squares.

    None when the text is anything else (symbols, irrational, juxtaposed numbers as in `3 4`) or the value is larger
    than MAX_BITS: for those this function has no opinion.
    """
    try:
        parser = _Parser(_tokens(text))
        value = parser.sum()
        return value if parser.done else None
    except (_NoValue, ZeroDivisionError):
        return None


class _NoValue(Exception):
    pass


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _NoValue
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


class _Parser:
    """Recursive descent: sum -> product -> signed -> power -> atom."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = [*tokens, ""]
        self._at = 0
        self._depth = 0

    @property
    def done(self) -> bool:
        return self._peek == ""

    @property
    def _peek(self) -> str:
        return self._tokens[self._at]

    def _take(self, expected: str | None = None) -> str:
        token = self._peek
        if token == "" or (expected is not None and token != expected):
            raise _NoValue
        self._at += 1
        return token

    def sum(self) -> Fraction:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _NoValue
        value = self._product()
        while self._peek in ("+", "-"):
            sign = 1 if self._take() == "+" else -1
            value = _bounded(value + sign * self._product())
        self._depth -= 1
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while self._peek in _TIMES or self._peek in _OVER:
            if self._take() in _TIMES:
                value = _bounded(value * self._signed())
            else:
                value = _bounded(value / self._signed())
        return value

    def _signed(self) -> Fraction:
        sign = 1
        while self._peek in ("+", "-"):
            sign = sign if self._take() == "+" else -sign
        return sign * self._power()

    def _power(self) -> Fraction:
        base = self._atom()
        if self._peek != "^":
            return base
        self._take()
        return _power(base, self._signed() if self._peek in ("+", "-") else self._atom())

    def _atom(self) -> Fraction:
        token = self._take()
        if token[0].isdigit() or token[0] == ".":
            value = _number(token)
            mixed = self._peek == "\\frac" and _INTEGER.fullmatch(token)
            return value + self._atom() if mixed else value
        if token in ("(", "{"):
            value = self.sum()
            self._take(")" if token == "(" else "}")
            return value
        if token == "\\frac":
            return _bounded(self._braced() / self._braced())
        if token == "\\sqrt":
            return _root(self._braced())
        raise _NoValue

    def _braced(self) -> Fraction:
        self._take("{")
        value = self.sum()
        self._take("}")
        return value


def _number(token: str) -> Fraction:
    mantissa, _, exponent = token.lower().partition("e")
    if len(mantissa) > MAX_BITS // 4:
        raise _NoValue
    return _bounded(Fraction(mantissa) * _power(Fraction(10), Fraction(exponent or 0)))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    """base ** exponent, refused before it is computed when the result would be too large."""
    if exponent.denominator != 1:
        raise _NoValue
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent) > MAX_BITS and abs(base) != 1:
        raise _NoValue
    if abs(base) == 1:
        return Fraction(1) if base == 1 or exponent % 2 == 0 else Fraction(-1)
    return base ** int(exponent)


def _root(value: Fraction) -> Fraction:
    if value < 0:
        raise _NoValue
    top, bottom = isqrt(value.numerator), isqrt(value.denominator)
    if top * top != value.numerator or bottom * bottom != value.denominator:
        raise _NoValue
    return Fraction(top, bottom)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise _NoValue
    return value
