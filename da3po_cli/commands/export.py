"""`da3po export`: a checkpoint of a run as a Hugging Face directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from da3po_cli.output import Out

_EPILOG = """\b
Example:
  da3po export demo demo-hf --step 60"""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("export", epilog=_EPILOG)(export)


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or directory of a run; latest is the newest.")],
    out_dir: Annotated[Path, typer.Argument(metavar="OUT", help="Directory to make.")],
    step: Annotated[int | None, typer.Option("--step", help="Checkpoint; the newest by default.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Write a checkpoint as a Hugging Face directory: safetensors, config, tokenizer."""
    from da3po_cli.config.load import load_config
    from da3po_cli.runs import find_run
    from da3po_cli.runtime.checkpoint import checkpoint_path

    out = Out.choose(json=json)
    run_dir = find_run(run)
    config = load_config([str(run_dir.config_file)], env={}).config
    step, _ = checkpoint_path(run_dir.path / "checkpoints", step)
    out.say(f"exporting step {step} of {run_dir.path}")
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))

    from da3po_cli.runtime.export import export as write

    write(config, run_dir.path, out_dir, step)
    out.event("export", run=str(run_dir.path), step=step, out=str(out_dir))
    out.data(str(out_dir))
