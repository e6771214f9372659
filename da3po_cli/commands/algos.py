"""`da3po algos`: the table of algorithms."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from da3po_cli.algos.table import ALGORITHMS, AlgoConfig
from da3po_cli.commands.options import Quiet
from da3po_cli.output import Out


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("algos")(algos)


def algos(
    json: Annotated[bool, typer.Option("--json", help="One JSON object per algorithm on stdout.")] = False,
    quiet: Quiet = False,
) -> None:
    """List the algorithms: what they are, their formula and source, and the config keys that they set."""
    out = Out.choose(json=json, quiet=quiet)
    for name, entry in ALGORITHMS.items():
        out.event("algorithm", **{**asdict(entry), "name": name})
        own = {
            key: value
            for key, value in asdict(entry.defaults).items()
            if key != "name" and value != getattr(AlgoConfig(), key)
        }
        lines = [entry.summary, entry.formula, ", ".join(f"algo.{key}={value}" for key, value in own.items())]
        out.data("\n    ".join([f"{name}: {entry.title}, {entry.source}", *filter(None, lines)]))
