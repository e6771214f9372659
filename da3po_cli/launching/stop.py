"""When a job stops before its last step: a signal, or a time limit.

The first SIGTERM, SIGHUP or Ctrl-C asks for a stop after the present step, the next one ends the job at once. SIGHUP
stays ignored where it was when the command began (nohup). How they come:

* The launcher of several ranks (`launch`) keeps them to itself: it passes the first on to rank 0 as ASK, and the next
  one to torch elastic, which ends all ranks. Its own SIGTERM to a rank therefore always means: at once.
* Under torchrun or srun, and with one rank, they come straight to the ranks. Rank 0 acts; the others ignore the first.

Rank 0's decision is everyone's: it is broadcast between two steps. Before the first step nothing has been learnt and
nothing could be saved, so until then the first signal ends the job.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType

from da3po_cli.errors import Terminated
from da3po_cli.protocols import Comm

ASK = signal.SIGUSR2
_HANGUP = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
ENDINGS = (signal.SIGTERM, signal.SIGINT, *_HANGUP)
BOUNCE = 0.3  # seconds: a signal that reaches a process by two ways is one


class Listener:
    """This rank's signal handlers. There is one per process, made by `run_rank` before anything slow.

    Args:
        asking: under `launch`, the file in which rank 0 leaves its process id for as long as it takes ASK; None where
            the signals themselves come to this rank.
    """

    def __init__(self, rank: int, asking: Path | None) -> None:
        self._rank, self._asking = rank, asking
        self.asked: signal.Signals | None = None
        self._when = 0.0
        self._tell: Callable[[], None] = lambda: None
        self.impatient()

    def impatient(self) -> None:
        """The first signal unwinds rank 0, so that displays and files are closed; the next one ends it at once."""
        if self._rank == 0:
            if self._asking is not None:
                self._asking.unlink(missing_ok=True)
                signal.signal(ASK, signal.SIG_IGN)
            self._set(ENDINGS, _unwind)
        elif self._asking is not None:  # nothing to unwind, and no Python handler runs inside a collective
            self._set(ENDINGS, signal.SIG_DFL)
        else:
            self._set(ENDINGS, lambda number, frame: self._set(ENDINGS, signal.SIG_DFL))

    def patient(self, tell: Callable[[], None]) -> None:
        """From here the first signal only sets `asked` and calls `tell`, on rank 0 and inside the handler."""
        if self._rank != 0:
            return
        self._tell = tell
        if self._asking is None:
            self._set(ENDINGS, self._ask)
        else:
            signal.signal(ASK, self._ask)
            self._asking.write_text(str(os.getpid()))

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked is None:
            self.asked, self._when = signal.Signals(number), time.monotonic()
            self._tell()
        elif time.monotonic() - self._when > BOUNCE and number != ASK:
            _unwind(number, frame)

    @staticmethod
    def _set(numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], object] | int) -> None:
        for number in numbers:
            signal.signal(number, handler)


def _unwind(number: int, frame: FrameType | None) -> None:
    for ending in ENDINGS:
        signal.signal(ending, signal.SIG_DFL)
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated


_listener: Listener | None = None


def listen(rank: int, asking: Path | None) -> None:
    """Install the handlers of this process; see `Listener`."""
    global _listener
    _listener = Listener(rank, asking)


def listener() -> Listener | None:
    """The handlers that `listen` installed."""
    return _listener


class Stop:
    """Decides between two steps whether the job goes on, the same on every rank.

    Args:
        deadline: unix time by which the last checkpoint must be whole; None is never.
        notice: shows a line; it is called inside a signal handler.
    """

    def __init__(
        self,
        comm: Comm,
        listener: Listener | None,
        notice: Callable[[str], None],
        deadline: float | None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._comm, self._listener, self._notice, self._deadline, self._now = comm, listener, notice, deadline, now
        self._step, self._begun, self._longest = 0, None, 0.0

    def begin(self, step: int) -> None:
        """A step begins. From the first one on, a signal waits for the end of the step."""
        first, now = self._begun is None, self._now()
        self._note(now)
        self._step, self._begun = step, now
        if first and self._listener:
            self._listener.patient(self._told)

    def _note(self, now: float) -> None:
        if self._begun is not None:
            self._longest = max(self._longest, now - self._begun)

    def _told(self) -> None:
        self._notice(f"stopping after step {self._step}, which saves a checkpoint; Ctrl-C or SIGTERM again stops now")

    def asked(self) -> bool:
        """Whether a signal asked for it. Collective."""
        return self._comm.broadcast(self._listener is not None and self._listener.asked is not None)

    def here(self, save: float) -> bool:
        """Whether the job stops after this step: it was asked to, or another step like the longest so far would pass
        the deadline. The last question in a step. Collective.

        Args:
            save: seconds that a checkpoint takes. Two may be to come: of this step, and of the next one.
        """
        self._note(self._now())
        late = self._deadline is not None and self._now() + self._longest + 2 * save > self._deadline
        stops = self.asked() or self._comm.broadcast(late)
        if not stops:
            self._step += 1  # what a signal says from here on is of the next step
        return stops

    def close(self) -> None:
        """No more steps: a signal ends the job at once again."""
        if self._listener:
            self._listener.impatient()


def deadline(before: str | None, attempt: Mapping[str, str], env: Mapping[str, str] = os.environ) -> float | None:
    """Unix time of `checkpoint.before`, counted from the start of the job.

    That is SLURM_JOB_START_TIME where Slurm tells it, else the start of this command as run.json has it.
    """
    if before is None:
        return None
    from da3po_cli.config.durations import seconds

    job = env.get("SLURM_JOB_START_TIME", "")
    started = float(job) if job.isdecimal() else datetime.fromisoformat(attempt["started"]).timestamp()
    return started + seconds(before)
