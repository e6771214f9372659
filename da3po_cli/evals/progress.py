"""How far an evaluation is: a bar with the time that is left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

LINE_SECONDS = 10.0  # between lines where there is no terminal


class Progress(Protocol):
    def update(self, done: int, tokens: int) -> None:
        """`done` responses of the total are there, of which this process has seen `tokens` new tokens."""
        ...

    def close(self) -> None: ...


class Silent:
    """With --json and --quiet, and on all ranks but 0."""

    def update(self, done: int, tokens: int) -> None: ...
    def close(self) -> None: ...


class Lines:
    """One line every LINE_SECONDS."""

    def __init__(self, total: int, before: int) -> None:
        self._total, self._before = total, before
        self._begun = self._said = time.monotonic()

    def update(self, done: int, tokens: int) -> None:
        now = time.monotonic()
        if now - self._said < LINE_SECONDS and done < self._total:
            return
        self._said = now
        seconds = max(now - self._begun, 1e-9)
        left = remaining(done - self._before, self._total - done, seconds)
        sys.stderr.write(f"{done}/{self._total} responses, {tokens / seconds:.0f} tokens/s, left about {left}\n")
        sys.stderr.flush()

    def close(self) -> None: ...


class Bar:
    """A bar that is redrawn in place."""

    def __init__(self, total: int, before: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._total, self._before, self._begun = total, before, time.monotonic()
        columns: list[Any] = [BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn()]
        columns.append(TextColumn("left about {task.fields[left]}"))
        self._bar = RichProgress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task("", total=total, completed=before, rate="", left="?")
        self._bar.start()

    def update(self, done: int, tokens: int) -> None:
        seconds = max(time.monotonic() - self._begun, 1e-9)
        left = remaining(done - self._before, self._total - done, seconds)
        self._bar.update(self._task, completed=done, rate=f"{tokens / seconds:.0f} tokens/s", left=left)

    def close(self) -> None:
        self._bar.stop()


def remaining(done: int, left: int, seconds: float) -> str:
    """Time for `left` more at the rate of `done` in `seconds`, as h:mm:ss or m:ss."""
    if left <= 0:
        return "0:00"
    if done <= 0:
        return "?"
    minutes, rest = divmod(round(left * seconds / done), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def make_progress(total: int, before: int, *, silent: bool) -> Progress:
    """For `total` responses, of which `before` are there already."""
    if silent:
        return Silent()
    return Bar(total, before) if sys.stderr.isatty() else Lines(total, before)
