"""The outer structure of a normalised answer: lists, sets, tuples, intervals, unions, relations, names.

Everything is found by scanning for signs outside of brackets; formulas are leaves and are parsed when compared.
"""

# ruff: noqa: RUF001 (see normalise)

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_NESTING = 12
MAX_PARTS = 400

_OPENING, _CLOSING = "([{⦃⟦⌊⌈", ")]}⦄⟧⌋⌉"
_SEPARATORS = ",;﹠∨"
_RELATIONS = "<>≤≥≠"
_THOUSANDS = re.compile(r"[-+]?[＄€£]?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,(])(?:[^,;]*)")
_NAME = (
    r"(?:\\text\{[^{}]*\}|\\(?!frac|sqrt|sin|cos|tan|ln|log|exp|binom|sum|prod)[a-zA-Z]+|[A-Za-z]{1,3}|[A-Z][a-z]{2,12}"
    r"|[a-z]{4,12})"
)
_NAMED = re.compile(
    rf"(?:m?\\angle ?)?{_NAME}'{{0,3}}(?:_(?:\w|\{{[^{{}}]*\}}|\\[a-z]+))?'{{0,3}}(?:\([^()=]*\))?"
    r"|\|[A-Z]{2}\||\[[A-Z]{3,6}\]|[A-Z]{2,5}|\\overline\{[A-Z]{2}\}|\\triangle ?[A-Z]{3}"
    r"|\\frac ?\{d[a-z]?\}\{d[a-z]\}|\((?:[A-Za-z](?:_\w)?,)+[A-Za-z](?:_\w)?\)"
)
_CONDITION = re.compile(r"(?:\\text\{)?(?:where |for |with )?(?:\})? ?[a-z] ?(?:∈|\\text\{(?:is an )?integer\}).*")
_POINT = re.compile(r"[A-Z]'?(?=\([^()]*,)")
_RATIO_NAME = re.compile(r"[A-Za-z_0-9{}]+(?::[A-Za-z_0-9{}]+)+")
_PLUS_MINUS = re.compile("[±∓]")


@dataclass(frozen=True)
class Answer:
    """One answer.

    `kind`: "leaf" (`text` is a formula, number or words), "list" (bare commas, "and", "or"), "set", "union", "both"
    (relations that hold at once), "minus" (a set without another), "relation" (`text` holds the signs between
    `items`), "equation" (two or more sides), "named" (`text` = one item), "empty", or the two brackets of a tuple or an
    interval, such as "[)".
    """

    kind: str
    text: str
    items: tuple[Answer, ...] = ()
    signs: str = ""


class TooNested(Exception):
    """Deeper or wider than any answer is."""


def read(text: str, depth: int = 0) -> Answer:
    """The structure of a normalised answer.

    Raises:
        TooNested
    """
    if depth > MAX_NESTING:
        raise TooNested
    text = _unwrapped(text)
    if text in ("∅", ""):
        return Answer("empty" if text else "leaf", text)
    if (text[0] == "]" or text[-1] == "[") and text[0] + text[-1] in ("][", "]]", "[[", "](", ")[", "(["):
        text = ("(" if text[0] == "]" else text[0]) + text[1:-1] + (")" if text[-1] == "[" else text[-1])  # ]a, b[
    text = _without_rounding(text)
    members = split(text, "∈")
    if len(members) == 2 and members[1] and not re.match(r"\\mathbb", members[1]):
        return read(members[1], depth + 1)
    if _THOUSANDS.fullmatch(text) is None:
        parts, separators = split_all(text, _SEPARATORS)
        if len(parts) > 1:
            return _separated(text, parts, separators, depth)
    return _single(text, depth)


def _single(text: str, depth: int) -> Answer:
    for sign, kind in (("∪", "union"), ("∖", "minus")):
        parts = split(text, sign)
        if len(parts) > 1:
            return Answer(kind, text, tuple(read(part, depth + 1) for part in parts))
    sides, signs = split_all(text, _RELATIONS)
    if len(sides) > 1:
        return Answer("relation", text, tuple(Answer("leaf", side) for side in sides), "".join(signs))
    sides = split(text, "=")
    if len(sides) > 1:
        return _equation(text, sides, depth)
    if _POINT.match(text):
        text = _POINT.sub("", text, count=1)
    bracketed = _bracketed(text, depth)
    if bracketed is not None:
        return bracketed
    if _PLUS_MINUS.search(text):
        plus = text.replace("±", "+").replace("∓", "-").lstrip("+")
        minus = text.replace("±", "-").replace("∓", "+").lstrip("+")
        return Answer("list", text, (read(plus, depth + 1), read(minus, depth + 1)))
    return Answer("leaf", text)


def _separated(text: str, parts: list[str], separators: list[str], depth: int) -> Answer:
    items = [read(part, depth + 1) for part in parts if part and not _CONDITION.fullmatch(part)]
    if len(items) == 1:
        return items[0]
    if not items:
        return Answer("leaf", text)
    regions = {"relation", "union", "both", "[]", "[)", "(]", "minus"}
    if "∨" in separators and all(item.kind in regions or _is_interval(item) for item in items):
        return Answer("union", text, tuple(items))
    if set(separators) == {"﹠"} and all(item.kind == "relation" for item in items):
        return Answer("both", text, tuple(items))
    first, rest = items[0], items[1:]
    if first.kind == "named" and all(item.kind == "leaf" for item in rest):
        items = [first.items[0], *rest]  # n = 1, 2, 3
    return Answer("list", text, tuple(flat(items)))


