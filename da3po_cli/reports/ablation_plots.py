"""The plots of an ablation: final scores by arm, learning curves, cost and behaviour."""

from __future__ import annotations

from collections.abc import Callable

from da3po_cli.evals.metrics import HARD
from da3po_cli.reports import arms as stats
from da3po_cli.reports.ablation_tables import columns
from da3po_cli.reports.arms import AblationData
from da3po_cli.reports.data import Curve, RunData
from da3po_cli.reports.plots import Plot, Series


def rank_plots(data: AblationData) -> list[Plot]:
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


def curve_plots(data: AblationData) -> list[Plot]:
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


def cost_plots(data: AblationData, target: float | None) -> list[Plot]:
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


def behaviour_plots(data: AblationData) -> list[Plot]:
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
