"""One spelling for the many ways to write the same answer. Text in, text out; no mathematics here."""

# ruff: noqa: RUF001 (the characters that look like others are the point)

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ",
        "√": r"\sqrt ", "°": r"^\circ ", "∅": r"\emptyset ", "∪": r"\cup ", "±": r"\pm ", "≤": r"\le ", "≥": r"\ge ",
        "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
        "⅕": r"\frac{1}{5}", "⅛": r"\frac{1}{8}",
    }
)  # fmt: skip
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")

_MATRIX = re.compile(r"\\begin\{([pbBvV]?matrix)\}(.*?)\\end\{\1\}", re.DOTALL)


def _join(match: re.Match[str]) -> str:
    return match[0].replace(" ", "")


def _matrix(match: re.Match[str]) -> str:
    """A matrix as a list of rows, and a row as a list of cells or its one cell, all in square brackets."""
    rows = [row.split("&") for row in match[2].strip().removesuffix("\\\\").split("\\\\")]
    return "[" + ",".join(f"[{','.join(row)}]" if len(row) > 1 else row[0] for row in rows) + "]"


# in this order
_REWRITES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(pattern), to)
    for pattern, to in [
        (r"\\\$|\$", ""),
        (r"\\[()\[\]]", ""),
        (r"\\(?:left|right|big|Big|bigg|Bigg|displaystyle|textstyle|limits)(?![a-zA-Z])", ""),
        (r"(?<=\d)(?:\\[,!]|\{,\}(?:\\!)?|,\\!)(?=\d{3}(?!\d))", ""),  # thousands: 1\,000  1{,}000  1,\!000
        (r"\\[,;:! ]|~|\\q?quad(?![a-zA-Z])", " "),
        (r"\\(?:dfrac|tfrac|cfrac)(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox|operatorname)\s*\{([^{}]*)\}", r" \1 "),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s*(\{[^{}]*\})\s*(\d)", r"\\frac\1{\2}"),
        (r"\\sqrt\s*(\d|[a-z](?![a-z]))", r"\\sqrt{\1}"),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\^\s*\{?\s*\\(?:circ|degree)\s*\}?|\\degree(?![a-zA-Z])", ""),
        (r"\\%", "%"),
        (r"\\varnothing(?![a-zA-Z])|\\O(?![a-zA-Z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\+\s*\\infty", r"\\infty"),
        (r"\\(?:lbrace)(?![a-zA-Z])", r"\\{"),
        (r"\\(?:rbrace)(?![a-zA-Z])", r"\\}"),
        (r"_\{(\w+)\}", r"_\1"),
        (r"(?<![\d,.])(\d{1,3})((?: \d{3})+)(?![\d ,.])", _join),  # 1 000 000
        (r"(?<![\d/.])(\d+) (\d+)/(\d+)(?![\d/.])", r"\1\\frac{\2}{\3}"),  # 1 1/2
        (r"\*\*", "^"),
        (r"\*", r"\\cdot "),
        (r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
        (r"(?<![a-zA-Z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\leq?(?![a-zA-Z])|<=", r"\\le "),
        (r"\\geq?(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\neq?(?![a-zA-Z])|!=", r"\\ne "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"^\s*[a-zA-Z]\s*\\in(?![a-zA-Z])", ""),
        (r"(?<=\S)\s*\\approx.*$", ""),
    ]
]
_SPACE = re.compile(r"\s+")
_NEEDLESS_SPACE = re.compile(r"(?<![0-9a-zA-Z.]) (?=\S)|(?<=\S) (?![0-9a-zA-Z.\\])")
_ASSIGNED = re.compile(r"^(?:[A-Za-z]{1,3}(?:_\w+)?|[A-Za-z]\([^()]*\))\s*=\s*(?=\S)")
_CHOICE = re.compile(r"^\(?([A-Z])\)?$")


def normalise(answer: str) -> str:
    """Rewrite an extracted or gold answer to the spelling that the comparison expects.

    Unicode and LaTeX variants become one form; spacing, dollar and degree signs, text wrappers and thousands
    separators that cannot be list commas go; a matrix becomes nested lists.
    """
    answer = _MATRIX.sub(_matrix, answer)
    text = _SUPERSCRIPT.sub(
        lambda match: "^{" + unicodedata.normalize("NFKC", match[0]).replace("−", "-") + "}", answer
    )
    text = unicodedata.normalize("NFKC", text.translate(_UNICODE)).translate(_UNICODE)
    for pattern, to in _REWRITES:
        text = pattern.sub(to, text)
    text = _SPACE.sub(" ", text).strip().rstrip(".").strip()
    text = _NEEDLESS_SPACE.sub("", text)
    choice = _CHOICE.match(text)
    return choice[1] if choice else text


def strip_assignment(text: str) -> str:
    """`x=5` is the value 5; any other equation, and anything with an inequality, stays as it is."""
    if text.count("=") != 1 or re.search(r"[<>]|\\[lgn]e(?![a-z])", text):
        return text
    return _ASSIGNED.sub("", text)
