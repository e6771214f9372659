"""Arms compared: means over seeds, differences paired by seed and by problem, and what it took to get there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from da3po_cli.ablations.directory import Ablation, AblationDir, RunState
from da3po_cli.algos.stats import Interval, mean_interval, mean_of_means, sign_flip_p_value, t_within
from da3po_cli.reports.data import Bench, Curve, RunData


@dataclass(frozen=True)
class ArmData:
    """An arm and its runs. Only finished runs count for results; the others are listed."""

    label: str
    overrides: tuple[str, ...]
    runs: Mapping[int, RunData]
    """Seed -> run, of the finished ones."""
    states: Sequence[RunState] = ()
    """Of all its runs."""

    def over_seeds(self, value: Callable[[RunData], float | None]) -> dict[int, float]:
        """Seed -> value, of the runs that have one."""
        found = {seed: value(run) for seed, run in sorted(self.runs.items())}
        return {seed: one for seed, one in found.items() if one is not None}


@dataclass(frozen=True)
class AblationData:
    """An ablation as a report reads it."""

    name: str
    arms: Sequence[ArmData]
    reference: str
    ablation: Ablation
    benches: Sequence[Bench] = field(default_factory=list)

    def arm(self, label: str) -> ArmData:
        return next(arm for arm in self.arms if arm.label == label)

    @property
    def runs(self) -> list[RunData]:
        return [run for arm in self.arms for run in arm.runs.values()]


def read_ablation(directory: AblationDir) -> AblationData:
    """From ablation.json and the finished runs beside it."""
    ablation = directory.read()
    arms: list[ArmData] = []
    for arm in ablation.arms:
        states = [run for run in ablation.runs if run.arm == arm.label]
        finished = {run.seed: RunData(directory.run(run.name)) for run in states if run.status == "finished"}
        runs = {seed: run for seed, run in finished.items() if run.metrics}  # a directory may have been deleted
        arms.append(ArmData(arm.label, arm.overrides, runs, states))
    benches: dict[str, Bench] = {}
    for arm in arms:
        for run in arm.runs.values():
            for bench in run.benches:
                benches.setdefault(bench.name, bench)
    return AblationData(directory.path.name, arms, ablation.reference, ablation, list(benches.values()))


# --------------------------------------------------------------------------------------------------- means, differences


def over_seeds(values: Sequence[float]) -> Interval | None:
    """Mean over runs with Student's t interval, the run as the unit; infinite with one run, None without any."""
    return mean_interval([[value] for value in values]) if values else None


def paired_p_value(differences: Sequence[float]) -> float:
    """Two-sided p-value of Student's paired t test: below 0.05 exactly where the 95 % interval excludes 0.

    Flipping signs, as for problems, cannot give less than 2^(1-n) for n seeds: 0.25 for three. nan for one seed.
    """
    if len(differences) < 2:
        return math.nan
    interval = mean_interval([[value] for value in differences])
    if interval.stderr == 0:
        return 1.0 if interval.mean == 0 else 0.0
    return 1 - t_within(abs(interval.mean) / interval.stderr, len(differences) - 1)


@dataclass(frozen=True)
class Paired:
    """An arm minus the reference arm."""

    count: int
    """Pairs: seeds or problems."""
    difference: Interval
    p_value: float


def by_seed(arm: ArmData, reference: ArmData, value: Callable[[RunData], float | None]) -> Paired | None:
    """Differences of runs with the same seed. Their population: seeds of training, on these held-out problems."""
    ours, theirs = arm.over_seeds(value), reference.over_seeds(value)
    differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not differences:
        return None
    return Paired(len(differences), mean_interval([[one] for one in differences]), paired_p_value(differences))


