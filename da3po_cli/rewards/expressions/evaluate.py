"""Values of expressions: exact rationals where there are any, else numbers of 60 digits. Bounded in size and time."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, cast

from da3po_cli.rewards.expressions.nodes import Node

MAX_BITS = 200_000  # of a numerator or denominator
MAX_TERMS = 2000  # of a sum or product
MAX_WORK = 40_000  # operations on rationals
MAX_NUMERIC_WORK = 4000  # operations on numbers of DIGITS digits
MAX_FACTORIAL = 5000
DIGITS = 60  # of a number that is not rational
LOST = 13  # digits that a sum may lose, for the rest of them are compared
MAX_MAGNITUDE = 100_000  # decimal exponent of such a number

Environment = Mapping[str, Fraction]


class TooLarge(Exception):
    """The value exists, but computing it would take too much."""


class Undefined(Exception):
    """There is no value: division by zero, an unknown symbol, a function outside its domain."""


class Irrational(Exception):
    """There may be a value, but it is no rational number."""


def exact(node: Node, env: Environment | None = None) -> Fraction:
    """The rational value of an expression.

    Raises:
        Irrational, TooLarge, Undefined
    """
    return _Exact(env or {}, [0]).value(node)


def symbols(node: Node) -> set[str]:
    """Free symbols; π, e, i and ∞ are constants."""
    if node.op == "symbol":
        return set() if node.value in ("π", "e", "i", "∞") else {cast(str, node.value)}
    found = set().union(*(symbols(arg) for arg in node.args)) if node.args else set()
    return found - {cast(str, node.value)} if node.op in ("sum", "prod") else found


class _Exact:
    def __init__(self, env: Environment, work: list[int]) -> None:
        self._env = env
        self._work = work  # one counter for the terms of all sums

    def value(self, node: Node) -> Fraction:
        self._work[0] += 1
        if self._work[0] > MAX_WORK:
            raise TooLarge
        op, args = node.op, node.args
        if op == "number":
            return cast(Fraction, node.value)
        if op == "symbol":
            return self._symbol(cast(str, node.value))
        if op in ("sum", "prod"):
            return self._series(node)
        method = _EXACT.get(op)
        if method is None:
            raise Irrational(op)
        return method(*[self.value(arg) for arg in args])

    def _symbol(self, name: str) -> Fraction:
        if name in self._env:
            return self._env[name]
        if name in ("π", "e", "i"):
            raise Irrational(name)
        raise Undefined(name)

    def _series(self, node: Node) -> Fraction:
        total = Fraction(0 if node.op == "sum" else 1)
        for env in terms(node, self._env, self.value):
            term = _Exact(env, self._work).value(node.args[2])
            total = bounded(total + term if node.op == "sum" else total * term)
        return total


def terms(node: Node, env: Environment, value: Callable[[Node], Fraction]) -> Iterator[Environment]:
    """The environments of the terms of a sum or product."""
    low, high = value(node.args[0]), value(node.args[1])
    if low.denominator != 1 or high.denominator != 1:
        raise Undefined("bounds")
    if high - low >= MAX_TERMS:
        raise TooLarge
    for index in range(int(low), int(high) + 1):
        yield {**env, cast(str, node.value): Fraction(index)}


def bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise TooLarge
    return value


def _add(*values: Fraction) -> Fraction:
    total = values[0]
    for value in values[1:]:
        total = bounded(total + value)
    return total


def _over(top: Fraction, bottom: Fraction) -> Fraction:
    if bottom == 0:
        raise Undefined("division by zero")
    return bounded(top / bottom)


def power(base: Fraction, exponent: Fraction) -> Fraction:
    """base ** exponent where that is rational; refused before it is computed when it would be too large."""
    if base == 0:
        if exponent <= 0:
            raise Undefined("0 to such a power")
        return base
    if exponent.denominator != 1:
        return power(root(base, Fraction(exponent.denominator)), Fraction(exponent.numerator))
    if abs(base) == 1:
        return Fraction(1) if base == 1 or exponent % 2 == 0 else base
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent) > MAX_BITS:
        raise TooLarge
    return base ** int(exponent)


def root(value: Fraction, degree: Fraction) -> Fraction:
    """The real root of this degree where it is rational."""
    if degree.denominator != 1 or not 1 <= degree <= 64:
        raise Irrational("root")
    n = int(degree)
    if value < 0 and n % 2 == 0:
        raise Irrational("even root of a negative number")
    top, bottom = _integer_root(abs(value.numerator), n), _integer_root(value.denominator, n)
    return Fraction(top if value >= 0 else -top, bottom)


def _integer_root(value: int, n: int) -> int:
    if n == 2:
        found = math.isqrt(value)
    elif value < 2:
        found = value
    else:
        if value.bit_length() > 4096:
            raise Irrational("root of a large number")
        low, high = 0, 1 << (value.bit_length() // n + 1)
        while low < high - 1:
            middle = (low + high) // 2
            low, high = (middle, high) if middle**n <= value else (low, middle)
        found = low
    if found**n != value:
        raise Irrational("root")
    return found


def _whole(value: Fraction, limit: int) -> int:
    if value.denominator != 1 or value < 0:
        raise Irrational("not a whole number")
    if value > limit:
        raise TooLarge
    return int(value)


def _factorial(value: Fraction) -> Fraction:
    return Fraction(math.factorial(_whole(value, MAX_FACTORIAL)))


def _binom(n: Fraction, k: Fraction) -> Fraction:
    return bounded(Fraction(math.comb(_whole(n, MAX_FACTORIAL), _whole(k, MAX_FACTORIAL))))


def _integers(function: Callable[..., int]) -> Callable[..., Fraction]:
    return lambda *values: Fraction(function(*(_whole(abs(value), 10**1000) for value in values)))


_EXACT: dict[str, Callable[..., Fraction]] = {
    "+": _add,
    "*": lambda a, b: bounded(a * b),
    "/": _over,
    "neg": lambda a: -a,
    "^": power,
    "root": root,
    "abs": lambda a: abs(a),
    "floor": lambda a: Fraction(math.floor(a)),
    "ceil": lambda a: Fraction(math.ceil(a)),
    "!": _factorial,
    "binom": _binom,
    "gcd": _integers(math.gcd),
    "lcm": _integers(math.lcm),
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "sgn": lambda a: Fraction((a > 0) - (a < 0)),
}


class Numeric:
    """Complex values with DIGITS digits at one point.

    A sum that loses a term which is too small to be seen has no value here (TooLarge): two answers that differ in such
    a term must not look equal.

    Args:
        env: values of the symbols.
        log_base: of a `log` without a base; None is e.
        far: the point is far out, where a sum that cancels may be small and not zero.
    """

    def __init__(self, env: Environment, log_base: Fraction | None = None, *, far: bool = False) -> None:
        self._mp, self._functions = _context()
        self._env = env
        self._log_base = log_base
        self._far = far
        self._work = 0

    def value(self, node: Node) -> Any:
        """An mpmath number.

        Raises:
            TooLarge, Undefined
        """
        self._work += 1
        if self._work > MAX_NUMERIC_WORK:
            raise TooLarge
        try:
            return self._seen(self._value(node))
        except (ZeroDivisionError, ValueError, OverflowError) as error:
            raise Undefined(str(error)) from error

    def _seen(self, value: Any) -> Any:
        if not self._mp.isfinite(value):
            raise Undefined("not finite")
        return value

    def _value(self, node: Node) -> Any:
        op = node.op
        if op == "number":
            return self._number(cast(Fraction, node.value))
        if op == "symbol":
            return self._symbol(cast(str, node.value))
        if op == "+":
            return self._sum([self.value(arg) for arg in node.args])
        if op == "^":
            return self._power(node.args[0], node.args[1])
        if op == "root":
            return self._root(self.value(node.args[0]), exact(node.args[1], self._env))
        if op in ("sum", "prod"):
            return self._series(node)
        if op == "log" and len(node.args) == 1 and self._log_base is not None:
            return self._mp.log(self.value(node.args[0])) / self._mp.log(self._number(self._log_base))
        function = self._functions.get(op)
        if function is None:
            raise Undefined(op)
        return function(*[self.value(arg) for arg in node.args])

    def _number(self, value: Fraction) -> Any:
        return self._mp.mpf(value.numerator) / value.denominator

    def _symbol(self, name: str) -> Any:
        if name in self._env:
            return self._number(self._env[name])
        constants = {"π": self._mp.pi, "e": self._mp.e, "i": self._mp.j}
        if name not in constants:
            raise Undefined(name)
        return +constants[name]

    def _sum(self, values: list[Any]) -> Any:
        largest = max(abs(value) for value in values)
        if any(value != 0 and abs(value) < largest * self._mp.mpf(10) ** (20 - DIGITS) for value in values):
            raise TooLarge
        total = self._mp.fsum(values)
        if abs(total) >= largest * self._mp.mpf(10) ** -LOST:
            return total
        if not self._far and abs(total) < largest * self._mp.mpf(10) ** (10 - DIGITS):
            return self._mp.mpf(0)
        if largest == 0:
            return total
        raise TooLarge

    def _power(self, base_node: Node, exponent_node: Node) -> Any:
        base = self.value(base_node)
        try:
            exponent = exact(exponent_node, self._env)
        except (Irrational, TooLarge, Undefined):
            exponent = None
        if exponent is not None and exponent.denominator % 2 and self._is_real(base) and self._mp.re(base) < 0:
            sign = -1 if exponent.numerator % 2 else 1  # the real branch, as for odd roots
            return sign * self._bounded_power(-self._mp.re(base), self._number(exponent))
        return self._bounded_power(base, self.value(exponent_node) if exponent is None else self._number(exponent))

    def _bounded_power(self, base: Any, exponent: Any) -> Any:
        if base == 0:
            if self._mp.re(exponent) <= 0:
                raise Undefined("0 to such a power")
            return self._mp.mpf(0)
        if abs(exponent * self._mp.log(base)) > 2.3 * MAX_MAGNITUDE:
            raise TooLarge
        return self._mp.power(base, exponent)

    def _root(self, value: Any, degree: Fraction) -> Any:
        if degree.denominator != 1 or degree == 0 or abs(degree) > 1000:
            raise Undefined("root")
        if value == 0:
            return value
        if degree % 2 and self._is_real(value) and self._mp.re(value) < 0:
            return -self._mp.root(-self._mp.re(value), int(degree))
        return self._mp.power(value, self._number(1 / degree))

    def _series(self, node: Node) -> Any:
        found: list[Any] = []
        for env in terms(node, self._env, lambda bound: exact(bound, self._env)):
            inner = Numeric(env, self._log_base, far=self._far)
            inner._work = self._work
            try:
                found.append(inner.value(node.args[2]))
            finally:
                self._work = inner._work
        if node.op == "prod":
            return self._mp.fprod(found)
        return self._sum(found) if found else self._mp.mpf(0)

    def _is_real(self, value: Any) -> bool:
        return abs(self._mp.im(value)) <= abs(value) * self._mp.mpf(10) ** (10 - DIGITS)


_local = threading.local()


def _context() -> tuple[Any, dict[str, Callable[..., Any]]]:
    """This thread's mpmath context and functions: mpmath changes a context's precision while it computes."""
    if not hasattr(_local, "context"):
        import mpmath  # here, for most answers are decided without

        mp = mpmath.ctx_mp.MPContext()
        mp.dps = DIGITS
        _local.context = mp, _functions(mp)
    return _local.context


def _functions(mp: Any) -> dict[str, Callable[..., Any]]:
    """Numeric functions by name, in the context `mp`."""

    def log(value: Any, base: Any = None) -> Any:
        if value == 0:
            raise Undefined("log 0")
        return mp.log(value) if base is None else mp.log(value) / mp.log(base)

    def factorial(value: Any) -> Any:
        if abs(value) > MAX_FACTORIAL:
            raise TooLarge
        return mp.factorial(value)

    def exponential(value: Any) -> Any:
        if abs(value) > 2.3 * MAX_MAGNITUDE:
            raise TooLarge
        return mp.exp(value)

    def modest(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """For an argument whose reduction modulo 2π leaves digits enough, and a value of modest size."""

        def guarded(value: Any) -> Any:
            if abs(value) > 10**9:
                raise TooLarge
            return function(value)

        return guarded

    names = ["sin", "cos", "tan", "cot", "sec", "csc"]
    plain = {
        "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "sinh": "sinh", "cosh": "cosh",
        "tanh": "tanh", "coth": "coth", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
        "floor": "floor", "ceil": "ceil", "Re": "re", "Im": "im", "arg": "arg",
    }  # fmt: skip
    return {
        "*": lambda a, b: a * b,
        "/": lambda a, b: a / b,
        "neg": lambda a: -a,
        "abs": abs,
        "ln": log,
        "log": log,
        "lg": lambda value: log(value, mp.mpf(10)),
        "exp": exponential,
        "!": factorial,
        "binom": lambda n, k: factorial(n) / factorial(k) / factorial(n - k),
        "min": lambda *values: min(values),
        "max": lambda *values: max(values),
        **{name: modest(getattr(mp, name)) for name in names},
        **{name: modest(getattr(mp, method)) for name, method in plain.items()},
    }
