"""`--gate`: a condition on the arms' means, such as `lambda=2.0 > lambda=1.0 + 0.01`. No eval: a small grammar.

    gate       = comparison { "and" comparison }
    comparison = side ( ">" | ">=" | "<" | "<=" ) side
    side       = ( arm | number ) { ( "+" | "-" ) number }

An arm is its label, as the table shows it; the longest label that fits is taken. Its value is the mean over seeds of
the final validation score (AVG where there are several benchmarks), as a share: 0.01 is one percent point.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from da3po_cli.errors import UsageError

_NUMBER = re.compile(r"\d+(\.\d*)?([eE][-+]?\d+)?|\.\d+")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class _Side:
    arm: str | None
    offset: float

    def value(self, means: Mapping[str, float]) -> float | None:
        if self.arm is None:
            return self.offset
        return means[self.arm] + self.offset if self.arm in means else None


@dataclass(frozen=True)
class _Comparison:
    left: _Side
    symbol: str
    right: _Side
    text: str


@dataclass(frozen=True)
class Gate:
    """A parsed gate."""

    text: str
    comparisons: tuple[_Comparison, ...]

    def failures(self, means: Mapping[str, float]) -> list[str]:
        """What is not met, with the values; empty when the gate is met. An arm without a result does not meet any.

        Args:
            means: arm label -> mean score; arms of which no run has finished are absent.
        """
        found: list[str] = []
        for one in self.comparisons:
            left, right = one.left.value(means), one.right.value(means)
            if left is None or right is None:
                missing = [side.arm for side in (one.left, one.right) if side.value(means) is None]
                found.append(f"{one.text}: no finished run of {' and '.join(map(str, missing))}")
            elif not _OPERATORS[one.symbol](left, right):
                found.append(f"{one.text}: {left:.4f} {one.symbol} {right:.4f} is false")
        return found


def parse_gate(text: str, labels: Sequence[str]) -> Gate:
    """Read a gate over these arms.

    Raises:
        UsageError: it is no gate, or names an arm that there is not.
    """
    reader = _Reader(text, labels)
    comparisons = [reader.comparison()]
    while reader.take("and"):
        comparisons.append(reader.comparison())
    if reader.rest:
        raise reader.error("`and`, or the end")
    return Gate(text, tuple(comparisons))


class _Reader:
    def __init__(self, text: str, labels: Sequence[str]) -> None:
        self._text, self._at = text, 0
        self._labels = labels
        self._longest_first = sorted(labels, key=len, reverse=True)

    @property
    def rest(self) -> str:
        return self._text[self._at :].lstrip()

    def take(self, *tokens: str) -> str | None:
        """The first of `tokens` that comes next, and moves on behind it."""
        rest = self.rest
        for token in tokens:
            after = rest[len(token) : len(token) + 1]
            glued = token[-1].isalnum() and (after.isalnum() or after in ("_", "."))
            if rest.startswith(token) and not glued:
                self._at = len(self._text) - len(rest) + len(token)
                return token
        return None

    def comparison(self) -> _Comparison:
        start = len(self._text) - len(self.rest)
        left = self._side()
        symbol = self.take(*_OPERATORS)
        if symbol is None:
            raise self.error("one of > >= < <=")
        right = self._side()
        return _Comparison(left, symbol, right, self._text[start : self._at].strip())

    def _side(self) -> _Side:
        arm = self.take(*self._longest_first)
        offset = 0.0 if arm is not None else self._number()
        while sign := self.take("+", "-"):
            offset += self._number() if sign == "+" else -self._number()
        return _Side(arm, offset)

    def _number(self) -> float:
        rest = self.rest
        found = _NUMBER.match(rest)
        if not found:
            raise self.error("an arm or a number")
        value = float(found[0])
        if value > 1:
            raise UsageError(
                f"{found[0]} in the gate {self._text!r} is no share",
                where="--gate",
                hint=f"scores are shares from 0 to 1: {value / 100:g} for {found[0]} %",
            )
        self._at = len(self._text) - len(rest) + found.end()
        return value

    def error(self, expected: str) -> UsageError:
        here = self.rest[:30] or "the end"
        return UsageError(
            f"the gate {self._text!r} needs {expected} at {here!r}",
            where="--gate",
            hint=f"arms: {', '.join(self._labels)}; such as --gate '{self._labels[0]} > 0.5'",
        )
