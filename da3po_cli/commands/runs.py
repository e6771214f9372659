"""`da3po runs`: the runs of this directory, and one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from da3po_cli.commands.completion import complete_run
from da3po_cli.commands.options import Json, Quiet
from da3po_cli.errors import UsageError
from da3po_cli.output import Out

if TYPE_CHECKING:
    from da3po_cli.runs.directory import RunDir


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    group = typer.Typer(help="List and show runs.", no_args_is_help=True)
    group.command("ls")(ls)
    group.command("show")(show)
    app.add_typer(group, name="runs")


def ls(
    json: Annotated[bool, typer.Option("--json", help="One JSON object per run.")] = False, quiet: Quiet = False
) -> None:
    """List the runs in DA3PO_RUNS, newest last: status, steps, last validation, start."""
    from da3po_cli.runs.directory import all_runs, runs_root

    out = Out.choose(json=json, quiet=quiet)
    lines: list[tuple[str, str]] = []
    for run in all_runs():
        try:
            about, records = run.read(), _metrics(run)
        except UsageError as error:
            out.warn(f"{error.where}: {error.message}")
            continue
        scores, status = last_scores(records), run.status()
        step = records[-1]["step"] if records else 0
        out.event("run", name=run.name, status=status, step=step, created=about.get("created"), **scores)
        shown = {name.removeprefix("val/"): value for name, value in scores.items() if "avg@" in name}
        score = ", ".join(f"{name} {value:.4f}" for name, value in shown.items())
        lines.append((run.name, f"{status:<12}step {step:<6}{score:<32}{about.get('created', '')}"))
    if lines:
        out.table(lines)
    else:
        out.say(f"no run in {runs_root()}; DA3PO_RUNS names another place")


def show(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Name or directory of a run; latest is the newest.", autocompletion=complete_run
        ),
    ],
    step: Annotated[int | None, typer.Option("--step", help="The metrics of this step; the last by default.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print what a run is and the metrics of one step."""
    from da3po_cli.runs.directory import find_run

    out = Out.choose(json=json, quiet=quiet)
    found = find_run(run)
    about, records = found.read(), _metrics(found)
    by_step = {record["step"]: record for record in records}
    if step is not None and step not in by_step:
        known = f"{min(by_step)} to {max(by_step)}" if by_step else "none"
        raise UsageError(f"{found.name} has no metrics of step {step}", where=str(found.metrics_file), hint=known)
    record: dict[str, Any] = by_step[step] if step is not None else records[-1] if records else {}
    out.event("run", about=about, checkpoints=found.saved_steps(), metrics=record)
    attempts = about.get("attempts", [])
    out.table(
        [
            ("run", found.path),
            ("status", f"{found.status()}, {len(attempts)} attempt(s), created {about.get('created', '?')}"),
            ("command", " ".join(attempts[-1]["argv"]) if attempts else "?"),
            ("versions", ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items())),
            ("checkpoints", ", ".join(map(str, found.saved_steps())) or "none"),
            *((name, value) for name, value in record.items()),
        ]
    )


def _metrics(run: RunDir) -> list[dict[str, Any]]:
    from da3po_cli.runs.metrics import read_metrics

    return read_metrics(run.metrics_file) if run.metrics_file.is_file() else []


def last_scores(records: list[dict[str, Any]]) -> dict[str, float]:
    """The newest validation in the metrics of a run."""
    for record in reversed(records):
        scores = {name: value for name, value in record.items() if name.startswith("val/")}
        if scores:
            return scores
    return {}