def _is_interval(item: Answer) -> bool:
    return item.kind in ("()", "[]", "[)", "(]") and len(item.items) == 2


def flat(items: list[Answer]) -> list[Answer]:
    """Items with those of inner lists in their place: `1 ± √2, 3` has three."""
    return [inner for item in items for inner in (item.items if item.kind == "list" else [item])]


def _equation(text: str, sides: list[str], depth: int) -> Answer:
    if not all(sides):
        rest = [side for side in sides if side]
        return read(rest[-1], depth + 1) if rest else Answer("leaf", text)
    if is_name(sides[0]):
        item = read(sides[-1], depth + 1)
        if item.kind == "list" and "±" in sides[-1]:
            return Answer("list", text, item.items)
        return Answer("named", text, (item, *(Answer("leaf", side) for side in (sides[0], sides[-1]))), sides[0])
    if len(sides) == 2 and is_name(sides[1]):
        sides = sides[::-1]
        return Answer("named", text, (read(sides[1], depth + 1), *(Answer("leaf", s) for s in sides)), sides[0])
    return Answer("equation", text, tuple(Answer("leaf", side) for side in sides))


def is_name(text: str) -> bool:
    """Whether a side of an equation only names the other: x, f(x), |AB|, (p,q), Area, V_1:V_2."""
    return (_NAMED.fullmatch(text) is not None and text not in ("e", "i")) or (
        ":" in text and _RATIO_NAME.fullmatch(text) is not None and re.search("[A-Za-z]", text) is not None
    )


def _bracketed(text: str, depth: int) -> Answer | None:
    """A set, a tuple or an interval, when one pair of brackets holds all of the text."""
    first, last = text[0], text[-1]
    if first == "⦃" and last == "⦄" and _matches(text):
        inner = text[1:-1]
        for bar in ("|", ":"):
            head, found, condition = inner.partition(bar)
            if found and re.fullmatch(rf"{_NAME}(?:∈\\mathbb ?\{{?R\}}?)?", head.strip()):
                return read(condition, depth + 1)
        parts, _ = split_all(inner, ",;")
        return Answer("set", text, tuple(flat([read(part, depth + 1) for part in parts if part])))
    if first == "⟦" and last == "⟧" and _matches(text):
        return _vector(text, depth)
    if first in "([" and last in ")]" and _matches(text):
        parts, _ = split_all(text[1:-1], ",;")
        if len(parts) > 1 and all(parts):
            return Answer(first + last, text, tuple(read(part, depth + 1) for part in parts))
    return None


def _vector(text: str, depth: int) -> Answer | None:
    """A column or a row, as a tuple; other matrices are formulas."""
    rows, columns = split(text[1:-1], "‖"), split(text[1:-1], "¦")
    if (len(rows) > 1) == (len(columns) > 1):
        return None
    kind = "column" if len(rows) > 1 else "row"
    return Answer(kind, text, tuple(read(cell, depth + 1) for cell in (rows if len(rows) > 1 else columns) if cell))


def _unwrapped(text: str) -> str:
    """Without brackets that hold a single thing, and without redundant braces."""
    for _ in range(200):
        text = text.strip().strip(",;")
        if len(text) < 2 or text[0] not in "({[" or text[-1] not in ")}]" or not _matches(text):
            return text
        if text[0] + text[-1] not in ("()", "{}", "[]"):
            return text
        inner = text[1:-1]
        if text[0] != "{" and (len(split_all(inner, ",;")[0]) > 1 or not inner.strip()):
            return text
        if text[0] == "[" and not inner.strip().startswith("⟦"):
            return text if re.fullmatch("[A-Z]{3,6}", inner) else inner
        if text[0] == "(" and re.fullmatch(r"[A-Z]", inner):
            return text
        text = inner
    raise TooNested


def _matches(text: str) -> bool:
    """Whether the first bracket of a text is closed by its last character."""
    depth = 0
    for position, char in enumerate(text):
        if char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
            if depth == 0:
                return position == len(text) - 1
            if depth < 0:
                return False
    return False


def _without_rounding(text: str) -> str:
    r"""`\frac{1}{3} ≈ 0.33` is its exact side; `x ≈ 11` and `≈ 11` are 11."""
    sides = split(text, "≈")
    if len(sides) == 1:
        return text
    return sides[0] if sides[0] and not is_name(sides[0]) else sides[1]


def split(text: str, separator: str) -> list[str]:
    """Parts of a text at one sign outside of brackets."""
    return split_all(text, separator)[0]


def split_all(text: str, separators: str) -> tuple[list[str], list[str]]:
    """Parts of a text at any of these signs outside of brackets, and the signs."""
    if not any(sign in text for sign in separators):
        return [text], []
    parts, signs, depth, start = list[str](), list[str](), 0, 0
    for position, char in enumerate(text):
        if char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth = max(0, depth - 1)
        elif depth == 0 and char in separators:
            parts.append(text[start:position].strip())
            signs.append(char)
            start = position + 1
    if len(parts) > MAX_PARTS:
        raise TooNested
    return [*parts, text[start:].strip()], signs
