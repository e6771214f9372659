"""Where the numbers of a run go: metrics.jsonl always, TensorBoard and Weights & Biases when asked for."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from da3po_cli.errors import EnvironmentProblem, UsageError
from da3po_cli.runs.files import cannot_write, write_lines, writing


def to_json(record: dict[str, Any]) -> str:
    """One line of strict JSON; a number that is not finite becomes null, since NaN is not JSON."""
    clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return json.dumps(clean, ensure_ascii=False, allow_nan=False)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All records of a metrics.jsonl. A last line without an end is one that a crash cut short, and is left out.

    Raises:
        UsageError: a line is no record of a step; names the line.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[list[dict[str, Any]], str]:
    """The records, and what there is of a last one that is not whole."""
    records: list[dict[str, Any]] = []
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                if not line.endswith("\n"):
                    return records, line
                record = None
            if not (isinstance(record, dict) and isinstance(record.get("step"), int)):
                raise UsageError(
                    f"not a record of a step: {line[:60].strip()!r}",
                    where=f"{path}:{number}",
                    hint="remove that line; the checkpoints do not depend on this file",
                )
            records.append(record)
    return records, ""


class MetricsWriter:
    """Appends one record per step.

    Args:
        directory: the run directory.
        resume_step: records past this step (of an attempt that went further than its last checkpoint) are dropped.
        resume_record: that of the step itself as the checkpoint has it, for a job that ended between the two.

    Attributes:
        cut: what a crash left of a last line, which a resume cuts off; else empty.
    """

    def __init__(
        self,
        directory: Path,
        *,
        resume_step: int | None = None,
        resume_record: dict[str, Any] | None = None,
        tensorboard: bool = False,
        wandb_project: str | None,
    ) -> None:
        path = directory / "metrics.jsonl"
        self.cut = ""
        if resume_step is not None and path.exists():
            records, self.cut = _read(path)
            records = [record for record in records if record["step"] <= resume_step]
            saved = [resume_record] if resume_record and resume_record.get("step") == resume_step else []
            if all(record["step"] != resume_step for record in records):
                records += saved
            write_lines(path, map(to_json, records))
        self._path = path
        self._file = self._open()
        self._tensorboard = None
        self._wandb = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            purge = None if resume_step is None else resume_step + 1
            self._tensorboard = SummaryWriter(str(directory / "tensorboard"), purge_step=purge)
        if wandb_project:
            try:
                import wandb  # pyright: ignore[reportMissingImports]
            except ImportError as error:
                raise EnvironmentProblem(
                    "run.wandb_project is set and the package wandb is not installed",
                    where="run.wandb_project",
                    hint="pip install 'da3po[wandb]', or run.wandb_project=null",
                ) from error
            self._wandb = wandb.init(project=wandb_project, name=directory.name, dir=str(directory), resume="allow")

    def write(self, record: dict[str, Any]) -> None:
        """Append `record` (with its "step") everywhere, unbuffered so that a crash loses nothing.

        Raises:
            EnvironmentProblem: the disk is full; the file then ends with the record before.
        """
        line, before = (to_json(record) + "\n").encode(), os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, before)
            raise cannot_write(self._path, error) from error
        self._publish(record)

    def _open(self) -> int:
        with writing(self._path):
            return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def amend(self, step: int, found: dict[str, Any]) -> None:
        """Add `found` to the record of `step`."""
        records = [r | found if r["step"] == step else r for r in read_metrics(self._path)]
        write_lines(self._path, map(to_json, records))
        os.close(self._file)
        self._file = self._open()
        self._publish({"step": step, **found})

    def _publish(self, record: dict[str, Any]) -> None:
        """Tell TensorBoard and Weights & Biases."""
        numbers = {k: v for k, v in record.items() if k != "step" and isinstance(v, int | float)}
        if self._tensorboard is not None:
            with writing(self._path.with_name("tensorboard")):
                for name, value in numbers.items():
                    self._tensorboard.add_scalar(name, value, record["step"])
        if self._wandb is not None:
            self._wandb.log(numbers, step=record["step"])

    def close(self) -> None:
        os.close(self._file)
        if self._tensorboard is not None:
            with suppress(OSError):  # on a full disk; its numbers are in metrics.jsonl as well
                self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()
