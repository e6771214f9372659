"""The report of an ablation: who is better, by how much and how surely, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from da3po_cli.algos.stats import Interval
from da3po_cli.config.load import flatten
from da3po_cli.evals.metrics import HARD
from da3po_cli.evals.tables import interval_text, percent
from da3po_cli.reports import arms as stats
from da3po_cli.reports.arms import AblationData, ArmData, Paired
from da3po_cli.reports.data import Bench, Curve, RunData
from da3po_cli.reports.document import Document, Section, Table
from da3po_cli.reports.plots import Plot, Series
from da3po_cli.reports.run_report import EXAMPLES_TEXT, first_solves

Value = Callable[[RunData], float | None]

_BAND = "Lines: mean over seeds; bands: lowest to highest seed."


def ablation_document(data: AblationData, target: float | None = None, *, examples: bool = True) -> Document:
    """Everything that a report says about an ablation.

    Args:
        target: score at which the arms' cost is compared; what the reference arm ends with by default.
    """
    target = target if target is not None else data.ablation.target
    target = target if target is not None else stats.default_target(data)
    finished, total = len(data.runs), len(data.ablation.runs)
    lead = (
        f"{len(data.arms)} arms x {len(data.ablation.seeds)} seed(s), {finished} of {total} runs finished. "
        f"Reference arm: {data.reference}."
    )
    sections = [
        Section("Result", text=_result_text(data), tables=result_tables(data), plots=_rank_plots(data)),
        Section("Learning curves", text=[_BAND], plots=_curve_plots(data)),
        Section("Cost", tables=[cost_table(data, target)], plots=_cost_plots(data, target)),
        Section("Policy and filter", tables=[behaviour_table(data)], plots=_behaviour_plots(data)),
        Section("Arms and runs", tables=[diff_table(data), runs_table(data)]),
    ]
    if examples:
        sections.append(_example_section(data))
    return Document(f"Ablation {data.name}", lead, [one for one in sections if one.tables or one.plots or one.examples])


def _result_text(data: AblationData) -> list[str]:
    texts: list[str] = []
    start = stats.same_start(data)
    if start is not None:
        texts.append(
            "All runs scored the same before training, as they must: same weights, same validation samples."
            if start
            else "The runs did NOT score the same before training: they did not start from the same weights."
        )
    if data.ablation.gate:
        texts.append(f"Gate: {data.ablation.gate}")
    return texts


# -------------------------------------------------------------------------------------------------------------- result


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


def _rank_plots(data: AblationData) -> list[Plot]:
    plots: list[Plot] = []
    for kind in ("avg", "pass"):
        name, value = columns(data, kind)[-1] if data.benches else ("", lambda run: None)
        lines: list[Series] = []
        for arm in data.arms:
            runs = list(arm.over_seeds(value).values())
            interval = stats.over_seeds(runs)
            if interval:
                lines.append(Series(arm.label, [interval.mean, *runs], [], [interval.low], [interval.high]))
        if lines:
            title = f"Final {name} by arm"
            plots.append(
                Plot(f"final_{kind}", title, "share; bar: 95 % interval, ticks: seeds", "", lines, kind="ranks")
            )
    return plots


# -------------------------------------------------------------------------------------------------------------- curves


def _bands(data: AblationData, curve: Callable[[RunData], Curve], *, resample: bool = False) -> list[Series]:
    """One line per arm, the mean over its seeds, with the range of the seeds."""
    lines: list[Series] = []
    for arm in data.arms:
        curves = [curve(run) for run in arm.runs.values()]
        xs, mean, low, high = (stats.mean_at if resample else stats.band)(curves)
        if xs:
            lines.append(Series(arm.label, xs, mean, low, high))
    return lines


def _plots(*plots: Plot) -> list[Plot]:
    return [plot for plot in plots if plot.series]


def _curve_plots(data: AblationData) -> list[Plot]:
    share = "share of correct samples"
    average = "mean over benchmarks, " if len(data.benches) > 1 else ""
    k = data.benches[0].k if len({bench.k for bench in data.benches}) == 1 else "k"
    single: list[Plot] = []
    if len(data.benches) > 1:
        for bench in data.benches:
            metric = bench.metric("avg")
            lines = _bands(data, lambda run, metric=metric: run.curve(metric))
            single.append(Plot(f"avg_{bench.name}", f"{bench.name} avg@{bench.k}", "step", share, lines))
    return _plots(
        Plot("avg", f"Validation {average}avg@{k}", "step", share, _bands(data, lambda run: run.score_curve())),
        Plot(
            "pass",
            f"Validation {average}pass@{k}",
            "step",
            "share solved",
            _bands(data, lambda r: r.score_curve("pass")),
        ),
        Plot(
            "hard_accuracy",
            f"Hard problems (base rate < {HARD:g})",
            "step",
            share,
            _bands(data, lambda run: run.hard_curve()),
        ),
        Plot(
            "train_acc", "Training accuracy, all generated", "step", share, _bands(data, lambda r: r.curve("train/acc"))
        ),
        *single,
    )


# ---------------------------------------------------------------------------------------------------------------- cost


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


def _cost_plots(data: AblationData, target: float | None) -> list[Plot]:
    levels = [(target, f"target {100 * target:.1f} %")] if target is not None else []

    def millions(run: RunData) -> Curve:
        return [(tokens / 1e6, score) for tokens, score in stats.by_tokens(run)]

    return _plots(
        Plot(
            "efficiency",
            "Validation avg@k over tokens generated",
            "response tokens generated for training, millions",
            "share of correct samples",
            _bands(data, millions, resample=True),
            levels=levels,
        ),
        Plot(
            "kept",
            "Groups kept of those generated",
            "step",
            "kept / generated",
            _bands(data, _kept),
        ),
    )


def _kept(run: RunData) -> Curve:
    generated = dict(run.curve("sample/generated"))
    return [(step, kept / generated[step]) for step, kept in run.curve("sample/kept") if generated.get(step)]


# ----------------------------------------------------------------------------------------------------------- behaviour


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


def _behaviour_plots(data: AblationData) -> list[Plot]:
    return _plots(
        Plot("entropy", "Policy entropy", "step", "nats per token", _bands(data, lambda r: r.curve("train/entropy"))),
        Plot(
            "hard_share",
            "Hard groups",
            "step",
            "share of kept groups",
            _bands(data, lambda r: r.curve("sample/hard_share")),
        ),
        Plot(
            "mass",
            "Advantage mass, correct / wrong",
            "step",
            "ratio of sums of |A|",
            _bands(data, _mass_ratio),
        ),
        Plot("length", "Response length", "step", "tokens, mean", _bands(data, lambda r: r.curve("rollout/length"))),
    )


def _mass_ratio(run: RunData) -> Curve:
    wrong = dict(run.curve("adv/mass_wrong"))
    return [(step, mass / wrong[step]) for step, mass in run.curve("adv/mass_correct") if wrong.get(step)]


# ---------------------------------------------------------------------------------------------------------------- arms


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


def _example_section(data: AblationData) -> Section:
    """Examples of the arm with the best mean."""
    means = stats.mean_scores(data)
    best = max(means, key=lambda label: means[label], default=data.reference)
    run = next(iter(data.arm(best).runs.values()), None)
    if run is None:
        return Section("")
    title = f"Hard prompts solved for the first time, {run.name}"
    return Section(title, text=[EXAMPLES_TEXT], examples=first_solves(run))
