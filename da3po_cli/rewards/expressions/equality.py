"""Whether two expressions have the same value: exactly where both are rational, else to 45 digits, at several points.

Two formulas with symbols are equal when they agree at every test point (Schwartz-Zippel: formulas of the size of an
answer that differ do not agree at 11 points, to 45 digits, by chance). They are compared as real functions: points at
which neither is real do not count, one at which only one of them is makes them different.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, cast

from da3po_cli.rewards.expressions.evaluate import Environment, Irrational, Numeric, TooLarge, Undefined, exact, symbols
from da3po_cli.rewards.expressions.nodes import Node

FULL_PRECISION = 12  # significant digits from which a decimal stands for the number of which it is the rounding
MAX_SYMBOLS = 12

_VALUES = [Fraction(a, b) for a, b in [(7, 5), (11, 13), (19, 7), (5, 9), (23, 17), (13, 6), (29, 37), (31, 12)]]
_POINTS = 7  # the first 4 with all symbols positive
_FAR_POINTS = 4
_PIECEWISE_POINTS = 20
_PIECEWISE = {"floor", "ceil", "abs", "min", "max", "sgn", "gcd", "lcm"}

Same = bool | None
"""True, False, or None when it could not be decided."""


def same_value(gold: Node, given: Node, rel_tol: float = 0.0) -> Same:
    """Whether `given` has the value of `gold`; with `rel_tol`, numbers that close are the same."""
    if gold == given:
        return True
    if gold.op == "matrix" or given.op == "matrix" or _has_matrix(gold) or _has_matrix(given):
        return _same_matrix(gold, given, rel_tol)
    names = sorted(symbols(gold) | symbols(given))
    if "∞" in _constants(gold) | _constants(given):
        return None if gold.op == given.op else False
    if len(names) > MAX_SYMBOLS:
        return None
    return _same_number(gold, given, rel_tol) if not names else _same_function(gold, given, names)


def _constants(node: Node) -> set[str]:
    if node.op == "symbol":
        return {cast(str, node.value)}
    return set().union(*(_constants(arg) for arg in node.args)) if node.args else set()


def _same_number(gold: Node, given: Node, rel_tol: float) -> Same:
    try:
        left, right = exact(gold), exact(given)
    except Undefined:
        return _undefined(gold)
    except TooLarge:
        return None
    except Irrational:
        return _same_irrational(gold, given, rel_tol)
    if left == right:
        return True
    if rel_tol and abs(left - right) <= Fraction(rel_tol) * abs(left):
        return True
    return _rounded(gold, left, given, right)


def _undefined(gold: Node) -> Same:
    """A given answer without a value is wrong; a gold answer without one can't be compared."""
    try:
        exact(gold)
    except Undefined:
        return None
    except (TooLarge, Irrational):
        return False
    return False


def _same_irrational(gold: Node, given: Node, rel_tol: float) -> Same:
    verdicts: set[Same] = set()
    for base in _log_bases(gold, given):
        try:
            left, right = Numeric({}, base).value(gold), Numeric({}, base).value(given)
        except TooLarge:
            verdicts.add(None)
            continue
        except Undefined:
            verdicts.add(False)
            continue
        if close(left, right) or (rel_tol and abs(left - right) <= rel_tol * abs(left)):
            return True
        if left.imag or right.imag or max(_digits(gold), _digits(given)) < FULL_PRECISION:
            verdicts.add(False)
        else:
            verdicts.add(_rounded(gold, _fraction(left.real), given, _fraction(right.real)))
    return True if True in verdicts else None if None in verdicts else False


def close(left: Any, right: Any) -> bool:
    """Equal to 45 digits, relatively."""
    scale = max(abs(left), abs(right))
    return bool(abs(left - right) * 10**45 <= scale)


