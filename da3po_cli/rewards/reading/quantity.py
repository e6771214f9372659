"""A number with what stands around it: units, money, the percent sign, words such as million."""

# ruff: noqa: RUF001 (see normalise)

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from fractions import Fraction

Dimensions = tuple[tuple[str, int], ...]

_LARGE = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_PERCENT = {"percent", "pct", "percents", "percentage"}
# name: (dimension, factor); plurals by "s" are added
_UNITS: dict[str, tuple[str, Fraction | int]] = {
    "m": ("length", 1), "meter": ("length", 1), "metre": ("length", 1), "cm": ("length", Fraction(1, 100)),
    "centimeter": ("length", Fraction(1, 100)), "centimetre": ("length", Fraction(1, 100)),
    "mm": ("length", Fraction(1, 1000)), "millimeter": ("length", Fraction(1, 1000)),
    "dm": ("length", Fraction(1, 10)),
    "km": ("length", 1000), "kilometer": ("length", 1000), "kilometre": ("length", 1000),
    "nm": ("length", Fraction(1, 10**9)), "pm": ("length", Fraction(1, 10**12)),
    "inch": ("length", Fraction(254, 10000)), "inches": ("length", Fraction(254, 10000)),
    "in": ("length", Fraction(254, 10000)), "ft": ("length", Fraction(3048, 10000)),
    "foot": ("length", Fraction(3048, 10000)), "feet": ("length", Fraction(3048, 10000)),
    "yd": ("length", Fraction(9144, 10000)), "yard": ("length", Fraction(9144, 10000)),
    "mi": ("length", Fraction(1609344, 1000)), "mile": ("length", Fraction(1609344, 1000)),
    "g": ("mass", Fraction(1, 1000)), "gram": ("mass", Fraction(1, 1000)), "kg": ("mass", 1), "kilogram": ("mass", 1),
    "mg": ("mass", Fraction(1, 10**6)), "lb": ("mass", Fraction(45359237, 10**8)),
    "pound": ("mass", Fraction(45359237, 10**8)), "oz": ("mass", Fraction(45359237, 16 * 10**8)),
    "ounce": ("mass", Fraction(45359237, 16 * 10**8)), "ton": ("mass-ton", 1),
    "s": ("time", 1), "sec": ("time", 1), "second": ("time", 1), "ms": ("time", Fraction(1, 1000)),
    "min": ("time", 60),
    "minute": ("time", 60), "h": ("time", 3600), "hr": ("time", 3600), "hour": ("time", 3600), "day": ("time", 86400),
    "week": ("time", 604800), "month": ("month", 1), "year": ("year", 1), "yr": ("year", 1),
    "L": ("volume", 1), "l": ("volume", 1), "liter": ("volume", 1), "litre": ("volume", 1),
    "mL": ("volume", Fraction(1, 1000)), "ml": ("volume", Fraction(1, 1000)), "gallon": ("gallon", 1),
    "degree": ("angle", 1), "deg": ("angle", 1), "rad": ("radian", 1), "radian": ("radian", 1),
    "dollar": ("money", 1), "USD": ("money", 1), "cent": ("money", Fraction(1, 100)), "euro": ("euro", 1),
    "EUR": ("euro", 1), "yuan": ("yuan", 1), "rupee": ("rupee", 1), "unit": ("unit", 1),
    "N": ("force", 1), "newton": ("force", 1), "J": ("energy", 1), "joule": ("energy", 1), "kJ": ("energy", 1000),
    "eV": ("electronvolt", 1), "W": ("power", 1), "watt": ("power", 1), "V": ("voltage", 1), "Hz": ("frequency", 1),
    "K": ("kelvin", 1), "degC": ("celsius", 1), "degF": ("fahrenheit", 1), "A": ("current", 1), "mol": ("amount", 1),
    "Pa": ("pressure", 1), "atm": ("atmosphere", 1), "C": ("charge", 1),
}  # fmt: skip
_UNITS |= {f"{name}s": unit for name, unit in _UNITS.items() if len(name) > 1}
_COMPOUND = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h"}
_SHORT = set("mgshL")  # one letter, unit even in plain text with a space before: `5 m`
_CURRENCY = {"＄": "dollar", "€": "euro", "£": "pound sterling", "¥": "yuan"}
_NOT_UNITS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "mod", "sqrt", "max", "gcd", "lcm", "base", "arcsin",
    "arccos", "arctan", "factorial", "choose", "to", "from", "but", "than", "through", "where", "with", "for",
    # words that change the value, or take it back
    "half", "halves", "third", "thirds", "quarter", "quarters", "fourth", "fourths", "fifths", "sixths", "sevenths",
    "eighths", "ninths", "tenths", "hundredths", "thousandths", "millionths", "dozen", "dozens", "score", "tens",
    "hundreds", "thousands", "millions", "billions", "plus", "minus", "over", "divided", "multiplied", "negative",
    "least", "most", "greater", "above", "below", "under", "maybe", "perhaps", "possibly", "except", "if", "unless",
    "otherwise", "wrong", "incorrect", "no", "not", "nor", "never", "about", "approximately", "roughly", "almost",
    "nearly", "is", "isn", "modulo", "power", "root", "cannot", "does", "too", "then", "until", "between", "think",
    "guess", "probably", "likely", "unknown", "instead", "so", "repeating", "recurring", "and", "or",
}  # fmt: skip
_ONLY_LAST = {"point", "times", "squared", "cubed"}  # `4 times` counts, `4 times three` multiplies
MAX_UNIT_WORDS = 5
MAX_UNIT_POWER = 9
_PIECE = re.compile(r"\\text\{[^{}]*\}|\\[a-zA-Z]+|[a-zA-Z]+|\^\{?-?\d+\}?|\s+|[\s\S]")
_VALUE_END = re.compile(r"[\d)}π°!|\]…]$")
_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?(?:/\d+|·10\^\{?-?\d+\}?)?")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_TRIGONOMETRY = re.compile(r"(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_EXPONENT = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cubed": 3}


_COMPOUND_PART = re.compile(r"(\d+(?:\.\d+)?) ?(?:\\text\{([a-zA-Z]+)\}|([a-zA-Z]+))[ ,﹠]*")


def single_unit(text: str) -> str:
    """`1 hour 30 minutes` as hours: `3/2 hour`. Any other text as it is."""
    parts = list(_COMPOUND_PART.finditer(text))
    if len(parts) < 2 or sum(len(part[0]) for part in parts) != len(text) or len(parts) > 4:
        return text
    units = [part[2] or part[3] for part in parts]
    if not all(unit in _UNITS for unit in units) or len({_UNITS[unit][0] for unit in units}) != 1:
        return text
    factors = [Fraction(_UNITS[unit][1]) for unit in units]
    if any(a <= b for a, b in itertools.pairwise(factors)):
        return text
    total = sum(Fraction(part[1]) * factor for part, factor in zip(parts, factors, strict=True))
    return f"{total / factors[0]} \\text{{{units[0]}}}"


@dataclass(frozen=True)
class Quantity:
    """A value's text and what was written around it.

    Attributes:
        value: the formula without the unit.
        factor: what the value is to be multiplied with: a large number's, a unit's.
        dimensions: of the unit; () when it has a name that is not known (`12 apples`), None without a unit.
    """

    value: str
    factor: Fraction = Fraction(1)
    large: Fraction = Fraction(1)
    dimensions: Dimensions | None = None
    percent: bool = False


def quantity(text: str) -> Quantity:
    """Split a normalised answer into value and unit; the whole text is the value where there is no unit."""
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text.strip())
    if text[:1] in _CURRENCY or (text[:1] == "-" and text[1:2] in _CURRENCY):
        sign = "-" if text[0] == "-" else ""
        name = _CURRENCY[text[len(sign)]]
        inner = quantity(sign + text[len(sign) + 1 :])
        if inner.dimensions not in (None, (), (("money", 1),)):
            return inner
        return Quantity(inner.value, large=inner.large, dimensions=(("money" if name == "dollar" else name, 1),))
    value, tail = _cut(text)
    if not tail:
        return _marked(text)
    return _with_tail(value, tail) or Quantity(text)


