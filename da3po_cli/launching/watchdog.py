"""Ends a job in which no rank gets on, with the stacks of all ranks and the name of the one that is behind.

    beat(), tick()  ->  rank_K.beat  ->  a thread in every rank  ->  rank_K.stacks.txt, rank_K.error.json, exit code 3

Every rank notes what it does in a small file of fixed size beside its logs: its phase, and a count that goes up with
each engine step and micro-batch. One rank that stops soon stops its peers, which wait for it in a collective (torch
would let them for half an hour), so only when no file has changed for `health.stall_timeout` seconds the job is
stalled, and the rank with the fewest phases is behind. All ranks watch, under any launcher. The first to notice raises
an alarm, a file, at which all ranks of the machine write their stacks; one that a signal stopped is woken for it.

`kill -USR1 PID` writes the stack of a rank's main thread at any time, and changes nothing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from da3po_cli.errors import Da3poError, EnvironmentProblem
from da3po_cli.runs.heartbeat import DONE, DOWNLOAD, Beat, keep_beats, process_state, read_beats

DUMP = signal.SIGUSR1
SPARE = 32 << 10  # bytes that a rank frees when it ends, for the report of its error on a full disk
DUMP_SECONDS = 6.0  # longest wait for the stacks of the other ranks
START_SECONDS = 600.0  # at least, before the first step: imports and engines take long and do not beat

Report = Callable[[Da3poError, int], None]


def collective_timeout(stall_timeout: float) -> float:
    """Seconds that torch's collectives wait for a rank: long enough for the watchdog to be the first to tell."""
    return max(1800.0, stall_timeout + 300.0)


# ------------------------------------------------------------------------------------------------------------ watching