def _fraction(value: Any) -> Fraction:
    """The exact value of a number of mpmath; 0, which nothing is the rounding of, when it is very large or small."""
    sign, mantissa, exponent, _ = value._mpf_
    return Fraction(0) if abs(exponent) > 10_000 else (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent


def _rounded(gold: Node, left: Fraction, given: Node, right: Fraction) -> bool:
    """Whether one is a decimal of full float precision and the other the number of which it is the rounding."""
    gold_digits, given_digits = _digits(gold), _digits(given)
    if gold_digits and given_digits:
        return False
    if max(gold_digits, given_digits) < FULL_PRECISION or not left or not right:
        return False
    literal, other = (left, right) if gold_digits else (right, left)
    return abs(literal - other) <= abs(literal) * Fraction(10, 10 ** max(gold_digits, given_digits))


def _digits(node: Node) -> int:
    """Significant digits of a decimal literal; 0 for anything else."""
    return _digits(node.args[0]) if node.op == "neg" else node.digits if node.op == "number" else 0


def _log_bases(gold: Node, given: Node) -> list[Fraction | None]:
    """What a `log` without a base may mean: any base, then e, then 10."""
    ops = _operations(gold) | _operations(given)
    return [Fraction(17, 5), None, Fraction(10)] if "log" in ops else [None]


def _operations(node: Node) -> set[str]:
    own = {"" if node.op == "log" and len(node.args) > 1 else node.op}
    return own.union(*(_operations(arg) for arg in node.args)) if node.args else own


def _points(names: list[str], ops: set[str]) -> Iterator[tuple[Environment, bool]]:
    """Where two formulas are compared, and whether the point is far out.

    The far points tell |x - 50| from 50 - x; formulas that are constant in pieces get many, and whole ones.
    """
    for point in range(_POINTS):
        yield _near(names, point), False
    for point in range(1, 1 + (_PIECEWISE_POINTS if ops & _PIECEWISE else _FAR_POINTS)):
        size = 7 ** (point + 1) if point <= _FAR_POINTS else 3 * point**3 + 37 * point
        yield (
            {
                name: Fraction(size + 11 * at * point) * (-1 if (point >> at % 2) % 2 else 1)
                for at, name in enumerate(names)
            },
            True,
        )


def _near(names: list[str], point: int) -> Environment:
    """Rationals between 0.5 and 4; from point 4 on, some are negative."""
    return {
        name: _VALUES[(3 * at + 5 * point) % len(_VALUES)]
        * (-1 if point >= 4 and (at + point) % 2 == 0 else 1)
        * Fraction(101 + at, 100 + point)
        for at, name in enumerate(names)
    }


def _same_function(gold: Node, given: Node, names: list[str]) -> Same:
    results = [_same_with_log(gold, given, names, base) for base in _log_bases(gold, given)]
    return True if True in results else None if None in results else False


def _same_with_log(gold: Node, given: Node, names: list[str], base: Fraction | None) -> Same:
    is_complex = "i" in _constants(gold) | _constants(given)
    compared = complex_ones = 0
    for left, right, far in _values(gold, given, names, base):
        if left is None:
            return None
        if isinstance(left, Fraction):
            if left != right:
                return False
            compared += 1
            continue
        if not is_complex and not (_real(left) and _real(right)):
            if _real(left) != _real(right):
                return False
            complex_ones += not far and close(left, right)
            continue
        if not close(left, right):
            return False
        compared += 1
    return True if compared >= 2 or complex_ones == _POINTS else None


def _values(gold: Node, given: Node, names: list[str], base: Fraction | None) -> Iterator[tuple[Any, Any, bool]]:
    """Both values at the points where both have one, and whether the point is far; None where one near is too large."""
    for env, far in _points(names, _operations(gold) | _operations(given)):
        try:
            left, right = _at(gold, given, env, base, far)
        except Undefined:
            continue
        except TooLarge:
            if not far:
                yield None, None, far
            continue
        yield left, right, far


def _at(gold: Node, given: Node, env: Environment, base: Fraction | None, far: bool) -> tuple[Any, Any]:
    """Both values at a point: Fractions, or numbers of mpmath."""
    try:
        return exact(gold, env), exact(given, env)
    except (Irrational, Undefined):
        numeric = Numeric(env, base, far=far)
        return numeric.value(gold), numeric.value(given)


def _real(value: Any) -> bool:
    return bool(abs(value.imag) * 10**45 <= abs(value))


def proportional(gold: Node, given: Node, *, positive: bool = False) -> Same:
    """Whether given = c gold for a constant c != 0 (c > 0 with `positive`): the same equation (inequality) f = 0."""
    names = sorted(symbols(gold) | symbols(given))
    if symbols(gold) != symbols(given) or not names or len(names) > MAX_SYMBOLS:
        return False
    ratio: Any = None
    compared = 0
    for left, right, _ in _values(gold, given, names, None):
        if left is None:
            return None
        if left == 0 or right == 0:
            if left != right:
                return False
            continue
        here = right / left
        if positive and not (isinstance(here, Fraction) or _real(here)):
            continue
        if positive and (here if isinstance(here, Fraction) else here.real) < 0:
            return False
        if ratio is not None and not (here == ratio or close(here, ratio)):
            return False
        ratio = here
        compared += 1
    return True if compared >= 3 else None


def _has_matrix(node: Node) -> bool:
    return node.op == "matrix" or any(_has_matrix(arg) for arg in node.args)


def _same_matrix(gold: Node, given: Node, rel_tol: float) -> Same:
    left, right = matrix(gold), matrix(given)
    if left is None or right is None:
        return None if left is right is None else False
    if left.value != right.value or len(left.args) != len(right.args):
        return False
    results = {same_value(a, b, rel_tol) for a, b in zip(left.args, right.args, strict=True)}
    return False if False in results else None if None in results else True


def matrix(node: Node) -> Node | None:
    """An expression of matrices as one matrix of expressions; None where it is none."""
    if node.op == "matrix":
        return node
    if node.op == "neg":
        return _map(matrix(node.args[0]), lambda cell: Node("neg", (cell,)))
    if node.op == "/":
        return _map(matrix(node.args[0]), lambda cell: Node("/", (cell, node.args[1])))
    if node.op == "+":
        return _matrix_sum([matrix(arg) for arg in node.args])
    if node.op == "*":
        left, right = node.args
        if not _has_matrix(left):
            return _map(matrix(right), lambda cell: Node("*", (left, cell)))
        if not _has_matrix(right):
            return _map(matrix(left), lambda cell: Node("*", (cell, right)))
        return _matrix_product(matrix(left), matrix(right))
    return None


def _map(found: Node | None, change: Any) -> Node | None:
    return None if found is None else Node("matrix", tuple(change(cell) for cell in found.args), found.value)


def _matrix_sum(parts: list[Node | None]) -> Node | None:
    known = [part for part in parts if part is not None]
    if len(known) != len(parts) or len({(part.value, len(part.args)) for part in known}) != 1:
        return None
    return Node(
        "matrix", tuple(Node("+", cells) for cells in zip(*(p.args for p in known), strict=True)), known[0].value
    )


def _matrix_product(left: Node | None, right: Node | None) -> Node | None:
    if left is None or right is None:
        return None
    inner, columns = cast(int, left.value), cast(int, right.value)
    if len(right.args) != inner * columns or len(left.args) > 100 or len(right.args) > 100:
        return None
    cells = [
        Node("+", tuple(Node("*", (left.args[r + k], right.args[k * columns + c])) for k in range(inner)))
        for r in range(0, len(left.args), inner)
        for c in range(columns)
    ]
    return Node("matrix", tuple(cells), columns)
