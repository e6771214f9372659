"""Answers in words: names, yes and no, choices, numbers in words, times of day, dates."""

# ruff: noqa: RUF001 (see normalise)

from __future__ import annotations

import re

_SMALL = (  # noqa: SIM905
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905
_ORDINAL = (  # noqa: SIM905
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
    "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
).split()
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_MONTHS = "january february march april may june july august september october november december".split()  # noqa: SIM905
_MONTH = "(" + "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS) + r")\.?"
_DATES = [
    (re.compile(rf"{_MONTH} (\d{{1,2}})(?:st|nd|rd|th)?(?:,? ?(\d{{4}}))?"), (1, 2, 3)),
    (re.compile(rf"(\d{{1,2}})(?:st|nd|rd|th)? (?:of )?{_MONTH}(?:,? ?(\d{{4}}))?"), (2, 1, 3)),
]
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))? ?(?:([ap])\.?m\.?)?")
_HOUR = re.compile(r"(\d{1,2}) ?([ap])\.?m\.?")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_SAME = {
    "does not exist": "dne", "no solutions": "no solution", "no real solutions": "no solution",
    "no real solution": "no solution", "none": "none", "infinitely many": "infinitely many solutions",
    "true": "true", "false": "false", "empty set": "∅", "the empty set": "∅", "infinity": "∞",
    "no integer solutions": "no solution", "no solution exists": "no solution", "no solutions exist": "no solution",
}  # fmt: skip
_CHOICE = re.compile(r"\(?([A-J])\)?[.:)]?")
_CHOSEN = re.compile(
    r"(?:option|choice|answer) ?\(?([A-J])\)?|\(([A-J])\).*|([A-J])[).:] .*|([A-J]) [A-Za-z]{2,}.*", re.DOTALL
)


def plain(text: str) -> str:
    r"""A normalised text without `\text` wrappers, in lower case, single spaces."""
    text = _TEXT.sub(r" \1 ", text).replace("﹠", " and ").replace("∨", " or ")
    return re.sub(r"\s+", " ", text).strip(" .,;:!").casefold()


def words(text: str) -> str | None:
    """The answer as words, one spelling for synonyms; None for what is no text."""
    found = plain(text)
    bare = _TEXT.sub("", text)
    if not re.fullmatch(r"[^\W\d_](?:[^\W_]|[ '\-.,()/!?])*", found):
        return None
    if "\\" in bare or (len(found) < 2 and bare):
        return None
    found = re.sub(r"^(?:the|an|a) (?=\w\w)", "", found)
    found = re.sub(r"\s*-\s*", "-", found)
    return _SAME.get(found, found)


def number_in_words(text: str) -> int | None:
    """`twenty-five`, `one hundred and five`, `fifth`, `5th`, `5^{th}`."""
    found = plain(text).replace("-", " ").replace(" and ", " ")
    match = re.fullmatch(r"(\d{1,9}) ?\^?\{? ?(?:st|nd|rd|th) ?\}?", found)
    if match:
        return int(match[1])
    tokens = found.split()
    if not tokens or len(tokens) > 12:
        return None
    if tokens[-1] in _ORDINAL:
        tokens[-1] = [*_SMALL, "twenty"][_ORDINAL.index(tokens[-1])]
    total = part = 0
    seen = ""
    for token in tokens:
        if token in _SMALL:
            if seen == "small" or (seen == "tens" and _SMALL.index(token) not in range(1, 10)):
                return None
            part, seen = part + _SMALL.index(token), "small"
        elif token in _TENS:
            if seen in ("small", "tens"):
                return None
            part, seen = part + 10 * _TENS.index(token), "tens"
        elif token == "hundred" and 0 < part < 100:
            part, seen = part * 100, "hundred"
        elif token in _SCALES and part:
            total, part, seen = total + part * _SCALES[token], 0, "scale"
        else:
            return None
    return total + part


def choice(text: str) -> str | None:
    """The letter of a choice given alone: `B`, `(B)`, `B.`."""
    match = _CHOICE.fullmatch(_TEXT.sub(r"\1", text).strip())
    return match[1] if match else None


def chosen(text: str) -> str | None:
    """The letter of a choice given with its text: `(B) seven`, `B. seven`, `option B`."""
    match = _CHOSEN.fullmatch(_TEXT.sub(r"\1", text).strip())
    return next(filter(None, match.groups()), None) if match else None


def clock(text: str) -> tuple[int, int, int] | None:
    """Hours, minutes, seconds of a time of day; 12-hour times with their am or pm."""
    found = plain(text)
    match = _TIME.fullmatch(found)
    hour = _HOUR.fullmatch(found)
    if match:
        hours, minutes, seconds, half = int(match[1]), int(match[2]), int(match[3] or 0), match[4]
    elif hour:
        hours, minutes, seconds, half = int(hour[1]), 0, 0, hour[2]
    else:
        return None
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    return (hours % 12 + (12 if half == "p" else 0) if half else hours), minutes, seconds


def date(text: str) -> tuple[int, int, int | None] | None:
    """(month, day, year or None)."""
    found = plain(text).replace(" ,", ",")
    for pattern, order in _DATES:
        match = pattern.fullmatch(found)
        if match:
            month, day, year = (match[group] for group in order)
            number = next(index for index, name in enumerate(_MONTHS, 1) if name.startswith(month[:3]))
            return number, int(day), int(year) if year else None
    return None
