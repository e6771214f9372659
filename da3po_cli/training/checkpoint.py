"""Saves and loads all that the next step depends on: the policy's state, the position in the data, the score.

Of the policy: weights, optimizer, schedule, random state. Of the source: the data cursor, the surplus of dynamic
sampling and its estimate of the keep rate. `da3po_cli.runs.checkpoints` says how the files come to be whole.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3po_cli.config.schema import CheckpointConfig
from da3po_cli.errors import EnvironmentProblem, UsageError
from da3po_cli.protocols import Comm, PendingSave, Policy
from da3po_cli.runs.checkpoints import (
    STATE_FILE,
    amend_state,
    checkpoint_path,
    discard,
    find_state,
    publish,
    read_state,
    recover,
    saved_steps,
    write_state,
)
from da3po_cli.runs.files import writing
from da3po_cli.training.collect import RolloutSource

__all__ = ["STATE_FILE", "CheckpointStore", "checkpoint_path", "saved_steps"]


@dataclass(frozen=True)
class _Pending:
    """A checkpoint that has no name yet."""

    step: int
    state: dict[str, Any]
    policy: PendingSave | None  # None: written
    copied: float  # seconds until training could go on


class CheckpointStore:
    """The checkpoints of one run: the newest `keep`, and the best. All methods are collective.

    Best is the largest score; of equal ones the newest. The score of a checkpoint is `best_metric` of the validation
    at its step, by default the first avg@k in the record; until there is a validation of that step it has none.

    Attributes:
        seconds: that the last save took, from its beginning until it was whole.
        record: the metrics of the step that was loaded; empty where none was, or an older da3po saved it.
    """

    def __init__(
        self, directory: Path, config: CheckpointConfig, policy: Policy, source: RolloutSource, comm: Comm
    ) -> None:
        self._directory, self._config, self._policy, self._source, self._comm = directory, config, policy, source, comm
        self._pending: _Pending | None = None
        self._metric = config.best_metric
        self._scores: dict[int, float] = {}  # of the whole checkpoints that have one
        self.seconds = 0.0
        self.record: dict[str, Any] = {}

    def open(self) -> None:
        """Mend what a crash of an earlier attempt left behind. Call it before anything else."""
        if self._comm.rank == 0:
            recover(self._directory)
        self._comm.barrier()

    def score(self, record: dict[str, Any]) -> bool:
        """Whether this validation is better than that of every checkpoint.

        Raises:
            UsageError: the record of a validation lacks `checkpoint.best_metric`.
        """
        value = self._value(record)
        return value is not None and all(value > other for other in self._scores.values())

    def _value(self, record: dict[str, Any]) -> float | None:
        names = [name for name in record if name.startswith("val/") and "/avg@" in name]
        chosen = self._config.best_metric
        if chosen is None and names and self._metric not in names:  # the first validation, or another benchmark
            self._metric, self._scores = names[0], {}
        if chosen is not None and names and chosen.startswith("val/") and chosen not in record:
            raise UsageError(
                f"checkpoint.best_metric={chosen} is not among the metrics of a validation",
                where="checkpoint.best_metric",
                hint=f"one of {', '.join(name for name in record if name.startswith('val/'))}; null is {names[0]}",
            )
        value = record.get(self._metric or "")
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    def save(self, step: int, record: dict[str, Any]) -> None:
        """Write the checkpoint of `step`, whose metrics are in `record`.

        With `async_save` this takes as long as the copy; `poll` or `wait` make the checkpoint whole. An interrupted
        save leaves only a directory whose name says so.

        Raises:
            EnvironmentProblem: it cannot be written, or the one before could not.
        """
        self.wait()
        begun = time.monotonic()
        policy = self._directory / f"partial_{step}" / "policy"
        if self._comm.rank == 0:
            with self._writing(step):
                discard(policy.parent)
                policy.mkdir(parents=True)
        self._comm.barrier()
        score = self._value(record)
        state = {
            "step": step,
            "best_metric": self._metric,
            "score": self._scores.get(step) if score is None else score,  # it may have been saved before
            "source": self._source.state(),
            "record": record,  # for metrics.jsonl, where the job ends before it is there
        }
        pending = None
        with self._writing(step):
            if self._config.async_save:
                pending = self._policy.begin_save(policy)
            else:
                self._policy.save(policy)
        self._pending = _Pending(step, state, pending, time.monotonic() - begun)
        if pending is None:
            self.wait()

    def amend(self, step: int, found: dict[str, Any]) -> None:
        """Add a validation to the checkpoint of `step`, the one that was loaded: it was saved before that was made.

        Raises:
            EnvironmentProblem: it cannot be written.
        """
        self.record = self.record | found
        score = self._value(self.record)
        if score is not None:
            self._scores[step] = score
        self._amend(step, record=self.record, best_metric=self._metric, score=score)

    def save_in_step(self, step: int, record: dict[str, Any]) -> None:
        """Save a job that ends in the middle of the step after `step`, whose metrics are in `record`.

        The weights are still those of `step`: where it has a checkpoint, only the state of the source is new.

        Raises:
            EnvironmentProblem: it cannot be written.
        """
        self.wait()
        if step in self._comm.broadcast(saved_steps(self._directory)):
            self._amend(step, source=self._source.state())
        else:
            self.save(step, record)
            self.wait()

    def _amend(self, step: int, **changes: Any) -> None:
        path = self._directory / f"step_{step}"
        if self._comm.rank == 0:
            with writing(path / STATE_FILE):
                amend_state(path, **changes)
        self._comm.barrier()

    def poll(self) -> None:
        """Make a checkpoint whole that every rank has written by now; a safe point between two steps."""
        if self._pending is not None and self._pending.policy is not None and self._pending.policy.done():
            self.wait()

    def wait(self) -> None:
        """Make the checkpoint whole that is being written, if there is one."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        begun = time.monotonic()
        if pending.policy is not None:
            with self._writing(pending.step):
                pending.policy.finish()
        self._comm.barrier()
        if pending.state["score"] is not None:
            self._scores[pending.step] = pending.state["score"]
        if self._comm.rank == 0:
            with self._writing(pending.step):
                write_state(self._directory / f"partial_{pending.step}", pending.state)
                publish(self._directory, pending.step)
        self._prune()
        self._comm.barrier()
        written = pending.policy.seconds if pending.policy is not None else 0.0
        self.seconds = pending.copied + written + time.monotonic() - begun

    @contextmanager
    def _writing(self, step: int) -> Iterator[None]:
        """What cannot be written leaves nothing behind: a disk that it filled has room for the run's other files."""
        partial = self._directory / f"partial_{step}"
        try:
            with writing(partial):
                yield
        except EnvironmentProblem:
            if self._comm.rank == 0:
                discard(partial)
            raise

    def _prune(self) -> None:
        """Rank 0 deletes all but the newest and the best; every rank forgets the scores of the deleted."""
        steps = self._comm.broadcast(saved_steps(self._directory))
        kept = set(steps[-self._config.keep :])
        scored = [step for step in self._scores if step in steps]
        if self._config.keep_best and scored:
            kept.add(max(scored, key=lambda step: (self._scores[step], step)))
        self._scores = {step: self._scores[step] for step in scored if step in kept}
        if self._comm.rank == 0:
            for step in steps:
                if step not in kept:
                    discard(self._directory / f"step_{step}")

    def load(self, step: int | None) -> int:
        """Restore checkpoint `step` (None: the latest) on any layout; later ones are deleted. Returns its step.

        Raises:
            UsageError: there is no such checkpoint, it is damaged, or it belongs to other data.
        """
        step, path, state = find_state(self._directory, step)
        lacking = set(self._source.state()) - set(state["source"])
        if lacking:
            what = ", ".join(sorted(lacking))
            raise UsageError(
                f"the checkpoint of step {step} was trained on replayed rollouts, so it has no {what}",
                where=str(path / STATE_FILE),
                hint="go on with --replay-rollouts, or start a new run",
            )
        self.record = state.get("record") or {}
        self._source.load_state(state["source"])
        self._policy.load(path / "policy")
        self._comm.barrier()
        self._load_scores(step, state.get("best_metric"))
        return step

    def _load_scores(self, step: int, metric: str | None) -> None:
        """Scores of `step` and the checkpoints before it; those after it are of a future that will not be."""
        self._metric = self._config.best_metric or metric
        if self._comm.rank == 0:
            for later in [other for other in saved_steps(self._directory) if other > step]:
                discard(self._directory / f"step_{later}")
            for other in saved_steps(self._directory):
                score = _score_of(self._directory / f"step_{other}", self._metric)
                if score is not None:
                    self._scores[other] = score
        self._scores = self._comm.broadcast(self._scores)


def _score_of(path: Path, metric: str | None) -> float | None:
    """The score of a checkpoint by `metric`; None where it has none or is damaged."""
    try:
        state = read_state(path)
    except UsageError:
        return None
    return state.get("score") if state.get("best_metric") == metric else None