def by_problem(arm: ArmData, reference: ArmData) -> Paired | None:
    """Differences on each held-out problem, each the mean over the seeds that both have; None without such results.

    Their population: problems like these, for these trained models. Benchmarks count equally.
    """
    seeds = [seed for seed in arm.runs if seed in reference.runs]
    ours = [arm.runs[seed].shares() for seed in seeds]
    theirs = [reference.runs[seed].shares() for seed in seeds]
    if not seeds or not all([*ours, *theirs]):
        return None
    problems = [key for key in ours[0] if all(key in one for one in [*ours, *theirs])]
    groups: dict[str, list[float]] = {}
    for bench, problem in problems:
        pairs = [mine[bench, problem] - other[bench, problem] for mine, other in zip(ours, theirs, strict=True)]
        groups.setdefault(bench, []).append(sum(pairs) / len(pairs))
    if not groups:
        return None
    intervals = [mean_interval([[one] for one in values]) for values in groups.values()]
    return Paired(len(problems), mean_of_means(intervals), sign_flip_p_value(list(groups.values())))


def mean_scores(data: AblationData) -> dict[str, float]:
    """Arm -> mean final score over seeds, of the arms that have one; what a gate compares."""
    found: dict[str, float] = {}
    for arm in data.arms:
        values = list(arm.over_seeds(lambda run: run.final()).values())
        if values:
            found[arm.label] = sum(values) / len(values)
    return found


# ----------------------------------------------------------------------------------------------------------- efficiency


def default_target(data: AblationData) -> float | None:
    """What the reference arm ends with, in the mean over its seeds."""
    return mean_scores(data).get(data.reference)


def first_reach(curve: Curve, target: float) -> float | None:
    """Where the curve first reaches `target`, between its points on straight lines; None where it does not."""
    for number, (x, y) in enumerate(curve):
        if y >= target:
            if number == 0:
                return x
            x0, y0 = curve[number - 1]
            return x0 + (target - y0) / (y - y0) * (x - x0)
    return None


def reach_step(run: RunData, target: float) -> float | None:
    """Steps until the validation score is `target`."""
    return first_reach(run.score_curve(), target)


def reach_tokens(run: RunData, target: float) -> float | None:
    """Response tokens generated for training until then."""
    return first_reach(by_tokens(run), target)


def by_tokens(run: RunData) -> Curve:
    """The validation score over the response tokens generated so far, kept or dropped."""
    tokens = run.tokens_at()
    return [(tokens[step], score) for step, score in run.score_curve() if step in tokens]


def kept_share(run: RunData) -> float | None:
    """Groups trained on per group generated, over the whole run."""
    generated = run.total("sample/generated")
    return run.total("sample/kept") / generated if generated else None


def wall_time(run: RunData) -> float | None:
    """Seconds in the training loop, validations and checkpoints included, start-up not."""
    return run.total("timing/step") or None


def band(curves: Sequence[Curve]) -> tuple[list[float], list[float], list[float], list[float]]:
    """x, mean, lowest and highest over curves, at the x that all of them have."""
    tables = [dict(curve) for curve in curves if curve]
    if not tables:
        return [], [], [], []
    xs = [x for x in tables[0] if all(x in table for table in tables)]
    columns = [[table[x] for table in tables] for x in xs]
    return xs, [sum(one) / len(one) for one in columns], [min(one) for one in columns], [max(one) for one in columns]


def mean_at(curves: Sequence[Curve], points: int = 60) -> tuple[list[float], list[float], list[float], list[float]]:
    """As `band`, for curves whose x differ: on a grid over the range that all have, by linear interpolation."""
    import numpy as np

    curves = [curve for curve in curves if len(curve) > 1]
    if not curves:
        return [], [], [], []
    low, high = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    grid = np.linspace(low, high, points)
    lines = [np.interp(grid, [x for x, _ in curve], [y for _, y in curve]) for curve in curves]
    table = np.array(lines)
    return grid.tolist(), table.mean(0).tolist(), table.min(0).tolist(), table.max(0).tolist()


def same_start(data: AblationData) -> bool | None:
    """Whether all runs scored the same before training, as the same weights on the same draws do; None: not known."""
    starts = {run.score_curve()[0] for run in data.runs if run.score_curve()}
    return None if not starts or any(step != 0 for step, _ in starts) else len(starts) == 1