@contextlib.contextmanager
def watch(logs: Path, rank: int, timeout: float, report: Report) -> Iterator[None]:
    """Keep the beats of this rank, and watch those of all while the body runs.

    Args:
        logs: directory of the attempt's logs.
        timeout: seconds, at least START_SECONDS before the first step; 0 only keeps the beats.
        report: told the error and the rank that is behind, before this process ends with the error's exit code.
    """
    logs.mkdir(parents=True, exist_ok=True)
    spare, stacks = logs / f".rank_{rank}.spare", logs / f"rank_{rank}.stacks.txt"
    alarm_file(logs).unlink(missing_ok=True)  # of ranks before this one's restart
    with contextlib.suppress(OSError):
        spare.write_bytes(b"\0" * SPARE)
    handle = os.open(stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    faulthandler.register(DUMP, file=handle, all_threads=False)
    watching = _Watch(logs, rank, timeout, handle, report)
    try:
        if timeout > 0:
            watching.start()
        with keep_beats(logs, rank):
            yield
    finally:
        watching.stop()
        faulthandler.unregister(DUMP)
        os.close(handle)
        with contextlib.suppress(OSError):
            spare.unlink(missing_ok=True)
            if not stacks.stat().st_size:
                stacks.unlink()


class _Watch(threading.Thread):
    """The thread of one rank that looks at the beats of all.

    It writes this process's own stacks while it holds the GIL, when no frame can change: a signal handler may crash on
    the stack of a thread that runs.
    """

    def __init__(self, logs: Path, rank: int, timeout: float, stacks: int, report: Report) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._logs, self._rank, self._timeout, self._stacks, self._report = logs, rank, timeout, stacks, report
        self._period = min(1.0, timeout / 10)
        self._alarm = alarm_file(logs)
        self._over = threading.Event()

    def stop(self) -> None:
        self._over.set()

    def run(self) -> None:
        beats: dict[int, Beat] = {}
        changed: dict[int, float] = {}
        looked = time.monotonic()
        while not self._over.wait(self._period):
            if self._alarm.exists():  # another rank of this machine was first
                self._follow()
            now = time.monotonic()
            pause = now - looked
            if pause > 3 * self._period + 1:  # this process itself was stopped: of that time it knows nothing
                changed = {rank: when + pause for rank, when in changed.items()}
            looked = now
            for one in read_beats(self._logs):
                if beats.get(one.rank) != one:
                    beats[one.rank], changed[one.rank] = one, now
            busy = [one for one in beats.values() if one.phase != DONE]
            waits = any(one.phase == DOWNLOAD for one in busy)
            begun = all(one.step > 0 for one in busy)
            limit = self._timeout if begun else max(self._timeout, START_SECONDS)
            if busy and not waits and now - max(changed.values()) > limit:
                self._end(busy, changed, limit)

    def _follow(self) -> None:
        """Write this rank's stacks, and leave the rest to the rank that was first."""
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        time.sleep(4 * DUMP_SECONDS)
        os._exit(EnvironmentProblem.exit_code)

    def _end(self, beats: Sequence[Beat], changed: dict[int, float], limit: float) -> None:
        here = [one for one in beats if one.host == socket.gethostname()]
        before = {one.rank: stacks_size(self._logs, one.rank) for one in here}
        states = {one.rank: process_state(one.pid)[0] for one in here}
        late = behind(beats, states, changed)
        error = stall_error(late, states.get(late.rank, "?"), limit, self._logs, alone=len(beats) == 1)
        try:
            os.close(os.open(self._alarm, os.O_CREAT | os.O_EXCL, 0o644))
        except FileExistsError:
            self._follow()
        except OSError:  # a full disk: every rank acts
            pass
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        dump_stacks([one for one in here if one.rank != self._rank], self._logs, before)
        self._report(error, late.rank)
        os._exit(error.exit_code)


def alarm_file(logs: Path) -> Path:
    """It asks the ranks of this machine for their stacks."""
    return logs / f"stalled.{socket.gethostname()}"


def behind(beats: Sequence[Beat], states: dict[int, str], changed: dict[int, float]) -> Beat:
    """The rank that the others wait for: the fewest phases; of several a stopped one, or who was silent first."""
    return min(beats, key=lambda one: (one.phases, states.get(one.rank) not in ("T", "t"), changed[one.rank]))


def stall_error(late: Beat, state: str, timeout: float, logs: Path, *, alone: bool) -> EnvironmentProblem:
    """What a user reads. The launcher puts the rank before it.

    Args:
        state: letter of its process; "?" where it is on another machine.
        alone: the job has one rank.
    """
    why = {
        "T": ", and its process is stopped (SIGSTOP)",
        "t": ", and its process is held by a debugger",
        "Z": ", and its process is gone",
        "": ", and its process is gone",
    }.get(state, "")
    doing = f"{late.phase} ({late.detail})" if late.detail else late.phase
    who = "" if alone else "this rank is behind, "
    return EnvironmentProblem(
        f"no progress for {timeout:g} s: {who}in {doing} of step {late.step}{why}",
        where=f"stacks of all ranks in {logs}/rank_*.stacks.txt",
        hint="go on with --resume; where a phase needs more time, raise health.stall_timeout",
    )


def dump_stacks(beats: Sequence[Beat], logs: Path, before: Mapping[int, int]) -> None:
    """Wait until these ranks of this machine have written their stacks after the alarm; DUMP_SECONDS at most.

    Stopped ones are woken for it, with the signal pending, which shows where they were. Whoever else does not answer,
    because something holds its GIL, gets the signal later.

    Args:
        before: size of the stacks of each rank before the alarm; a user may have asked for some.
    """

    def silent(one: Beat) -> bool:
        state, born = process_state(one.pid)
        return state not in ("", "Z") and born == one.born and stacks_size(logs, one.rank) <= before[one.rank]

    def ask(one: Beat) -> None:
        with contextlib.suppress(OSError):
            os.kill(one.pid, DUMP)
            os.kill(one.pid, signal.SIGCONT)  # it does nothing to a process that runs

    for one in filter(silent, beats):
        if process_state(one.pid)[0] == "T":
            ask(one)
    deadline, asked = time.monotonic() + DUMP_SECONDS, False
    while (waiting := [*filter(silent, beats)]) and time.monotonic() < deadline:
        if not asked and time.monotonic() > deadline - DUMP_SECONDS / 2:
            asked = True
            for one in waiting:
                ask(one)
        time.sleep(0.1)


def stacks_size(logs: Path, rank: int) -> int:
    """Bytes of the stacks that a rank has written."""
    try:
        return (logs / f"rank_{rank}.stacks.txt").stat().st_size
    except OSError:
        return 0