def _marked(text: str) -> Quantity:
    """Signs behind a number: % ° € '."""
    if text.endswith("%"):
        return Quantity(text[:-1].rstrip(), percent=True)
    if text.endswith("°") and not _TRIGONOMETRY.search(text):
        return Quantity(text[:-1].rstrip(), dimensions=(("angle", 1),))
    if text[-1:] in _CURRENCY:
        name = _CURRENCY[text[-1]]
        return Quantity(text[:-1].rstrip(), dimensions=(("money" if name == "dollar" else name, 1),))
    bare = text.rstrip("'")
    if bare != text and bare[-1:].isdigit() and _NUMBER.fullmatch(bare):
        return Quantity(bare, dimensions=())
    return Quantity(text)


def _cut(text: str) -> tuple[str, list[str]]:
    """The text before the words at its end, and these words with their exponents and slashes."""
    pieces = _PIECE.findall(text)
    at = len(pieces)
    while at and _is_tail(pieces[at - 1]):
        at -= 1
    while at < len(pieces) and not _is_word(pieces[at]):
        at += 1
    value = "".join(pieces[:at])
    tail = pieces[at:]
    if tail and not _VALUE_END.search(value.rstrip()) and not value.rstrip().endswith("%"):
        return text, []
    spaced = value != value.rstrip()
    value = value.rstrip()
    plain = _NUMBER.fullmatch(value) is not None
    if not _is_unit(tail):
        return text, []
    for number, piece in enumerate(tail):
        if not piece[0].isalpha():
            continue
        before = tail[number - 1] if number else (" " if spaced else "")
        if len(piece) == 1:
            known = piece in _SHORT or (piece in _UNITS and number > 0)
            if not (plain and known and (before.isspace() or before in ("/", "·"))):
                return text, []
        elif (not _known(piece) and not plain) or (
            len(piece) == 2 and not spaced and number == 0 and not _known(piece)
        ):
            return text, []
    return value, tail


