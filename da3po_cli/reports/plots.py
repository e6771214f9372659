"""Plots as data, and their drawing. matplotlib is imported when something is drawn, never before.

A `Plot` says what is shown; `draw` makes a figure of it. Colours are those of Okabe and Ito, which people with the
common forms of colour blindness tell apart; line styles and markers repeat the distinction.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, FAINT, GRID = "#24292f", "#57606a", "#d8dee4"
DARK = {INK: "#e6edf3", FAINT: "#9da7b3", GRID: "#30363d", COLOURS[0]: "#3d85d8", COLOURS[1]: "#f08a4b"}
"""What these colours become on a dark page; the others are readable on both."""
WIDTH, HEIGHT = 4.5, 2.8  # inches, without the legend: one column of a phone
DOTS = 200  # per inch, of PNG files


@dataclass(frozen=True)
class Series:
    """One line: its points, and optionally a band (line plots) or error bars (dots) from `low` to `high`."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Plot:
    """What a plot shows.

    kind: `line`; `stack` (areas on top of one another); `points` (no lines, error bars); `ranks` (one row per series:
    the first point is the mean with its interval, the others are single runs).
    """

    slug: str
    title: str
    x: str
    y: str
    series: Sequence[Series]
    kind: Literal["line", "stack", "points", "ranks"] = "line"
    log_y: bool = False
    limits: tuple[float, float] | None = None
    levels: Sequence[tuple[float, str]] = ()
    """Horizontal lines (vertical ones in `ranks`) with their labels."""
    shade: tuple[float, float, str] | None = None
    """A range of x with its label."""
    overlay: Sequence[Series] = ()
    """Measured points with error bars, on top of lines."""
    note: str = ""

    @property
    def file(self) -> str:
        """Name of its PNG file: the slug, which may have the name of a benchmark in it, without what a path minds."""
        return re.sub(r"[^A-Za-z0-9._+-]+", "-", self.slug) + ".png"

    @property
    def alt(self) -> str:
        """The plot in words, for those who do not see it."""
        what = f"{self.title}: {self.y} over {self.x}." if self.kind != "ranks" else f"{self.title}, {self.x}."
        ends = [
            f"{one.label}: {one.ys[0]:.4g}" if len(one.ys) == 1 else f"{one.label}: {one.ys[0]:.4g} to {one.ys[-1]:.4g}"
            for one in self.series
            if len(one.ys) and self.kind != "ranks"
        ]
        if self.kind == "ranks":
            ends = [f"{one.label}: {one.xs[0]:.4g}" for one in self.series if len(one.xs)]
        return " ".join([what, "; ".join(ends) + "." if ends else "No data."])


