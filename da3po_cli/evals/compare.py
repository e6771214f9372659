"""Two models on the same problems: paired differences, which are known better than the two scores themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from da3po_cli.algos.stats import Interval, mean_interval, mean_of_means, pass_at_k, sign_flip_p_value
from da3po_cli.errors import UsageError
from da3po_cli.evals.metrics import Tally
from da3po_cli.evals.result import Result, tallies_of
from da3po_cli.evals.tables import Table, interval_text, percent

METRICS = ("avg", "pass")
AVERAGE = "AVG"


@dataclass(frozen=True)
class Difference:
    """Model b minus model a on one benchmark, or on the plain mean of all."""

    bench: str
    metric: str
    problems: int
    a: float
    b: float
    difference: Interval
    p_value: float
    """Two-sided, of no difference; by flipping signs (`sign_flip_p_value`)."""


def compare(a: Result, b: Result, metric: str) -> list[Difference]:
    """Differences on the benchmarks that both have, over the problems that both have; then those of AVG.

    Raises:
        UsageError: no problem in common, or pass@k with different k.
    """
    found: list[Difference] = []
    values: list[list[float]] = []
    for name in [name for name in a["benches"] if name in b["benches"]]:
        pairs = _pairs(a["benches"][name], b["benches"][name], metric)
        if pairs:
            values.append([right - left for left, right in pairs])
            found.append(_difference(a["benches"][name]["title"], metric, pairs, values[-1]))
    if not found:
        raise UsageError(
            f"{a['model']['name']} and {b['model']['name']} have no problem in common",
            where="eval compare",
            hint="evaluate both on the same benchmarks",
        )
    if len(found) > 1:
        mean = mean_of_means([one.difference for one in found])
        found.append(
            Difference(
                bench=AVERAGE,
                metric=metric,
                problems=sum(one.problems for one in found),
                a=sum(one.a for one in found) / len(found),
                b=sum(one.b for one in found) / len(found),
                difference=mean,
                p_value=sign_flip_p_value(values),
            )
        )
    return found


def _difference(title: str, metric: str, pairs: Sequence[tuple[float, float]], values: Sequence[float]) -> Difference:
    count = len(pairs)
    return Difference(
        bench=title,
        metric=metric,
        problems=count,
        a=sum(left for left, _ in pairs) / count,
        b=sum(right for _, right in pairs) / count,
        difference=mean_interval([[value] for value in values]),
        p_value=sign_flip_p_value([values]),
    )


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any], metric: str) -> list[tuple[float, float]]:
    """Both models' values on each problem that both have; of problems with the same text the n-th with the n-th."""
    if metric == "pass" and a["k"] != b["k"]:
        raise UsageError(
            f"pass@{a['k']} and pass@{b['k']} on {a['title']} are different things",
            where="eval compare",
            hint="--metric avg, or evaluate both with one --k",
        )
    left: dict[str, list[Tally]] = defaultdict(list)
    for one in reversed(tallies_of(a)):
        left[one.id].append(one)
    return [(_value(left[one.id].pop(), metric), _value(one, metric)) for one in tallies_of(b) if left[one.id]]


def _value(one: Tally, metric: str) -> float:
    return one.acc if metric == "avg" else pass_at_k(one.n, one.correct, one.n)


def difference_table(a: Result, b: Result, differences: Sequence[Difference]) -> Table:
    """One row per benchmark, in percent points."""
    rows = tuple(
        (
            one.bench,
            str(one.problems),
            percent(one.a),
            percent(one.b),
            f"{100 * one.difference.mean:+.2f}",
            interval_text(one.difference),
            f"{one.p_value:.4f}" if one.p_value >= 1e-4 else "<0.0001",
        )
        for one in differences
    )
    title = f"{differences[0].metric}@k, %: {b['model']['name']} minus {a['model']['name']}, paired by problem"
    return Table(
        title, ("benchmark", "problems", a["model"]["name"], b["model"]["name"], "difference", "95 %", "p"), rows
    )
