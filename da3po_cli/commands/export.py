"""`da3po export`: a checkpoint of a run as a Hugging Face directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from da3po_cli.commands.completion import complete_checkpoint
from da3po_cli.commands.options import Json, Quiet
from da3po_cli.errors import UsageError
from da3po_cli.output import Out

_EPILOG = """\b
Examples:
  da3po export demo demo-hf
  da3po export demo@20 demo-hf-20 --verify
  da3po export runs/demo/checkpoints/step_20 demo-fp32 --dtype fp32 --max-shard-size 500MB"""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("export", epilog=_EPILOG)(export)


def export(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT",
            help="RUN, RUN@STEP, latest, the directory of a run, or that of a checkpoint (.../checkpoints/step_N).",
            autocompletion=complete_checkpoint,
        ),
    ],
    out_dir: Annotated[Path, typer.Argument(metavar="OUT", help="Directory to make.")],
    step: Annotated[int | None, typer.Option("--step", help="Checkpoint; the newest by default.")] = None,
    dtype: Annotated[
        Literal["source", "bf16", "fp32"],
        typer.Option("--dtype", help="Of the tensors; source is that of each in the model that the run began with."),
    ] = "source",
    max_shard_size: Annotated[str, typer.Option("--max-shard-size", help="Of a file: 5GB, 500MB, 2GiB.")] = "5GB",
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compare with the trainer's policy, by weights and log-probs; builds the model."),
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a checkpoint as a Hugging Face directory: safetensors, config, tokenizer, model card.

    Streams from the checkpoint's files on the CPU, with the memory of one tensor, whatever layout wrote them.
    """
    from da3po_cli.config.load import resolve
    from da3po_cli.runs.locate import find_checkpoint

    out = Out.choose(json=json, quiet=quiet)
    checkpoint = find_checkpoint(run, step)
    if out_dir.exists():  # said before torch is imported
        raise UsageError(f"{out_dir} exists", where="OUT", hint="give a new directory, or remove it")
    loaded = resolve([str(checkpoint.run.config_file)], env={})
    for problem in loaded.problems:  # a key that another version of da3po knew is no reason to keep the weights back
        out.warn(f"{problem.message} in {checkpoint.run.config_file}: left out")
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))

    from dataclasses import asdict

    from da3po_cli.exporting.export import export as write
    from da3po_cli.exporting.shards import parse_size, size_text

    limit = parse_size(max_shard_size)
    out.say(f"exporting step {checkpoint.step} of {checkpoint.run.path}")
    done = write(loaded.config, checkpoint, out_dir, dtype=dtype, max_shard_bytes=limit, verify=verify, say=out.say)
    out.say(f"{done.tensors} tensors, {done.parameters:,} parameters, {size_text(done.nbytes)} in {done.seconds:.1f} s")
    if done.verification:
        out.say(f"verified: {done.verification}")
    out.say(f"next: da3po eval --bench arith --model {out_dir}")
    run_path, step = str(checkpoint.run.path), checkpoint.step
    out.event("export", run=run_path, step=step, out=str(out_dir), dtype=dtype, **asdict(done))
    out.data(str(out_dir))
