"""What a person, a log file or a program sees of a run: live table, plain lines, JSON lines, or nothing.

Data (JSON) goes to stdout, talk to stderr. Only rank 0 has a display that speaks.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from da3po_cli.runs.metrics import to_json

Record = dict[str, Any]

_BAR = "▁▂▃▄▅▆▇█"


def _share(value: float) -> str:
    return f"{value:.2f}"


def _small(value: float) -> str:
    return f"{value:.1e}" if value and abs(value) < 1e-3 else f"{value:.3f}"


# heading, how it is read from a record (see `_cell` for one that lacks the metric)
COLUMNS: tuple[tuple[str, Callable[[Record], str]], ...] = (
    ("step", lambda r: str(r["step"])),
    ("acc", lambda r: _share(r["train/acc"])),
    ("kept/gen", lambda r: f"{r['sample/kept']}/{r['sample/generated']}"),
    ("hard", lambda r: _share(r["sample/hard_share"])),
    ("loss", lambda r: f"{r['train/loss']:+.4f}"),
    ("entropy", lambda r: f"{r['train/entropy']:.3f}"),
    ("grad", lambda r: f"{r['train/grad_norm']:.2f}"),
    ("clip hi/lo", lambda r: f"{_small(r['train/clip_high'])}/{_small(r['train/clip_low'])}"),
    ("length", lambda r: f"{r['rollout/length']:.0f}"),
    ("rollout+train+sync s", lambda r: "+".join(f"{_seconds(r, p):.1f}" for p in ("rollout", "train", "sync"))),
    ("tok/s", lambda r: f"{r['rollout/tokens_per_s']:.0f}"),
)


def _cell(read: Callable[[Record], str], record: Record) -> str:
    """A step that generated nothing, or updated nothing, has no such rates."""
    try:
        return read(record)
    except KeyError:
        return "-"


def _seconds(record: Record, part: str) -> float:
    if part == "train":  # the log-prob pass belongs to training for whoever watches
        return record["timing/train"] + record["timing/logprob"]
    return record[f"timing/{part}"]


def validations(record: Record) -> dict[str, float]:
    """The val/<bench>/avg@k and pass@k entries of a record, without the prefix."""
    return {k.removeprefix("val/"): v for k, v in record.items() if k.startswith("val/") and "@" in k}


class Display(Protocol):
    """One way of showing a run."""

    def say(self, text: str) -> None:
        """A line of talk."""
        ...

    def warn(self, text: str) -> None:
        """A line that must not be missed, whatever else is shown."""
        ...

    def notice(self, text: str) -> None:
        """A line that a signal handler may show: it neither waits for a lock nor enters a stream's buffer."""
        ...

    def phase(self, name: str, detail: str = "") -> None:
        """What is going on now."""
        ...

    def step(self, record: Record) -> None:
        """A finished step (step 0: the validation before training)."""
        ...

    def done(self, record: Record, next_commands: list[str]) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Ranks other than 0."""

    def say(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def notice(self, text: str) -> None: ...
    def phase(self, name: str, detail: str = "") -> None: ...
    def step(self, record: Record) -> None: ...
    def done(self, record: Record, next_commands: list[str]) -> None: ...
    def close(self) -> None: ...


class Quiet(Silent):
    """Warnings only."""

    def warn(self, text: str) -> None:
        sys.stderr.write(f"warning: {text}\n")
        sys.stderr.flush()


class JsonLines(Quiet):
    """NDJSON on stdout: a `step` for each step, one `done`. The command has written `launch` before."""

    def notice(self, text: str) -> None:
        os.write(2, f"{text}\n".encode())

    def step(self, record: Record) -> None:
        self._emit("step", record)

    def done(self, record: Record, next_commands: list[str]) -> None:
        self._emit("done", {**record, "next": next_commands})

    def _emit(self, event: str, record: Record) -> None:
        sys.stdout.write(to_json({"event": event, **record}) + "\n")
        sys.stdout.flush()


class PlainLines(Quiet):
    """One line per step and per long phase, for log files and pipes."""

    _SLOW = ("start", "validate", "checkpoint")  # phases that a step's line does not tell of

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def say(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def notice(self, text: str) -> None:
        os.write(2, f"{text}\n".encode())

    def phase(self, name: str, detail: str = "") -> None:
        if name in self._SLOW:
            self.say(f"{name} {detail}".strip() + " ...")

    def step(self, record: Record) -> None:
        if record["step"]:
            cells = " ".join(f"{name.replace(' ', '_')}={_cell(read, record)}" for name, read in COLUMNS[1:])
            self.say(f"step {record['step']}/{self._steps} {cells} step_s={record['timing/step']:.1f}")
        for name, value in validations(record).items():
            self.say(f"validation at step {record['step']}: {name} = {value:.4f}")

    def done(self, record: Record, next_commands: list[str]) -> None:
        self.say(summary_line(record))
        for command in next_commands:
            self.say(f"next: {command}")


class LiveTable(Silent):
    """A table of the latest steps and the present phase, redrawn in place on a terminal."""

    ROWS = 12

    def __init__(self, steps: int, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._steps, self._title = steps, title
        self._console = Console(stderr=True)
        self._records: deque[Record] = deque(maxlen=self.ROWS)
        self._curve: list[float] = []
        self._validation: dict[str, list[tuple[int, float]]] = {}
        self._phase, self._detail, self._since = "start", "", time.monotonic()
        self._begun = time.monotonic()
        self._notice = ""
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4, transient=False)
        self._live.start()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")

    def notice(self, text: str) -> None:
        self._notice = text  # the table shows it at its next refresh, a quarter of a second later at most

    def phase(self, name: str, detail: str = "") -> None:
        if name != self._phase:
            self._since = time.monotonic()
        self._phase, self._detail = name, detail

    def step(self, record: Record) -> None:
        if record["step"]:
            self._records.append(record)
            if "train/acc" in record:
                self._curve.append(record["train/acc"])
        for name, value in validations(record).items():
            self._validation.setdefault(name, []).append((record["step"], value))

    def done(self, record: Record, next_commands: list[str]) -> None:
        self._phase, self._detail, self._notice = record["status"], "", ""
        self._live.stop()
        self._console.print(summary_line(record), style="bold", highlight=False)
        for command in next_commands:
            self._console.print("  next:", command, highlight=False, markup=False)

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        table = Table(title=self._title, title_justify="left", expand=False, pad_edge=False)
        for name, _ in COLUMNS:
            table.add_column(name, justify="right", no_wrap=True)
        for record in self._records:
            table.add_row(*(_cell(read, record) for _, read in COLUMNS))
        done = self._records[-1]["step"] if self._records else 0
        parts: list[Any] = [table] if self._records else []
        if self._curve:
            parts.append(Text(f"train accuracy  {sparkline(self._curve)}  {self._curve[-1]:.2f}"))
        for name, points in self._validation.items():
            shown = "  ".join(f"{value:.3f} @{step}" for step, value in points[-4:])
            best = max(value for _, value in points)
            parts.append(Text(f"{name}  {shown}  (best {best:.3f})"))
        status = f"{self._phase} {self._detail}".strip()
        parts.append(
            Text(
                f"step {done}/{self._steps}  {status}  {now - self._since:.0f} s"
                f"  elapsed {_clock(now - self._begun)}{self._remaining(done)}",
                style="cyan",
            )
        )
        if self._notice:
            parts.append(Text(self._notice, style="bold"))
        return Group(*parts)

    def _remaining(self, done: int) -> str:
        if not self._records:
            return ""
        recent = [record["timing/step"] for record in self._records]
        return f"  left about {_clock(sum(recent) / len(recent) * (self._steps - done))}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def sparkline(values: list[float], width: int = 40) -> str:
    """`values` in [0, 1] as block characters, the latest `width` bins."""
    if len(values) > width:
        size = len(values) / width
        values = [sum(bin_) / len(bin_) for i in range(width) if (bin_ := values[int(i * size) : int((i + 1) * size)])]
    return "".join(_BAR[min(len(_BAR) - 1, max(0, int(value * len(_BAR))))] for value in values)


def summary_line(record: Record) -> str:
    """One sentence about a run that is finished, or was interrupted and has saved a checkpoint."""
    why = f" ({record['why']})" if "why" in record else ""
    text = f"{record['status']}{why}: {record['steps']} steps in {_clock(record['seconds'])}, {record['run']}"
    for name, (first, last) in record.get("validation", {}).items():
        text += f"\n  {name}: {first:.4f} -> {last:.4f} ({last - first:+.4f})"
    return text


def make_display(*, rank: int, json: bool, quiet: bool, steps: int, title: str) -> Display:
    """The display for this rank and terminal."""
    if rank != 0:
        return Silent()
    if json:
        return JsonLines()
    if quiet:
        return Quiet()
    if sys.stderr.isatty():
        return LiveTable(steps, title)
    return PlainLines(steps)
