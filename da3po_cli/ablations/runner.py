"""Carry out the runs of an ablation, each in a fresh process: `da3po train`, one after another or several at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from da3po_cli.ablations.directory import Ablation, AblationDir, RunState
from da3po_cli.ablations.overview import Overview
from da3po_cli.ablations.plan import Planned, Slot
from da3po_cli.errors import Terminated
from da3po_cli.runs.metrics import read_metrics

TRAIN = (sys.executable, "-m", "da3po_cli", "train")
POLL = 0.5  # seconds between looks at the runs
BOUNCE = 1.0  # seconds within which a second signal is the same key press
DONE = ("finished", "diverged")
"""Results: a resumed ablation leaves such runs alone. The same seed would diverge again."""
_STATUS = {5: "diverged", 130: "interrupted", 143: "interrupted"}


@dataclass
class _Live:
    planned: Planned
    state: RunState
    slot: Slot
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    before: float
    """Seconds of its earlier attempts."""
    said: int
    """Bytes of the log that they wrote."""
    started: float = field(default_factory=time.monotonic)


class Runner:
    """Keeps the slots busy until every run has ended. A run that fails is noted, and the others go on.

    Args:
        command: what the arguments of a run are given to; `da3po train` by default.
    """

    def __init__(
        self,
        directory: AblationDir,
        ablation: Ablation,
        slots: Sequence[Slot],
        overview: Overview,
        command: Sequence[str] | None = None,
    ) -> None:
        self._directory, self._ablation, self._overview = directory, ablation, overview
        self._command = command or TRAIN
        self._free = list(slots)
        self._live: list[_Live] = []
        self._time_is_up = False
        """A run has ended by checkpoint.before."""

    def run(self, planned: Sequence[Planned]) -> None:
        """Run all of `planned` that has no result yet. Where a run stops by itself before its end, start no more.

        Raises:
            KeyboardInterrupt, Terminated: a signal came; the runs at work have stopped after their steps.
        """
        waiting = [one for one in planned if self._state(one).status not in DONE]
        try:
            while waiting or self._live:
                while waiting and self._free:
                    self._start(waiting.pop(0))
                self._look()
                if self._time_is_up:
                    waiting.clear()
                if self._live:
                    time.sleep(POLL)
        except (KeyboardInterrupt, Terminated) as stop:
            self._stop(signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM)
            raise

    def _state(self, planned: Planned) -> RunState:
        state = self._ablation.state(planned.name)
        assert state is not None, planned.name
        return state

    def _start(self, planned: Planned) -> None:
        run, state, slot = self._directory.run(planned.name), self._state(planned), self._free.pop()
        arguments = list(planned.arguments)
        if run.saved_steps():
            arguments = ["--name", planned.name, "--resume"]  # its own config.yaml is the config
        elif run.used:
            arguments.append("--overwrite")
        log = self._directory.log(planned.name)
        log.parent.mkdir(exist_ok=True)
        file = log.open("ab")
        said = file.tell()
        with_cores = os.sched_getaffinity(0)
        try:
            if slot.cores:
                os.sched_setaffinity(0, slot.cores)  # a child has the cores of the thread that starts it
            process = subprocess.Popen(
                [*self._command, *arguments],
                env=self._environment(slot),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the runs through `_stop` alone
            )
        finally:
            os.sched_setaffinity(0, with_cores)
        state.status, state.exit_code, state.error = "running", None, None
        self._live.append(_Live(planned, state, slot, process, file, state.seconds, said))
        self._save()

    def _environment(self, slot: Slot) -> dict[str, str]:
        env = {**os.environ, "DA3PO_RUNS": str(self._directory.path.absolute())}
        return env | {"CUDA_VISIBLE_DEVICES": ",".join(slot.devices)} if slot.devices else env

    def _look(self) -> None:
        for live in list(self._live):
            live.state.seconds = live.before + time.monotonic() - live.started
            if live.process.poll() is not None:
                self._end(live)
        self._overview.update(self._ablation.runs)

    def _end(self, live: _Live) -> None:
        live.log.close()
        self._live.remove(live)
        self._free.append(live.slot)
        code = live.process.returncode
        state = live.state
        code = 128 - code if code < 0 else code  # ended by a signal: as a shell tells it
        state.exit_code, state.status = code, self._outcome(live.planned, code)
        self._time_is_up |= state.status == "interrupted" and code == 0
        log = self._directory.log(live.planned.name)
        state.error = last_error(log, live.said) if state.status != "finished" else None
        self._save()

    def _outcome(self, planned: Planned, code: int) -> str:
        if code != 0:
            return _STATUS.get(code, "failed")
        metrics = self._directory.run(planned.name).metrics_file
        last = max((record["step"] for record in read_metrics(metrics)), default=0) if metrics.is_file() else 0
        return "finished" if last >= planned.config.run.steps else "interrupted"  # checkpoint.before ends with 0

    def _stop(self, number: signal.Signals) -> None:
        """Pass the signal on and wait: a run stops after its step, with a checkpoint. The next signal ends it at once.

        The last resort, at the third one, is SIGKILL to the run and its ranks.
        """
        asked = 0
        while self._live:
            try:
                if asked == 0:
                    self._overview.say(f"stopping {len(self._live)} run(s) after the step; once more ends them at once")
                for live in self._live:
                    if asked < 2:
                        live.process.send_signal(number)
                    else:
                        os.killpg(live.process.pid, signal.SIGKILL)
                asked, since = asked + 1, time.monotonic()
                while self._live:
                    self._look()
                    time.sleep(POLL)
            except (KeyboardInterrupt, Terminated):
                if time.monotonic() - since < BOUNCE:
                    asked -= 1

    def _save(self) -> None:
        self._directory.write(self._ablation)


def last_error(log: Path, start: int = 0) -> str | None:
    """The last `error:` line of a run's log from byte `start` on, without the word."""
    try:
        lines = log.read_bytes()[start:].decode("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    found = [line.strip() for line in lines if line.lstrip().startswith("error:")]
    return found[-1].removeprefix("error:").strip() if found else None