def draw(plot: Plot) -> Figure:
    """A figure of it, on a transparent ground. Long labels are cut in the middle."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    plot = _plain(plot)
    shown = len(plot.series) + len(plot.overlay) + len(plot.levels) + (plot.shade is not None)
    columns = 2 if max((len(one.label) for one in plot.series), default=0) < 22 else 1
    rows = 0 if plot.kind == "ranks" else math.ceil(shown / columns)
    height = HEIGHT + 0.17 * rows if plot.kind != "ranks" else 1.0 + 0.32 * len(plot.series)
    with matplotlib.rc_context(_settings()):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(plot.title, loc="left", fontsize=10, fontweight="bold")
        axes.set_xlabel(plot.x)
        axes.set_ylabel(plot.y)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        _DRAWERS[plot.kind](axes, plot)
        _extras(axes, plot)
        if plot.x == "step":
            axes.xaxis.set_major_locator(MaxNLocator(nbins=9, steps=[1, 2, 5, 10], integer=True))
        elif plot.kind == "ranks":
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        if plot.log_y:
            axes.set_yscale("log")
        if plot.limits:
            axes.set_ylim(*plot.limits)
        elif plot.kind == "line" and not any(y for one in plot.series for y in one.ys):
            axes.set_ylim(0, 1)  # a share that stays 0 is not around 0
        if rows:
            figure.legend(loc="outside lower center", ncols=columns, frameon=False, handlelength=2.6)
    return figure


def _plain(plot: Plot) -> Plot:
    """The plot with short labels that are no mathematics: arms and benchmarks may be called anything."""
    return replace(
        plot,
        title=_escaped(plot.title),
        series=[replace(one, label=_escaped(_cut(one.label))) for one in plot.series],
    )


def _escaped(text: str) -> str:
    return text.replace("$", r"\$")


def _cut(label: str, limit: int = 40) -> str:
    return label if len(label) <= limit else f"{label[: limit // 2]}...{label[3 - limit // 2 :]}"


def _settings() -> Any:
    """Of matplotlib, for drawing and for writing."""
    return {
        "font.size": 9,
        "font.family": "DejaVu Sans",
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "legend.fontsize": 8.5,
        "svg.fonttype": "path",
        "svg.hashsalt": "da3po",  # the same data give the same bytes
    }


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _style(number: int, points: int) -> dict[str, Any]:
    every = max(1, points // 8)
    return {
        "color": colour(number),
        "linestyle": STYLES[number % len(STYLES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4,
        "markevery": (number % every, every),
        "linewidth": 1.5,
    }


def _lines(axes: Axes, plot: Plot) -> None:
    for number, one in enumerate(plot.series):
        axes.plot(one.xs, one.ys, label=one.label, **_style(number, len(one.xs)))
        if one.low is not None and one.high is not None:
            axes.fill_between(one.xs, one.low, one.high, color=colour(number), alpha=0.18, linewidth=0)


def _stack(axes: Axes, plot: Plot) -> None:
    if plot.series:
        colours = [colour(number) for number in range(len(plot.series))]
        labels = [one.label for one in plot.series]
        xs = sorted({x for one in plot.series for x in one.xs})
        known = [dict(zip(one.xs, one.ys, strict=True)) for one in plot.series]
        layers = [[points.get(x, 0.0) for x in xs] for points in known]
        axes.stackplot(xs, *layers, labels=labels, colors=colours, alpha=0.85, linewidth=0)
        axes.margins(x=0)


def _points(axes: Axes, plot: Plot) -> None:
    _errors(axes, plot.series, [colour(number) for number in range(len(plot.series))])


def _errors(axes: Axes, series: Sequence[Series], colours: Sequence[str]) -> None:
    for number, one in enumerate(series):
        bars = None
        if one.low is not None and one.high is not None:
            bars = [
                [max(0.0, y - low) for y, low in zip(one.ys, one.low, strict=True)],
                [max(0.0, high - y) for y, high in zip(one.ys, one.high, strict=True)],
            ]
        axes.errorbar(
            one.xs,
            one.ys,
            yerr=bars,
            label=one.label,
            color=colours[number],
            marker="D",
            markersize=5.5,
            markerfacecolor="none",
            linestyle="none",
            zorder=3,
            capsize=2.5,
            linewidth=1.2,
        )


def _ranks(axes: Axes, plot: Plot) -> None:
    names = [one.label for one in plot.series]
    for row, one in enumerate(plot.series):
        if not len(one.xs):
            continue
        mean, runs = one.xs[0], one.xs[1:]
        if one.low is not None and one.high is not None and math.isfinite(one.low[0]):
            axes.plot([one.low[0], one.high[0]], [row, row], color=colour(row), linewidth=2.2, solid_capstyle="butt")
        axes.plot(runs, [row] * len(runs), linestyle="none", marker="|", markersize=11, color=FAINT)
        axes.plot([mean], [row], marker=MARKERS[row % len(MARKERS)], markersize=7, color=colour(row))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


_DRAWERS = {"line": _lines, "stack": _stack, "points": _points, "ranks": _ranks}


def _extras(axes: Axes, plot: Plot) -> None:
    _errors(axes, plot.overlay, [INK] * len(plot.overlay))
    for number, (level, label) in enumerate(plot.levels):
        line = axes.axvline if plot.kind == "ranks" else axes.axhline
        line(level, color=FAINT, linewidth=1.1, linestyle=(0, (4, 2 + number)), label=label)
    if plot.shade:
        low, high, label = plot.shade
        axes.axvspan(low, high, color=FAINT, alpha=0.14, linewidth=0, label=label)


def svg(figure: Figure) -> str:
    """The figure as SVG for a light page."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context(_settings()):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return text.getvalue()


def dark(light: str) -> str:
    """The same SVG with the colours of a dark page."""
    for before, after in DARK.items():
        light = light.replace(before, after)
    return light


def data_uri(image: str) -> str:
    """An SVG as the source of an <img>, so that a page needs no other file."""
    return "data:image/svg+xml;base64," + base64.b64encode(image.encode()).decode()


def save_png(plots: Sequence[Plot], directory: Path) -> list[Path]:
    """One PNG per plot, on white; returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for plot in plots:
        file = directory / plot.file
        draw(plot).savefig(file, dpi=DOTS, facecolor="white", metadata={"Software": None})
        files.append(file)
    return files
