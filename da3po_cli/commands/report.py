"""`da3po report`: the page, plots and tables of a run or an ablation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from da3po_cli.commands.completion import complete_report
from da3po_cli.commands.options import Quiet, as_share
from da3po_cli.output import Out

_EPILOG = """\b
Examples:
  da3po report                                 the newest run
  da3po report lambda-demo --html page.html
  da3po report runs/demo --png plots --md > report.md

\b
The page needs no network and no other file. train and ablate make it at their end."""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("report", epilog=_EPILOG)(report)


def report(
    name: Annotated[
        str,
        typer.Argument(metavar="[RUN|ABLATION]", help="Its name, or its directory.", autocompletion=complete_report),
    ] = "latest",
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Where the page goes; report.html beside the data.")
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="DIR", help="Also write each plot as a PNG.")] = None,
    md: Annotated[bool, typer.Option("--md", help="Print it as Markdown, with the plots of --png.")] = False,
    target: Annotated[
        float | None,
        typer.Option(
            "--target", metavar="X", help="Score, as a share, at which the cost of an ablation's arms is read."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object: the files that were written, and the text of --md.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Make a self-contained HTML page of a run or an ablation: tables, plots, examples."""
    from da3po_cli.reports.build import REPORT, document_of, find, output_of, write_html
    from da3po_cli.reports.document import markdown
    from da3po_cli.reports.plots import save_png

    out = Out.choose(json=json, quiet=quiet)
    directory = find(name)
    document = document_of(directory, None if target is None else as_share(target))
    files: list[Path] = []
    if html is not None or not (md or png):
        files.append(html or directory.path / REPORT)
        with output_of("--html", files[-1]):
            write_html(document, files[-1])
    if png is not None:
        with output_of("--png", png):
            files += save_png(document.plots, png)
    text = markdown(document, str(png) if png is not None else None).rstrip("\n") if md else None
    if text is not None:
        out.data(text)
    for file in files:
        if md:
            out.say(f"wrote {file}")
        else:
            out.data(str(file))
    out.event("report", name=directory.path.name, files=[str(file) for file in files], markdown=text)
