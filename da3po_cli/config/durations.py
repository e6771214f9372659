"""Durations as job schedulers write them."""

from __future__ import annotations

import re

_CLOCK = re.compile(r"(\d{1,4}):([0-5]\d)(?::([0-5]\d))?")


def seconds(text: str) -> int:
    """Seconds of HH:MM or HH:MM:SS; hours may exceed 24.

    Raises:
        ValueError: `text` has another form, or is zero.
    """
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not HH:MM or HH:MM:SS")
    total = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3] or 0)
    if total == 0:
        raise ValueError(f"{text!r} is no time at all")
    return total