def _is_unit(tail: list[str]) -> bool:
    """Whether words behind a number only say what was counted."""
    found = [word for piece in tail for word in re.findall("[a-z]+", piece.removeprefix(r"\text").lower())]
    if len(found) > MAX_UNIT_WORDS or _NOT_UNITS & set(found) or _ONLY_LAST & set(found[:-1]):
        return False
    return not (found and found[-1] in _EXPONENT and (len(found) < 2 or found[-2] not in _UNITS))


def _is_word(piece: str) -> bool:
    return (piece[0].isascii() and piece[0].isalpha()) or piece.startswith(r"\text{")


def _is_tail(piece: str) -> bool:
    return _is_word(piece) or piece[0] == "^" or piece.isspace() or piece in "/·()"


def _known(word: str) -> bool:
    return (
        word in _UNITS or word in _COMPOUND or word in _LARGE or word in _PERCENT or word in _EXPONENT or word == "per"
    )


def _with_tail(value: str, tail: list[str]) -> Quantity | None:
    text = "".join(tail)
    text = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text)
    for name, meaning in _COMPOUND.items():
        text = re.sub(rf"\b{name}\b", meaning, text)
    text = re.sub(r"\s+(?=\^)", "", text)
    pieces = re.findall(r"[A-Za-z]+|\^\{?-?\d+\}?|/", text)
    large = Fraction(1)
    while pieces and pieces[0] in _LARGE:
        large *= 10 ** _LARGE[pieces.pop(0)]
    if pieces and pieces[0] in _PERCENT:
        return Quantity(value, large=large, percent=True)
    value = value.rstrip("°").rstrip() if pieces else value
    if not pieces:
        return Quantity(value, large=large)
    dimensions, factor = _dimensions(pieces)
    return Quantity(value, factor=factor, large=large, dimensions=dimensions)


def _dimensions(pieces: list[str]) -> tuple[Dimensions, Fraction]:
    """Dimensions and factor of a unit such as `kg m ^2 / s ^2`; ((), 1) when a word of it is not known."""
    found: dict[str, int] = {}
    factor = Fraction(1)
    side = 1
    coming = 1
    for number, piece in enumerate(pieces):
        following = pieces[number + 1] if number + 1 < len(pieces) else ""
        if piece in ("/", "per"):
            side = -1
        elif piece in ("square", "sq", "cubic"):
            coming = _EXPONENT[piece]
        elif piece[0] == "^" or piece in ("squared", "cubed", "of", "a", "an"):
            continue
        elif piece in _UNITS:
            exponent = side * coming
            if following[:1] == "^":
                exponent *= int(following.strip("^{}"))
            elif following in ("squared", "cubed"):
                exponent *= _EXPONENT[following]
            name, scale = _UNITS[piece]
            found[name] = found.get(name, 0) + exponent
            factor *= Fraction(scale) ** max(-MAX_UNIT_POWER, min(MAX_UNIT_POWER, exponent))
            coming = 1
        else:
            return (), Fraction(1)
    return tuple(sorted((name, power) for name, power in found.items() if power)), factor
