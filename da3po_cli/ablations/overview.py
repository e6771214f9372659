"""What a person, a log file or a program sees of an ablation: a live table, plain lines, JSON lines, or nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from da3po_cli.ablations.directory import RunState
from da3po_cli.output import Mode
from da3po_cli.runs.display import sparkline
from da3po_cli.runs.metrics import read_metrics

SECONDS = 2.0  # between looks at the metrics of a run


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    step: int = 0
    scores: tuple[tuple[int, float], ...] = ()
    """(step, mean over benchmarks of avg@k) of every validation."""

    @property
    def best(self) -> float | None:
        return max((score for _, score in self.scores), default=None)


def progress_of(records: Sequence[Mapping[str, Any]]) -> Progress:
    """From the records of a metrics.jsonl."""
    scores: list[tuple[int, float]] = []
    for record in records:
        values = [v for k, v in record.items() if k.startswith("val/") and "/avg@" in k and v is not None]
        if values:
            scores.append((record["step"], sum(values) / len(values)))
    return Progress(max((record["step"] for record in records), default=0), tuple(scores))


class Watcher:
    """Reads the metrics of runs again when they have changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, tuple[float, Progress]] = {}
        self._looked: dict[str, float] = {}

    def __call__(self, run: RunState) -> Progress:
        _, progress = self._known.get(run.name, (0.0, Progress()))
        if run.status == "running" and time.monotonic() - self._looked.get(run.name, -SECONDS) < SECONDS:
            return progress
        self._looked[run.name] = time.monotonic()
        file = self._directory / run.name / "metrics.jsonl"
        try:
            changed = file.stat().st_mtime
            if self._known.get(run.name, (0.0, progress))[0] != changed:
                progress = progress_of(read_metrics(file))
                self._known[run.name] = (changed, progress)
        except OSError:
            return Progress()
        return progress


class Overview(Protocol):
    """One way of showing an ablation at work."""

    def say(self, text: str) -> None: ...
    def update(self, runs: Sequence[RunState]) -> None:
        """Called at every look at the runs, and when one has begun or ended."""
        ...

    def close(self) -> None: ...


class Quiet:
    """--quiet."""

    def say(self, text: str) -> None: ...
    def update(self, runs: Sequence[RunState]) -> None: ...
    def close(self) -> None: ...


class Lines(Quiet):
    """A line, or with --json an event, for everything that changes: a run begins or ends, a validation is done."""

    def __init__(self, watch: Watcher, steps: Mapping[str, int], *, as_json: bool) -> None:
        self._watch, self._steps, self._json = watch, steps, as_json
        self._status: dict[str, str] = {}
        self._validated: dict[str, int] = {}

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201

    def update(self, runs: Sequence[RunState]) -> None:
        for run in runs:
            progress = self._watch(run)
            for step, score in progress.scores[self._validated.get(run.name, 0) :]:
                if run.name in self._status:  # not what an earlier session has seen
                    self._tell(
                        "validation", f"{run.name}: step {step}/{self._steps[run.name]} score {score:.4f}", run, score
                    )
            self._validated[run.name] = len(progress.scores)
            if run.status != self._status.get(run.name, "pending"):
                self._tell("run", self._change(run, len(runs), runs), run, progress.best)
            self._status[run.name] = run.status

    def _change(self, run: RunState, count: int, runs: Sequence[RunState]) -> str:
        ended = sum(one.status not in ("pending", "running") for one in runs)
        why = f": {run.error}" if run.error else ""
        took = "" if run.status == "running" else f" after {run.seconds:.0f} s, {ended} of {count} runs ended"
        return f"{run.name}: {run.status}{took}{why}"

    def _tell(self, event: str, text: str, run: RunState, score: float | None) -> None:
        if self._json:
            fields = {"run": run.name, "arm": run.arm, "seed": run.seed, "status": run.status, "score": score}
            print(json.dumps({"event": event, **fields, "error": run.error}), flush=True)  # noqa: T201
        else:
            self.say(text)


class LiveOverview(Quiet):
    """The matrix as a table, redrawn in place on a terminal."""

    def __init__(self, watch: Watcher, steps: Mapping[str, int], title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._watch, self._steps, self._title = watch, steps, title
        self._console = Console(stderr=True)
        self._runs: Sequence[RunState] = ()
        self._begun = time.monotonic()
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=2, transient=False)
        self._live.start()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def update(self, runs: Sequence[RunState]) -> None:
        self._runs = runs

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title=self._title, title_justify="left", expand=False, pad_edge=False)
        for name in ("arm", "seed", "status", "step", "validation", "last", "best", "time"):
            table.add_column(name, justify="left" if name in ("arm", "status", "validation") else "right", no_wrap=True)
        styles = {"finished": "green", "running": "cyan", "diverged": "red", "failed": "red", "interrupted": "yellow"}
        for run in self._runs:
            progress = self._watch(run)
            scores = [score for _, score in progress.scores]
            table.add_row(
                run.arm,
                str(run.seed),
                Text(run.status, style=styles.get(run.status, "dim")),
                f"{progress.step}/{self._steps[run.name]}" if progress.step or scores else "",
                sparkline(scores, 16),
                f"{scores[-1]:.3f}" if scores else "",
                f"{progress.best:.3f}" if progress.best is not None else "",
                _clock(run.seconds) if run.seconds else "",
            )
        return Group(table, Text(f"elapsed {_clock(time.monotonic() - self._begun)}{self._left()}", style="cyan"))

    def _left(self) -> str:
        ended = [run for run in self._runs if run.status == "finished" and run.seconds]
        todo = [run for run in self._runs if run.status in ("pending", "running", "interrupted")]
        if not ended or not todo:
            return ""
        each = sum(run.seconds for run in ended) / len(ended)
        at_work = max(1, sum(run.status == "running" for run in self._runs))
        left = sum(max(0.0, each - (run.seconds if run.status == "running" else 0.0)) for run in todo)
        return f"  left about {_clock(left / at_work)}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def make_overview(mode: Mode, directory: Path, steps: Mapping[str, int]) -> Overview:
    """The overview for this kind of output; `steps` of each run by its name."""
    watch = Watcher(directory)
    if mode == "quiet":
        return Quiet()
    if mode == "human":
        return LiveOverview(watch, steps, f"ablation {directory.name}")
    return Lines(watch, steps, as_json=mode == "json")
