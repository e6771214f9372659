"""Options that every command has in the same form."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from da3po_cli.commands.completion import complete_config, complete_setting
from da3po_cli.errors import UsageError

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the result and warnings.")]


def as_share(target: float) -> float:
    """The value of --target.

    Raises:
        UsageError: it is no share.
    """
    if 0 <= target <= 1:
        return target
    raise UsageError(f"--target {target:g} is no share", where="--target", hint="from 0 to 1: 0.75 for 75 %")


def overrides_argument(example: str, *, also: tuple[str, str] | None = None) -> Any:
    """`KEY=VALUE...`, with an example that fits the command; `also`: what else it takes there, and what that is."""
    metavar, text = "KEY=VALUE", f"Config keys, such as {example}"
    if also is not None:
        metavar, text = f"{also[0]}|{metavar}", f"{text}; {also[1]}"
    return typer.Argument(metavar=metavar, help=f"{text}.", autocompletion=complete_setting)


def config_option(text: str) -> Any:
    """`--config`, with the help of a command."""
    return typer.Option("--config", "-c", metavar="NAME|FILE", help=text, autocompletion=complete_config)
