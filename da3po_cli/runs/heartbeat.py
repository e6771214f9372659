"""What each rank says of itself while it runs: a small file of fixed size beside its logs, with its phase and a count
that goes up with each engine step and micro-batch. `launching.watchdog` reads those of all ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

SIZE = 512  # bytes of a beat file; it is written in place, so a full disk does not stop the beats
DOWNLOAD = "download"  # the one phase without a limit: it is the network's
DONE = "done"


@dataclass(frozen=True)
class Beat:
    """What a rank says of itself."""

    rank: int
    pid: int
    host: str
    born: str = ""  # start time of the process as the kernel counts it: a process id may be given out again
    phases: int = 0  # so far; ranks run the same ones, so a lower number is behind
    ticks: int = 0
    step: int = 0
    phase: str = "start"
    detail: str = ""


class _Heart:
    """This rank's beat file."""

    def __init__(self, file: Path, rank: int) -> None:
        self._beat = Beat(rank, os.getpid(), socket.gethostname(), process_state(os.getpid())[1])
        self._handle = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
        self._written = 0.0
        self._write()

    def beat(self, phase: str, detail: str, step: int | None) -> None:
        beat = self._beat
        step = beat.step if step is None else step
        self._beat = replace(beat, phases=beat.phases + 1, step=step, phase=phase, detail=detail[:80])
        self._write()

    def tick(self) -> None:
        self._beat = replace(self._beat, ticks=self._beat.ticks + 1)
        if time.monotonic() - self._written > 0.5:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        text = json.dumps(asdict(self._beat)).encode()
        with contextlib.suppress(OSError):
            os.pwrite(self._handle, text.ljust(SIZE - 1) + b"\n", 0)

    def close(self) -> None:
        self.beat(DONE, "", None)
        os.close(self._handle)


_heart: _Heart | None = None


def beat(phase: str, detail: str = "", *, step: int | None = None) -> None:
    """This rank begins `phase` (of `step`, if another one than before); nothing outside of `watch`."""
    if _heart is not None:
        _heart.beat(phase, detail, step)


def tick() -> None:
    """This rank got on within its phase. Costs a microsecond."""
    if _heart is not None:
        _heart.tick()


@contextlib.contextmanager
def keep_beats(logs: Path, rank: int) -> Iterator[None]:
    """Write the beats of this rank while the body runs, and the last one of all after it."""
    global _heart
    _heart = _Heart(logs / f"rank_{rank}.beat", rank)
    try:
        yield
    finally:
        _heart.close()
        _heart = None


def read_beats(logs: Path) -> list[Beat]:
    """The beats of all ranks that write to this directory, by rank."""
    found: list[Beat] = []
    for file in logs.glob("rank_*.beat"):
        with contextlib.suppress(OSError, ValueError, TypeError):  # one that is just being made
            found.append(Beat(**json.loads(file.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda one: one.rank)


def process_state(pid: int) -> tuple[str, str]:
    """(state letter of the process, its start time) by the kernel; both empty where there is no such process."""
    if not Path("/proc/self/stat").exists():  # not Linux
        return "?", ""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]
