"""A number with what follows it: units, words such as million, the percent sign."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from da3po_cli.rewards.exact import exact_value

_LARGE = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_UNITS = {
    "m": "m|meters?|metres?", "cm": "cm|centimeters?|centimetres?", "mm": "mm|millimeters?", "km": "km|kilometers?",
    "in": "in|inch|inches", "ft": "ft|foot|feet", "yd": "yd|yards?", "mi": "mi|miles?", "g": "g|grams?",
    "kg": "kg|kilograms?", "mg": "mg", "lb": "lbs?|pounds?", "oz": "oz|ounces?", "s": "s|sec|seconds?",
    "min": "min|minutes?", "h": "h|hr|hrs|hours?", "day": "days?", "week": "weeks?", "year": "years?",
    "L": "L|l|liters?|litres?", "ml": "mL|ml", "degree": "deg|degrees?", "rad": "rad|radians?", "mph": "mph",
    "dollar": "dollars?|USD", "cent": "cents?", "unit": "units?", "N": "N", "J": "J", "W": "W", "V": "V", "Hz": "Hz",
}  # fmt: skip
_CANONICAL = {
    spelling.replace("s?", plural): name
    for name, pattern in _UNITS.items()
    for spelling in pattern.split("|")
    for plural in ("", "s")
}
_UNIT = "|".join(sorted(_UNITS.values(), key=len, reverse=True))
_WITH_UNIT = re.compile(
    rf"(?P<number>.*[\d)}}])\s*(?P<area>square |cubic |sq\.? )?(?P<unit>{_UNIT})"
    r"(?:\^\{?(?P<power>-?\d)\}?)?(?P<per>\s*(?:/|per )\s*\w+(?:\^\{?\d\}?)?)?"
)
_WITH_WORDS = re.compile(r"(?P<number>.*[\d)}])\s*(?P<words>[A-Za-z]{3,}(?: [A-Za-z]+)*)")
_NOT_WORDS = {"or", "and", "sin", "cos", "tan", "log", "exp", "mod", "sqrt", "max", "min", "gcd", "lcm", "base", "not"}
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")


@dataclass(frozen=True)
class Quantity:
    """An exact number and what was written behind it."""

    value: Fraction
    unit: str | None = None  # canonical, for known units only
    percent: bool = False


def quantity(text: str) -> Quantity | None:
    """Read a normalised answer as one number, or None.

    Words that are no known unit (`12 apples`) are taken for a unit without a name.
    """
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    value = exact_value(text)
    if value is not None:
        return Quantity(value)
    if text.endswith("%") or text.endswith(" percent"):
        value = exact_value(text.removesuffix("%").removesuffix(" percent"))
        return None if value is None else Quantity(value, percent=True)
    match = _WITH_UNIT.fullmatch(text)
    if match and (value := exact_value(match["number"])) is not None:
        return Quantity(value, unit=_name(match))
    match = _WITH_WORDS.fullmatch(text)
    if match and not _NOT_WORDS & set(match["words"].split()):
        first, _, rest = match["words"].partition(" ")
        value = exact_value(match["number"])
        if value is not None:
            return Quantity(value * 10 ** _LARGE.get(first, 0), unit=_CANONICAL.get(rest if first in _LARGE else first))
    return None


def _name(match: re.Match[str]) -> str:
    power = {"square ": "2", "cubic ": "3"}.get(match["area"] or "", "2" if match["area"] else match["power"] or "1")
    per = re.sub(r"\s|per ", "", match["per"] or "").lstrip("/")
    return f"{_CANONICAL[match['unit']]}^{power}/{per}"


def same_quantity(gold: Quantity, given: Quantity) -> bool:
    """Equal values; units only tell two quantities apart when both sides name one.

    50% is 1/2. A percent sign on one side only may also be the unit that the question asked for: gold `50%` takes
    `50`, and gold `50` takes `50%`, but gold `0.5` does not take `0.5%`, for a share below 1 is a plain number.
    """
    if gold.unit and given.unit and gold.unit != given.unit:
        return False
    if gold.percent == given.percent:
        return gold.value == given.value
    scaled = [item.value / 100 if item.percent else item.value for item in (gold, given)]
    return scaled[0] == scaled[1] or (gold.value == given.value and (gold.percent or abs(gold.value) >= 1))
