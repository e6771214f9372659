"""What a command says. stdout carries data, stderr carries talk; ranks above 0 say nothing.

Modes: `human` (a terminal: colour and live display), `plain` (no terminal: whole lines), `json` (NDJSON events on
stdout) and `quiet` (the result only).
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal

from da3po_cli.errors import ConfigErrors, Da3poError

if TYPE_CHECKING:
    from rich.console import Console

Mode = Literal["human", "plain", "json", "quiet"]

_SECRET_NAME = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_USER_IN_URL = re.compile(r"(?<=://)[^\s/@'\"]+(?=@)")
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}\b")


def redact(text: str, env: Mapping[str, str] = os.environ) -> str:
    """`text` without secrets: values of variables such as HF_TOKEN, users in URLs, tokens of the Hugging Face hub."""
    for name, value in env.items():
        if len(value) >= 8 and _SECRET_NAME.search(name):
            text = text.replace(value, "***")
    return _HUB_TOKEN.sub("***", _USER_IN_URL.sub("***", text))


def finite(value: Any) -> Any:
    """`value` as strict JSON can hold it: NaN and infinity become null, tuples lists."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def wants_colour(stream: IO[str]) -> bool:
    """NO_COLOR and TERM=dumb say no, FORCE_COLOR says yes, else a terminal decides."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def rank() -> int:
    """This process's rank in its job, under torchrun or as a task of srun; 0 outside one."""
    if "RANK" in os.environ:
        return int(os.environ["RANK"])
    several = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1
    return int(os.environ.get("SLURM_PROCID", "0")) if several else 0


@dataclass
class Out:
    """One per command. `Out.choose` picks the mode from the flags and the terminal."""

    mode: Mode
    rank: int = 0

    @classmethod
    def choose(cls, *, json: bool = False, quiet: bool = False) -> Out:
        """json and quiet by flag; human on a terminal that can move its cursor; else plain."""
        if json:
            return cls("json", rank())
        if quiet:
            return cls("quiet", rank())
        lively = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        return cls("human" if lively else "plain", rank())

    def say(self, text: str) -> None:
        """Talk: progress, hints, warnings."""
        if self.rank == 0 and self.mode != "quiet":
            print(text, file=sys.stderr, flush=True)  # noqa: T201

    def warn(self, text: str) -> None:
        """A warning; also shown with --quiet."""
        if self.rank == 0:
            print(f"warning: {text}", file=sys.stderr, flush=True)  # noqa: T201

    def data(self, text: str) -> None:
        """The result of a command as text; with --json use `event`."""
        if self.rank == 0 and self.mode != "json":
            print(text, flush=True)  # noqa: T201

    def event(self, kind: str, **fields: Any) -> None:
        """One line of NDJSON on stdout, with --json only."""
        if self.rank == 0 and self.mode == "json":
            record = finite({"event": kind, **fields})
            print(json.dumps(record, default=str, allow_nan=False), flush=True)  # noqa: T201

    def table(self, rows: Iterable[tuple[str, object]]) -> None:
        """Label and value, aligned; a result."""
        pairs = [(label, str(value)) for label, value in rows]
        width = max((len(label) for label, _ in pairs), default=0)
        self.data("\n".join(f"{label:<{width}}  {value}" for label, value in pairs))

    def console(self) -> Console:
        """A rich console on stderr for live displays; for mode `human` on rank 0."""
        from rich.console import Console

        return Console(stderr=True, no_color=not wants_colour(sys.stderr), highlight=False)


def error_lines(error: Da3poError) -> list[str]:
    """An error as the 2 to 4 lines that a user reads; several problems of a config one after the other."""
    if isinstance(error, ConfigErrors):
        return [line for problem in error.problems for line in error_lines(problem)]
    lines = [f"error: {error.message}"]
    if error.where:
        lines.append(f"  at: {error.where}")
    if error.hint:
        lines.append(f"  fix: {error.hint}")
    return lines


def error_record(error: Da3poError) -> dict[str, Any]:
    """The same for --json."""
    record: dict[str, Any] = {"kind": error.kind, "message": error.message, "hint": error.hint, "where": error.where}
    if isinstance(error, ConfigErrors):
        record["problems"] = [error_record(problem) for problem in error.problems]
    return record


def print_error(error: Da3poError, *, as_json: bool) -> None:
    """The error on stderr, and with --json as an object on rank 0's stdout. Without secrets: it may quote the user."""
    if as_json and rank() == 0:
        print(redact(json.dumps({"error": error_record(error)}, default=str)), flush=True)  # noqa: T201
    prefix = f"rank {rank()}: " if rank() else ""
    lines = [redact(line) for line in error_lines(error)]
    if wants_colour(sys.stderr):
        lines = [line.replace("error:", "\033[1;31merror:\033[0m", 1) for line in lines]
    print("\n".join(prefix + line for line in lines), file=sys.stderr, flush=True)  # noqa: T201
