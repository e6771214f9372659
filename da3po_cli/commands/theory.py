"""`da3po theory`: what dynamic sampling does to advantages, in closed form and measured on a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from da3po_cli.commands.completion import complete_run
from da3po_cli.commands.options import Json, Quiet
from da3po_cli.errors import UsageError
from da3po_cli.output import Out

if TYPE_CHECKING:
    from da3po_cli.reports.document import Table
    from da3po_cli.reports.theory import Bin, Measured

_EPILOG = """\b
Examples:
  da3po theory
  da3po theory --group 8,16 --png figures
  da3po theory --run demo --json"""

LARGEST = 4096


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("theory", epilog=_EPILOG)(theory)


def theory(
    group: Annotated[
        str, typer.Option("--group", metavar="G,G,...", help="Group sizes, responses per prompt.")
    ] = "4,8,16,32",
    png: Annotated[
        Path | None, typer.Option("--png", metavar="DIR", help="Draw Figures 1 and 2 and the keep rate.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run", metavar="RUN", help="Measure the same on a run's saved rollouts.", autocompletion=complete_run
        ),
    ] = None,
    md: Annotated[bool, typer.Option("--md", help="Tables in Markdown.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show alpha+, alpha-, gamma and the keep rate over the pass rate p, and when they are exact.

    alpha+ and alpha- are the factors by which dynamic sampling enlarges the advantage of a correct and of a wrong
    response that is seen; gamma is their ratio.
    """
    from dataclasses import asdict

    from da3po_cli.reports import theory as forms
    from da3po_cli.reports.build import output_of
    from da3po_cli.reports.data import RunData
    from da3po_cli.reports.plots import save_png
    from da3po_cli.runs.directory import find_run

    out = Out.choose(json=json, quiet=quiet)
    sizes = _sizes(group)
    measured = None
    if run is not None:
        measured = forms.measure(*forms.count_groups(RunData(find_run(run))))
    tables = [_closed_forms(size) for size in sizes]
    if measured is not None:
        tables += _measured_tables(run or "", measured)
    out.data("\n\n".join(table.markdown() if md else table.text() for table in tables))
    out.data("\n" + "\n".join(forms.EXPLANATION))
    files: list[Path] = []
    if png is not None:
        with output_of("--png", png):
            files = save_png(forms.theory_plots(sizes, measured), png)
    for file in files:
        out.say(f"wrote {file}")
    out.event(
        "theory",
        rows=[asdict(forms.row(p, size)) for size in sizes for p in forms.RATES],
        measured=asdict(measured) if measured else None,
        explanation=forms.EXPLANATION,
        files=[str(file) for file in files],
    )


def _sizes(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        if not part.strip().isdecimal() or not 2 <= int(part) <= LARGEST:
            raise UsageError(
                f"{part.strip()!r} is no group size", where="--group", hint=f"whole numbers from 2 to {LARGEST}: 4,8,16"
            )
        found.append(int(part))
    return sorted(set(found))


def _closed_forms(size: int) -> Table:
    from da3po_cli.reports import theory as forms
    from da3po_cli.reports.document import Table

    rows = [
        (
            f"{p:g}",
            f"{r.alpha_plus:.4f}",
            f"{r.alpha_minus:.4f}",
            f"{r.gamma:.4f}",
            f"{1 / r.gamma:.4f}",
            f"{r.keep:.4f}",
        )
        for p in forms.RATES
        for r in [forms.row(p, size)]
    ]
    return Table(f"G = {size}", ("p", "alpha+", "alpha-", "gamma", "1/gamma", "P(kept)"), rows)


def _measured_tables(name: str, measured: Measured) -> list[Table]:
    from da3po_cli.reports.document import Table

    heading = ("prompts", "groups", "mean p", "alpha+", "95 %", "alpha-", "95 %", "gamma", "95 %")
    note = "Intervals: bootstrap over groups."
    if measured.left_out:
        note += f" {measured.left_out} groups of another size or without a verdict on every response are left out."
    whole = Table(
        f"{name}: measured over all prompts, G = {measured.group_size}",
        heading,
        [("all", *_cells(measured.overall))],
        note=note,
    )
    if not measured.bins:
        return [whole]
    rest = measured.group_size - measured.half
    formed = [*heading, "alpha+ at p", "alpha- at p", "gamma at p"]
    return [
        whole,
        Table(
            f"{name}: by pass rate, G = {measured.half}",
            tuple(formed),
            [
                (f"{one.estimate * rest:.0f} of {rest}", *_cells(one), *_formed(one, measured.half))
                for one in measured.bins
            ],
            note=f"Prompts are sorted by {rest} of their responses and measured on the other {measured.half}, over all "
            "ways to split them. A row mixes prompts of different rates: alpha+ and alpha- then lie above the closed "
            "form at the mean rate.",
        ),
    ]


def _cells(one: Bin) -> list[str]:
    cells = [f"{one.groups:.0f}", f"{one.rate:.3f}"]
    for value in (one.alpha_plus, one.alpha_minus, one.gamma):
        finite = math.isfinite(value.mean)
        cells += [f"{value.mean:.4f}", f"{value.low:.4f}..{value.high:.4f}"] if finite else ["-", "-"]
    return cells


def _formed(one: Bin, size: int) -> list[str]:
    from da3po_cli.reports.theory import row

    if not 0 < one.rate < 1:
        return ["-", "-", "-"]
    forms = row(one.rate, size)
    return [f"{forms.alpha_plus:.4f}", f"{forms.alpha_minus:.4f}", f"{forms.gamma:.4f}"]
