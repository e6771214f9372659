"""Where the numbers of a run go: metrics.jsonl always, TensorBoard and Weights & Biases when asked for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from da3po_cli.errors import EnvironmentProblem, UsageError


def to_json(record: dict[str, Any]) -> str:
    """One line of strict JSON; a number that is not finite becomes null, since NaN is not JSON."""
    clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return json.dumps(clean, ensure_ascii=False, allow_nan=False)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All records of a metrics.jsonl. A last line without an end is one that a crash cut short, and is left out.

    Raises:
        UsageError: a line is not JSON; names the line.
    """
    records: list[dict[str, Any]] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError as error:
                if not line.endswith("\n"):
                    break
                raise UsageError(
                    f"not a JSON record: {line[:60].strip()!r}", where=f"{path}:{number}", hint="remove that line"
                ) from error
    return records


class MetricsWriter:
    """Appends one record per step.

    Args:
        directory: the run directory.
        resume_step: records past this step (of an attempt that went further than its last checkpoint) are dropped.
    """

    def __init__(
        self, directory: Path, *, resume_step: int | None = None, tensorboard: bool = False, wandb_project: str | None
    ) -> None:
        path = directory / "metrics.jsonl"
        if resume_step is not None and path.exists():
            kept = [record for record in read_metrics(path) if record["step"] <= resume_step]
            fresh = path.with_suffix(".jsonl.tmp")
            fresh.write_text("".join(to_json(record) + "\n" for record in kept), encoding="utf-8")
            fresh.replace(path)
        self._file = path.open("a", encoding="utf-8")
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
        """Append `record` (with its "step") everywhere, flushed so that a crash loses nothing."""
        self._file.write(to_json(record) + "\n")
        self._file.flush()
        numbers = {k: v for k, v in record.items() if k != "step" and isinstance(v, int | float)}
        if self._tensorboard is not None:
            for name, value in numbers.items():
                self._tensorboard.add_scalar(name, value, record["step"])
        if self._wandb is not None:
            self._wandb.log(numbers, step=record["step"])

    def close(self) -> None:
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()
