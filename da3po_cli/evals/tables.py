"""Results as tables: models as rows, benchmarks as columns, AVG their plain mean. In percent, like the paper's."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from da3po_cli.algos.stats import Interval
from da3po_cli.evals.metrics import average
from da3po_cli.evals.result import Result, scores_of

_NAMES = {"avg": "avg@k", "pass": "pass@k", "maj": "maj@k"}


@dataclass(frozen=True)
class Table:
    """A title, column headings and rows of text; the first column is the label."""

    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def percent(value: float) -> str:
    return f"{100 * value:.2f}" if math.isfinite(value) else "-"


def interval_text(interval: Interval) -> str:
    return f"{percent(interval.low)}..{percent(interval.high)}"


def columns_of(results: Sequence[Result]) -> dict[str, str]:
    """Benchmarks of all results as name -> title, in the order in which they come up."""
    return {name: bench["title"] for result in results for name, bench in result["benches"].items()}


def score_tables(results: Sequence[Result]) -> list[Table]:
    """One table for each metric that a benchmark asks for; AVG where a model has all its columns."""
    found: list[Table] = []
    for metric in _NAMES:
        wanted = [
            name
            for name in columns_of(results)
            if any(metric in result["benches"][name]["metrics"] for result in results if name in result["benches"])
        ]
        if wanted:
            found.append(_score_table(results, metric, wanted))
    return found


def _score_table(results: Sequence[Result], metric: str, names: Sequence[str]) -> Table:
    several = len(names) > 1
    rows = [_row(result, metric, names) for result in results]
    counts = [_counts(results, name) for name in names]
    rows.append(("problems x samples", *counts, *([""] if several else [])))
    titles = [columns_of(results)[name] for name in names]
    return Table(f"{_NAMES[metric]}, %", ("model", *titles, *(["AVG"] if several else [])), tuple(rows))


def _row(result: Result, metric: str, names: Sequence[str]) -> tuple[str, ...]:
    scores = [scores_of(result["benches"][name]) if name in result["benches"] else None for name in names]
    cells = ["-" if one is None else percent(one.metric(metric).mean) for one in scores]
    known = [one for one in scores if one is not None]
    if len(names) > 1:
        cells.append(percent(average(known, metric).mean) if len(known) == len(names) else "-")
    return (result["model"]["name"], *cells)


def _counts(results: Sequence[Result], name: str) -> str:
    """Problems and samples of a column, such as `30 x 32`; `8/30 x 2` where --limit leaves some out."""
    found = {
        f"{bench['problems']}{'' if bench['problems'] == bench['total'] else '/' + str(bench['total'])} x {bench['k']}"
        for result in results
        if (bench := result["benches"].get(name))
    }
    return found.pop() if len(found) == 1 else "differ"


def detail_table(results: Sequence[Result]) -> Table:
    """Every benchmark of every model with its intervals and with what its responses were like."""
    rows = []
    for result in results:
        for bench in result["benches"].values():
            scores = scores_of(bench)
            rows.append(
                (
                    result["model"]["name"],
                    bench["title"],
                    f"@{scores.k}",
                    percent(scores.avg.mean),
                    interval_text(scores.avg),
                    percent(scores.metric("pass").mean),
                    interval_text(scores.metric("pass")),
                    percent(scores.maj.mean),
                    f"{scores.length.mean:.0f}",
                    percent(scores.truncated),
                    percent(scores.unknown + scores.failed),
                )
            )
    heading = ("model", "bench", "k", "avg", "95 %", "pass", "95 %", "maj", "length", "truncated %", "unknown %")
    return Table("with 95 % intervals over problems", heading, tuple(rows))


def settings_lines(results: Sequence[Result]) -> list[str]:
    """How the numbers were made, once for all benchmarks that have it in common."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        for name, bench in result["benches"].items():
            how = bench["sampling"]
            limits = " to ".join(str(one) for one in sorted(set(result["ran"]["max_tokens"][name])))
            line = (
                f"temperature {how['temperature']:g}, top-p {how['top_p']:g}, at most {limits} tokens, "
                f"template {bench['template']}, reward {bench['reward']}, seed {how['seed']}"
            )
            found.setdefault(line, {})[bench["title"]] = None
    return [f"{', '.join(titles)}: {line}" for line, titles in found.items()]


def text(table: Table) -> str:
    """Aligned columns for a terminal or a log; labels left, numbers right."""
    lines = [table.heading, *table.rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(table.heading))]
    out = [table.title]
    for line in lines:
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        out.append("  ".join(cells).rstrip())
    return "\n".join(out)


def markdown(table: Table) -> str:
    """A Markdown table under its title."""
    lines = [table.heading, ("---", *("---:" for _ in table.heading[1:])), *table.rows]
    body = ["| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in line) + " |" for line in lines]
    return "\n".join([f"**{table.title}**", "", *body])


def csv_text(results: Sequence[Result]) -> str:
    """One line per model and benchmark, shares in [0, 1]; AVERAGE is the plain mean over a model's benchmarks."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    metrics = [f"{metric}{part}" for metric in _NAMES for part in ("", "_stderr", "_low", "_high")]
    writer.writerow(["model", "benchmark", "problems", "k", *metrics, "length", "truncated", "unknown", "failed"])
    for result in results:
        scores = {name: scores_of(bench) for name, bench in result["benches"].items()}
        for name, one in scores.items():
            cells = _interval_cells({metric: one.metric(metric) for metric in _NAMES})
            tail = [one.length.mean, one.truncated, one.unknown, one.failed]
            writer.writerow([result["model"]["name"], name, one.problems, one.k, *cells, *tail])
        if len(scores) > 1:
            cells = _interval_cells({metric: average(list(scores.values()), metric) for metric in _NAMES})
            writer.writerow([result["model"]["name"], "AVERAGE", "", "", *cells, "", "", "", ""])
    return out.getvalue()


def _interval_cells(intervals: Mapping[str, Interval]) -> list[object]:
    return [
        value if math.isfinite(value) else ""
        for one in intervals.values()
        for value in (one.mean, one.stderr, one.low, one.high)
    ]
