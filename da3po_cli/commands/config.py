"""`da3po config`: what a command would run with, and how two configs differ."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from da3po_cli.commands.completion import complete_saved_config
from da3po_cli.commands.options import Json, Quiet, config_option, overrides_argument
from da3po_cli.output import Out

_EPILOG = """\b
Examples:
  da3po config show -c qwen3-4b train.lr=5e-7 --sources
  da3po config diff demo runs/demo/config.yaml"""


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    group = typer.Typer(help="Show and compare configs.", no_args_is_help=True, epilog=_EPILOG)
    group.command("show")(show)
    group.command("diff")(diff)
    app.add_typer(group, name="config")


def show(
    overrides: Annotated[list[str] | None, overrides_argument("train.lr=1e-6")] = None,
    config: Annotated[
        list[str] | None,
        config_option("Preset or YAML file; repeatable."),
    ] = None,
    sources: Annotated[bool, typer.Option("--sources", help="Say what set each key.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print the resolved config as YAML, which `--config` takes again."""
    from da3po_cli.config.load import dump, flatten, load_config

    out = Out.choose(json=json, quiet=quiet)
    loaded = load_config(config or [], overrides or [])
    values = flatten(loaded.config)
    out.event("config", config=values, sources=loaded.sources)
    if sources:
        rows = [(f"{key} = {_text(value)}", f"# {loaded.sources.get(key, 'default')}") for key, value in values.items()]
        out.table(rows)
    else:
        out.data(dump(loaded.config).rstrip())


def diff(
    first: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="Preset or YAML file, such as runs/NAME/config.yaml.",
            autocompletion=complete_saved_config,
        ),
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="The other one.", autocompletion=complete_saved_config)],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print the keys in which two configs differ; environment variables play no part."""
    from da3po_cli.config.load import diff as differences
    from da3po_cli.config.load import load_config

    out = Out.choose(json=json, quiet=quiet)
    changes = differences(load_config([first], env={}).config, load_config([second], env={}).config)
    out.event("diff", changes=[{"key": key, "a": old, "b": new} for key, old, new in changes])
    if changes:
        out.table([(key, f"{_text(old)} -> {_text(new)}") for key, old, new in changes])
    else:
        out.say("no difference")


def _text(value: Any) -> str:
    """As YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value) if isinstance(value, str) and not value else str(value)
