"""From a verdict to a reward: right and wrong, a format bonus, and the soft overlong punishment of DAPO."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shaping:
    """r = (correct or wrong) + format bonus + factor * overlong(length)."""

    max_tokens: int
    """L_max, the longest response that is generated."""
    overlong_cache: int = 0
    """L_cache: the punishment grows over the last this many tokens; 0 is off."""
    overlong_factor: float = 1.0
    correct: float = 1.0
    wrong: float = -1.0
    format_bonus: float = 0.0
    """Earned by any response in which an answer was found, right or wrong."""

    def reward(self, acc: int, length: int, *, answered: bool = False) -> float:
        """Reward of a response of `length` generated tokens; `acc` is 0 or 1."""
        outcome = (self.correct if acc else self.wrong) + (self.format_bonus if answered else 0.0)
        return outcome + self.overlong_factor * overlong(length, self.max_tokens, self.overlong_cache)


def overlong(length: int, max_tokens: int, cache: int) -> float:
    """DAPO eq. 13 (arXiv 2503.14476), in [-1, 0].

    0 up to max_tokens - cache, then linear to -1 at max_tokens, -1 above it. cache = 0 turns it off (and not, as the
    formula's limit would, into a step: most runs want none).
    """
    if cache <= 0:
        return 0.0
    return min(0.0, max(-1.0, (max_tokens - cache - length) / cache))
