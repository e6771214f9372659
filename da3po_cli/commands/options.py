"""Options that every command has in the same form."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from da3po_cli.commands.completion import complete_config

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the result and warnings.")]


def config_option(text: str) -> Any:
    """`--config`, with the help of a command."""
    return typer.Option("--config", "-c", metavar="NAME|FILE", help=text, autocompletion=complete_config)
