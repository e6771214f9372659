"""The observer of a run: one place that tells the display, the metric files and rollouts/step_N.jsonl."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from da3po_cli.algos.sampling import Batch, group_to_dict
from da3po_cli.runs.display import Display, validations
from da3po_cli.runs.metrics import MetricsWriter


class RunLog:
    """Rank 0's log; the other ranks have one without a writer, which keeps quiet."""

    def __init__(self, directory: Path, display: Display, writer: MetricsWriter | None, *, save_rollouts: bool) -> None:
        self._directory, self._display, self._writer = directory, display, writer
        self._save_rollouts = save_rollouts and writer is not None
        self._begun = time.monotonic()
        self._validation: dict[str, tuple[float, float]] = {}

    def phase(self, name: str, detail: str = "") -> None:
        self._display.phase(name, detail)

    def rollouts(self, step: int, batch: Batch) -> None:
        """Write every response of the step, dropped ones with the reason."""
        if not self._save_rollouts:
            return
        folder = self._directory / "rollouts"
        folder.mkdir(exist_ok=True)
        with (folder / f"step_{step}.jsonl").open("w", encoding="utf-8") as file:
            for group in batch.kept + batch.dropped:
                file.write(json.dumps(group_to_dict(group), ensure_ascii=False) + "\n")

    def record(self, record: dict[str, Any]) -> None:
        """One step's metrics."""
        for name, value in validations(record).items():
            first, _ = self._validation.get(name, (value, value))
            self._validation[name] = (first, value)
        if self._writer:
            self._writer.write(record)
        self._display.step(record)

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
