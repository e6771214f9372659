"""`da3po data check`: what a data set holds, and which of its rows training would leave out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from da3po_cli.commands.completion import complete_config
from da3po_cli.commands.options import Json, Quiet, overrides_argument
from da3po_cli.output import Out

if TYPE_CHECKING:
    from da3po_cli.config.schema import Config
    from da3po_cli.data.report import File, Lengths, Report

_EPILOG = """\b
Examples:
  da3po data check problems.jsonl
  da3po data check dapo.parquet --model Qwen/Qwen3-4B-Base data.template=dapo data.max_prompt_tokens=1024
  da3po data check 'gsm8k.parquet*1, math.jsonl@[:5000]*2' -c qwen3-4b --json"""

BAR = 40  # widest bar of the histogram, in characters
EXAMPLE = 60  # characters of a value that are shown
SHOWN = 5  # dropped rows that are shown, per reason


def register(app: typer.Typer) -> None:
    """Add the command group to the app."""
    group = typer.Typer(name="data", help="Look at training data.", no_args_is_help=True)
    group.callback()(_group)
    group.command("check", epilog=_EPILOG)(check)
    app.add_typer(group)


def _group() -> None:
    """Look at training data."""


def check(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="What data.train takes: a .parquet or .jsonl file, FILE@[a:b], several, a hub id."
        ),
    ],
    overrides: Annotated[list[str] | None, overrides_argument("data.template=dapo")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Directory or hub id of the tokenizer; without it, no lengths.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", help="Preset or file; may be repeated.", autocompletion=complete_config),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show columns, counts, duplicates, conflicts, golds that do not verify, and prompt lengths in tokens.

    The rows are read, graded against themselves and measured just as training would.
    """
    from dataclasses import asdict, replace

    from da3po_cli.config.load import load_config

    out = Out.choose(json=json, quiet=quiet)
    loaded = load_config(config or [], overrides or [], {"data.train": path, "model.path": model})
    settings, tokenizer = loaded.config, None
    if settings.model.path:
        from da3po_cli.config.models import model_directory
        from da3po_cli.launching.models import load_tokenizer

        tokenizer = load_tokenizer(model_directory(settings.model.path) or settings.model.path)
        if loaded.sources["data.template"] == "default" and not getattr(tokenizer, "chat_template", None):
            out.say("the tokenizer has no chat template, so prompts are measured with data.template=none")
            settings = replace(settings, data=replace(settings.data, template="none"))
    else:
        out.say("no --model: prompt lengths in tokens are left out")

    from da3po_cli.data.report import check_data

    report = check_data(settings.data, settings.reward, tokenizer)
    out.event("data_check", **asdict(report))
    out.data("\n".join(_lines(report, settings)))
    if report.usable:
        out.say(f"\nnext: da3po train --dataset '{path}'")
    else:
        out.warn("no row can be used")


def _lines(report: Report, config: Config) -> list[str]:
    """The report as text. Bars are blocks on a terminal and number signs elsewhere."""
    lines = [
        f"rows      {report.rows:,} read, {report.usable:,} usable",
        f"dropped   {', '.join(f'{count:,} {reason}' for reason, count in report.dropped.items()) or 'none'}",
    ]
    for file in report.files:
        lines += ["", *_file_lines(file)]
    lines += ["", "data sources"]
    for source, count in report.data_sources.items():
        unknown = " (not in reward.by_source)" if source in report.unknown_sources else ""
        lines.append(f"  {source}: {count:,} rows, reward {report.rewards[source]}{unknown}")
    lines += [f"  {source}: in reward.by_source, and in no row" for source in report.unused_sources]
    if report.lengths is not None:
        lines += ["", *_length_lines(report.lengths, config)]
    for reason, examples in report.examples.items():
        lines += ["", f"{reason}: {report.dropped[reason]:,} rows"]
        lines += [f"  {example}" for example in examples[:SHOWN]]
        lines += ["  ..."] if len(examples) > SHOWN else []
    return lines


def _file_lines(file: File) -> list[str]:
    taken = [
        f"{what} from {', '.join(f'{column} ({count:,})' for column, count in columns.items()) or 'no column'}"
        for what, columns in (("prompts", file.prompt_from), ("golds", file.answer_from))
    ]
    lines = [f"{file.name}: {file.rows:,} rows; {'; '.join(taken)}"]
    name = max((len(column.name) for column in file.columns), default=0)
    for column in file.columns:
        missing = f"{column.missing:,} missing, " if column.missing else ""
        example = " ".join(column.example.split())
        shown = example if len(example) <= EXAMPLE else f"{example[:EXAMPLE]}..."
        kind = column.type if len(column.type) <= EXAMPLE else f"{column.type[:EXAMPLE]}..."
        lines.append(f"  {column.name:<{name}}  {missing}{kind or 'empty'}: {shown}")
    return lines


def _length_lines(lengths: Lengths, config: Config) -> list[str]:
    limit = config.data.max_prompt_tokens
    lines = [
        f"prompt length in tokens, template {config.data.template}, limit {limit:,}",
        f"  min {lengths.minimum:,}, median {lengths.median:,}, 95 % {lengths.p95:,}, 99 % {lengths.p99:,}, "
        f"max {lengths.maximum:,}",
    ]
    most = max(count for _, _, count in lengths.histogram)
    block = "█" if sys.stdout.isatty() and "utf" in (sys.stdout.encoding or "").lower() else "#"
    labels = [f"{first:,}-{last:,}" for first, last, _ in lengths.histogram]
    wide = max(map(len, labels))
    for label, (first, last, count) in zip(labels, lengths.histogram, strict=True):
        bar = block * -(-count * BAR // most)
        over = "  over the limit" if first > limit else "  partly over the limit" if last > limit else ""
        lines.append(f"  {label:>{wide}}  {count:>7,}  {bar}{over}".rstrip())
    return lines
