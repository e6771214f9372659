"""Wall time by phase. At every moment exactly one phase runs, so the parts of a step add up to its wall time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

PHASES: tuple[str, ...] = ("rollout", "grade", "logprob", "train", "sync", "validate", "checkpoint", "other")


class Clock:
    """Stop-watch with one hand per phase; `other` runs whenever no named phase does.

    Args:
        on_phase: told the name of each phase as it begins, for the display.
        now: a monotonic clock, seconds.
    """

    def __init__(self, on_phase: Callable[[str], None] | None = None, now: Callable[[], float] = time.perf_counter):
        self._on_phase = on_phase
        self._now = now
        self._stack = ["other"]
        self._spent = dict.fromkeys(PHASES, 0.0)
        self._begin = self._mark = now()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge the body to `name`; an inner phase pauses the outer one.

        Raises:
            KeyError: `name` is not one of PHASES.
        """
        self._charge()
        if name not in self._spent:
            raise KeyError(name)
        self._stack.append(name)
        if self._on_phase:
            self._on_phase(name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def credit(self, seconds: Mapping[str, float]) -> None:
        """Add what an earlier attempt has spent on the same lap, by phase."""
        for name, value in seconds.items():
            self._spent[name] += value
            self._begin -= value

    def spent(self, name: str) -> float:
        """Seconds charged to `name` since the last lap."""
        self._charge()
        return self._spent[name]

    def so_far(self) -> dict[str, float]:
        """`timing/*` since the last lap, in seconds, with the wall time as `timing/step`."""
        self._charge()
        times = {f"timing/{name}": seconds for name, seconds in self._spent.items()}
        times["timing/step"] = self._mark - self._begin
        return times

    def lap(self) -> dict[str, float]:
        """The same, and starts the next lap."""
        times = self.so_far()
        self._spent = dict.fromkeys(PHASES, 0.0)
        self._begin = self._mark
        return times

    def _charge(self) -> None:
        now = self._now()
        self._spent[self._stack[-1]] += now - self._mark
        self._mark = now
