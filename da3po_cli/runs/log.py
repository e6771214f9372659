"""The observer of a run: one place that tells the display, the metric files and rollouts/step_N.jsonl."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from da3po_cli.algos.sampling import Batch
from da3po_cli.runs.display import Display, validations
from da3po_cli.runs.files import write_lines, writing
from da3po_cli.runs.metrics import MetricsWriter
from da3po_cli.runs.rollouts import write_rollouts
from da3po_cli.runs.validations import write_validation
from da3po_cli.protocols import Validation
from da3po_cli.runs.heartbeat import beat


class RunLog:
    """Rank 0's log; the other ranks have one without a writer, which keeps quiet.

    A file that cannot be written ends the run with an EnvironmentProblem: what is not on the disk is lost to whoever
    reads the run, and the last checkpoint, from which it goes on, is whole.
    """

    def __init__(self, directory: Path, display: Display, writer: MetricsWriter | None, *, save_rollouts: bool) -> None:
        self._directory, self._display, self._writer = directory, display, writer
        self._save_rollouts = save_rollouts and writer is not None
        self._begun = time.monotonic()
        self._validation: dict[str, tuple[float, float]] = {}

    def begin(self, step: int) -> None:
        """A step begins."""
        beat("step", step=step)

    def phase(self, name: str, detail: str = "") -> None:
        beat(name, detail)
        self._display.phase(name, detail)

    def warn(self, text: str) -> None:
        """A line about the run's health."""
        self._display.warn(text)

    def skipped(self, step: int, update: int, why: str, batch: Sequence[dict[str, Any]]) -> None:
        """An update that was left out, and its batch, if it is kept: health/step_S_update_U.jsonl."""
        file = self._directory / "health" / f"step_{step}_update_{update}.jsonl"
        if self._writer and batch:
            write_lines(file, (json.dumps(row, ensure_ascii=False) for row in batch))
        kept = f"; its batch is in {file}" if batch else ""
        self.warn(f"step {step}, update {update}: skipped on all ranks, because not finite: {why}{kept}")

    def rollouts(self, step: int, batch: Batch) -> None:
        """Write every response of the step, dropped ones with the reason."""
        if self._save_rollouts:
            write_rollouts(self._directory / "rollouts", step, batch.kept + batch.dropped)

    def validated(self, step: int, found: Validation) -> None:
        """Write validation/step_N.json."""
        if self._writer:
            with writing(self._directory / "validation"):
                write_validation(self._directory, step, found.correct)

    def record(self, record: dict[str, Any]) -> None:
        """One step's metrics."""
        for name, value in validations(record).items():
            first, _ = self._validation.get(name, (value, value))
            self._validation[name] = (first, value)
        if self._writer:
            self._writer.write(record)
        self._display.step(record)

    def amend(self, step: int, found: dict[str, float]) -> None:
        """Add a validation's metrics to the record of a step that is done."""
        if self._writer:
            self._writer.amend(step, found)

    def finish(self, steps: int) -> None:
        """The summary and what to do next."""
        self._display.done(self._summary("done", steps), next_commands(self._directory))

    def interrupted(self, step: int, why: str) -> None:
        """The same for a run that stopped after `step`, with a checkpoint of it."""
        record = {**self._summary("interrupted", step), "why": why}
        self._display.done(record, [resume_command(self._directory)])

    def _summary(self, status: str, steps: int) -> dict[str, Any]:
        return {
            "status": status,
            "run": str(self._directory),
            "steps": steps,
            "seconds": round(time.monotonic() - self._begun, 1),
            "validation": self._validation,
        }

    def close(self) -> None:
        self._display.close()
        if self._writer:
            self._writer.close()


def resume_command(directory: Path) -> str:
    """How an interrupted run goes on."""
    return f"da3po train --resume --name {directory.name}"


def next_commands(directory: Path) -> list[str]:
    """What a user does after training, filled in."""
    return [
        f"da3po eval --bench arith --model {directory}",
        f"da3po export {directory} {directory.name}-hf",
        f"tensorboard --logdir {directory / 'tensorboard'}",
    ]
