"""A run as a report reads it: metrics, config, validation results per problem, saved rollouts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from da3po_cli.algos.records import group_from_dict
from da3po_cli.algos.types import Group
from da3po_cli.config.load import load_config
from da3po_cli.config.schema import Config
from da3po_cli.evals.metrics import by_difficulty, difficulty
from da3po_cli.runs.directory import RunDir
from da3po_cli.runs.metrics import read_metrics
from da3po_cli.runs.rollouts import read_rollouts
from da3po_cli.runs.validations import Correct, read_validation

Curve = list[tuple[float, float]]
"""(x, y) in the order of x; x is a step unless it says otherwise."""

_SCORE = re.compile(r"val/(?P<bench>.+)/(?P<metric>avg|pass)@(?P<k>\d+)")
_STEP_FILE = re.compile(r"step_(\d+)\.jsonl?")


@dataclass(frozen=True)
class Bench:
    """A held-out set that a run validates on."""

    name: str
    k: int

    def metric(self, kind: str) -> str:
        """Name of its avg@k or pass@k among the metrics; `kind` is avg or pass."""
        return f"val/{self.name}/{kind}@{self.k}"


@dataclass(frozen=True)
class RunData:
    """One run. Everything is read when it is first asked for."""

    directory: RunDir

    @property
    def name(self) -> str:
        return self.directory.name

    @cached_property
    def record(self) -> dict[str, Any]:
        """run.json."""
        return self.directory.read()

    @property
    def status(self) -> str:
        return self.record.get("status", "unknown")

    @cached_property
    def config(self) -> Config:
        return load_config([str(self.directory.config_file)], env={}).config

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl, by step; none where the run has not begun."""
        file = self.directory.metrics_file
        return sorted(read_metrics(file), key=lambda record: record["step"]) if file.is_file() else []

    @property
    def steps(self) -> int:
        """The last step that is done."""
        return self.metrics[-1]["step"] if self.metrics else 0

    @cached_property
    def benches(self) -> list[Bench]:
        """The benchmarks of its validations, in the order in which the records have them."""
        found: dict[str, Bench] = {}
        for record in self.metrics:
            for key in record:
                match = _SCORE.fullmatch(key)
                if match:
                    found.setdefault(match["bench"], Bench(match["bench"], int(match["k"])))
        return list(found.values())

    def curve(self, metric: str) -> Curve:
        """A metric over the steps, where it has a value."""
        return [(record["step"], record[metric]) for record in self.metrics if record.get(metric) is not None]

    def score_curve(self, kind: str = "avg") -> Curve:
        """The plain mean over the benchmarks of avg@k or pass@k, at every validation that has all of them."""
        names = [bench.metric(kind) for bench in self.benches]
        if not names:
            return []
        return [
            (record["step"], sum(record[name] for name in names) / len(names))
            for record in self.metrics
            if all(record.get(name) is not None for name in names)
        ]

    def final(self, bench: Bench | None = None, kind: str = "avg") -> float | None:
        """The last validation's score on one benchmark, or the mean over all."""
        curve = self.curve(bench.metric(kind)) if bench else self.score_curve(kind)
        return curve[-1][1] if curve else None

    @property
    def validated(self) -> int | None:
        """The step of the last validation, from which `final` is."""
        curve = self.score_curve()
        return int(curve[-1][0]) if curve else None

    def total(self, metric: str) -> float:
        """Sum over all steps."""
        return sum(value for _, value in self.curve(metric))

    def tokens_at(self) -> dict[float, float]:
        """Step -> response tokens generated for training up to and with it."""
        done, found = 0.0, {0.0: 0.0}
        for step, tokens in self.curve("rollout/tokens"):
            done += tokens
            found[step] = done
        return found

    # ------------------------------------------------------------------------------- validation, problem by problem

    @cached_property
    def validations(self) -> dict[int, Correct]:
        """Step -> benchmark -> problem -> number of correct samples, from validation/step_N.json."""
        found: dict[int, Correct] = {}
        for file in (self.directory.path / "validation").glob("step_*.json"):
            match = _STEP_FILE.fullmatch(file.name)
            if match and int(match[1]) <= self.steps:  # later ones are of a future that was given up
                found[int(match[1])] = read_validation(file)
        return dict(sorted(found.items()))

    def problem_scores(self, step: int | None = None) -> dict[str, list[tuple[str, float]]]:
        """Benchmark -> (problem, share of correct samples) at a validation; by default the last one, as in `final`.

        Empty where that validation was not saved problem by problem.
        """
        at = self.validated if step is None else step
        if at is None:
            return {}
        sizes = {bench.name: bench.k for bench in self.benches}
        return {
            bench: [(problem, correct / sizes[bench]) for problem, correct in counts.items()]
            for bench, counts in self.validations.get(at, {}).items()
            if bench in sizes
        }

    def hard_curve(self, *, hard: bool = True) -> Curve:
        """Validation accuracy over the problems that were hard before training (or over the others).

        Empty without a validation at step 0 that was saved problem by problem. The set is fixed, and the same for all
        runs from the same weights, for validation draws the same samples in each.
        """
        start, level = self.shares(0), "hard" if hard else "other"
        levels = ((step, by_difficulty(start, self.shares(step), _hard_or_other)) for step in self.validations)
        return [(step, found[level]) for step, found in levels if level in found]

    def shares(self, step: int | None = None) -> dict[tuple[str, str], float]:
        """`problem_scores` of all benchmarks together, by (benchmark, problem)."""
        return {(bench, problem): share for bench, one in self.problem_scores(step).items() for problem, share in one}

    # ------------------------------------------------------------------------------------------------- rollouts

    @property
    def rollout_files(self) -> list[tuple[int, Path]]:
        """(step, file) of the saved rollouts, by step."""
        found = [
            (match, file) for file in self.directory.rollouts.glob("*") if (match := _STEP_FILE.fullmatch(file.name))
        ]
        return sorted((int(match[1]), file) for match, file in found if int(match[1]) <= self.steps)

    def groups(self, budget: int | None = None) -> Iterator[tuple[int, Group]]:
        """(step, group) of the saved rollouts, in order.

        Args:
            budget: bytes to read at most. Where there is more, steps spread evenly are taken; where a single step is
                larger, its first groups.
        """
        left = math.inf if budget is None else budget
        files = self.rollout_files if budget is None else _within(self.rollout_files, budget)
        for step, file in files:
            for size, record in read_rollouts(file):
                left -= size
                if left < 0:
                    return
                yield step, group_from_dict(record)


def _within(files: Sequence[tuple[int, Path]], budget: int) -> list[tuple[int, Path]]:
    total = sum(file.stat().st_size for _, file in files)
    if total <= budget:
        return list(files)
    count = max(1, len(files) * budget // total)
    return [files[round(n * (len(files) - 1) / max(1, count - 1))] for n in range(count)]


def _hard_or_other(base: float) -> str:
    return "hard" if difficulty(base) == "hard" else "other"
