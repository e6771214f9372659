"""The tables of an ablation: scores and differences with intervals, cost, behaviour, and what the arms are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from da3po_cli.algos.stats import Interval
from da3po_cli.config.load import flatten
from da3po_cli.evals.metrics import HARD
from da3po_cli.evals.tables import interval_text, percent
from da3po_cli.reports import arms as stats
from da3po_cli.reports.arms import AblationData, ArmData, Paired
from da3po_cli.reports.data import Bench, RunData
from da3po_cli.reports.document import Table

Value = Callable[[RunData], float | None]


def columns(data: AblationData, kind: str) -> list[tuple[str, Value]]:
    """(heading, value of a run) for each benchmark, and AVG where there are several."""

    def of(bench: Bench) -> Value:
        return lambda run: run.final(bench, kind)

    found: list[tuple[str, Value]] = [(f"{bench.name} {kind}@{bench.k}", of(bench)) for bench in data.benches]
    if len(found) > 1:
        found.append(("AVG", lambda run: run.final(None, kind)))
    return found


def result_tables(data: AblationData) -> list[Table]:
    """Final validation: means with intervals, then differences to the reference arm."""
    tables = [_means(data, kind) for kind in ("avg", "pass")]
    return [*tables, *_difference_tables(data)]


def _means(data: AblationData, kind: str) -> Table:
    shown = columns(data, kind)
    rows: list[tuple[str, ...]] = []
    means: list[list[float]] = []
    for arm in data.arms:
        intervals = [stats.over_seeds(list(arm.over_seeds(value).values())) for _, value in shown]
        means.append([one.mean if one else -math.inf for one in intervals])
        cells = [cell for one in intervals for cell in (_mean(one), _range(one))]
        rows.append((arm.label, f"{len(arm.runs)}/{len(arm.states)}", *cells))
    heading = ("arm", "n seeds", *(cell for name, _ in shown for cell in (name, "95 %")))
    best = _best(means, [2 + 2 * n for n in range(len(shown))])
    note = "Mean over finished seeds with Student's t interval over seeds; the best mean is marked."
    return Table(f"Final validation, {kind}@k, %", heading, rows, best, note)


def _best(values: Sequence[Sequence[float]], places: Sequence[int]) -> frozenset[tuple[int, int]]:
    """Cells of the largest value of each column; `places` are the columns in the table."""
    found: set[tuple[int, int]] = set()
    for number, place in enumerate(places):
        column = [row[number] for row in values]
        top = max(column, default=-math.inf)
        found |= {(row, place) for row, value in enumerate(column) if value == top and math.isfinite(top)}
    return frozenset(found)


def _mean(interval: Interval | None) -> str:
    return percent(interval.mean) if interval else "-"


def _range(interval: Interval | None) -> str:
    return interval_text(interval) if interval and math.isfinite(interval.low) else "-"


def _difference_tables(data: AblationData) -> list[Table]:
    reference = data.arm(data.reference)
    others = [arm for arm in data.arms if arm is not reference]
    rows: list[tuple[str, ...]] = []
    for kind in ("avg", "pass"):
        for name, value in columns(data, kind):
            rows += [(arm.label, name, *_paired(stats.by_seed(arm, reference, value))) for arm in others]
    heading = ("arm", "score", "pairs", "difference", "95 %", "p")
    tables = [
        Table(
            f"Difference to {data.reference}, paired by seed, in percent points",
            heading,
            rows,
            note="Paired t test over seeds: would other seeds say the same? p-values are not corrected for the number "
            "of comparisons.",
        )
    ]
    by_problem = [(arm, stats.by_problem(arm, reference)) for arm in others]
    if any(paired for _, paired in by_problem):
        rows = [(arm.label, "avg@k", *_paired(paired)) for arm, paired in by_problem]
        note = "Each problem's mean over seeds; p by flipping signs. Would other problems say the same of these models?"
        tables.append(
            Table(f"Difference to {data.reference}, paired by problem, in percent points", heading, rows, note=note)
        )
    return tables if others else []


def _paired(paired: Paired | None) -> tuple[str, str, str, str]:
    if paired is None:
        return "0", "-", "-", "-"
    p = paired.p_value
    text = "-" if math.isnan(p) else f"{p:.4f}" if p >= 1e-4 else "<0.0001"
    return str(paired.count), f"{100 * paired.difference.mean:+.2f}", _range(paired.difference), text


def cost_table(data: AblationData, target: float | None) -> Table:
    """Steps and tokens to the target, and what the whole run took; means over seeds."""
    rows: list[tuple[str, ...]] = []
    for arm in data.arms:
        steps = list(arm.over_seeds(_reach(stats.reach_step, target)).values())
        tokens = list(arm.over_seeds(_reach(stats.reach_tokens, target)).values())
        rows.append(
            (
                arm.label,
                f"{len(steps)}/{len(arm.runs)}",
                _number(steps, "{:.1f}"),
                _number(tokens, "{:,.0f}"),
                _number(_over(arm, lambda run: run.total("rollout/tokens")), "{:,.0f}"),
                _number(_over(arm, stats.kept_share), "{:.3f}"),
                _number(_over(arm, stats.wall_time), "{:,.0f}"),
            )
        )
    where = f"{100 * target:.2f} %" if target is not None else "the target"
    heading = (
        "arm",
        f"reached {where}",
        "steps to it",
        "tokens to it",
        "tokens in all",
        "kept/generated",
        "wall time, s",
    )
    note = (
        "Means over seeds. Steps and tokens to it: over those that reached it, by linear interpolation between "
        "validations. Tokens: of responses generated for training, kept or dropped. Wall time: the training loop, with "
        "validation and checkpoints."
    )
    return Table("Steps, tokens and time", heading, rows, note=note)


def _reach(how: Callable[[RunData, float], float | None], target: float | None) -> Value:
    return lambda run: None if target is None else how(run, target)


def _over(arm: ArmData, value: Value) -> list[float]:
    return list(arm.over_seeds(value).values())


def _number(values: Sequence[float], form: str) -> str:
    return form.format(sum(values) / len(values)) if values else "-"


def behaviour_table(data: AblationData) -> Table:
    """What the arms differ in beside the score; means over seeds."""

    def last(metric: str) -> Value:
        return lambda run: curve[-1][1] if (curve := run.curve(metric)) else None

    def hard(run: RunData) -> float | None:
        return dict(run.hard_curve()).get(run.validated or 0)

    def share(numerator: str) -> Value:
        return lambda run: sum(v for _, v in curve) / len(curve) if (curve := run.curve(numerator)) else None

    first = [(arm, _over(arm, lambda run: c[0][1] if (c := run.curve("train/entropy")) else None)) for arm in data.arms]
    rows = [
        (
            arm.label,
            _number([100 * v for v in _over(arm, hard)], "{:.2f}"),
            _number(entropy, "{:.4f}"),
            _number(_over(arm, last("train/entropy")), "{:.4f}"),
            _number([100 * v for v in _over(arm, share("sample/hard_share"))], "{:.1f}"),
            _number([100 * v for v in _over(arm, share("daa/amplified"))], "{:.1f}"),
            _number(_over(arm, last("adv/mass_correct")), "{:.3f}"),
            _number(_over(arm, last("adv/mass_wrong")), "{:.3f}"),
            _number(_over(arm, last("rollout/length")), "{:.1f}"),
        )
        for arm, entropy in first
    ]
    heading = (
        "arm",
        "hard problems, %",
        "entropy, first",
        "entropy, last",
        "hard groups, %",
        "amplified, %",
        "|A| correct",
        "|A| wrong",
        "length",
    )
    note = (
        f"Hard problems: final accuracy on held-out problems with a base rate below {HARD:g}. Entropy in nats per "
        "token, |A| per kept response and length in tokens at the last step; hard groups and amplified responses as "
        "shares of what was kept, over the whole run."
    )
    return Table("Hard prompts, entropy and advantages", heading, rows, note=note)


def diff_table(data: AblationData) -> Table:
    """Config keys in which the arms differ, an arm per column; of arms with a finished run."""
    configs = {arm.label: flatten(run.config) for arm in data.arms if (run := next(iter(arm.runs.values()), None))}
    keys = [
        key
        for key in next(iter(configs.values()), {})
        if key not in ("run.name", "run.seed") and len({repr(config[key]) for config in configs.values()}) > 1
    ]
    rows = [(key, *(_shown(configs[label][key]) for label in configs)) for key in keys]
    return Table("Config keys in which the arms differ", ("key", *configs), rows)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def runs_table(data: AblationData) -> Table:
    """Every run, with its end."""
    rows = [
        (state.name, state.arm, str(state.seed), state.status, f"{state.seconds:,.0f}", state.error or "")
        for state in data.ablation.runs
    ]
    return Table("Runs", ("run", "arm", "seed", "status", "seconds", "error"), rows)
