"""`da3po train`: options, and what it says of a run before it starts; the rest is in `da3po_cli.training.job`."""

from __future__ import annotations

import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from da3po_cli.algos.table import ALGORITHMS
from da3po_cli.commands.completion import (
    complete_algo,
    complete_resume,
    complete_run,
)
from da3po_cli.commands.options import Quiet, config_option, overrides_argument
from da3po_cli.config.presets import preset_names
from da3po_cli.output import Out

if TYPE_CHECKING:
    from da3po_cli.training.prepare import Job

_EPILOG = """\b
Examples:
  da3po train                                         pick a preset for this machine
  da3po train --algo grpo --steps 20 --name baseline
  da3po train -c qwen3-4b -c mine.yaml --lambda 1.5 train.lr=5e-7
  da3po train -c demo parallel.tensor=2 parallel.pipeline=2 --dry-run
  da3po train --name baseline --resume                go on from its newest checkpoint

\b
Precedence: defaults of the algorithm < config files, left to right < DA3PO_SECTION__KEY < key=value < flags."""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("train", epilog=_EPILOG)(train)


def train(
    overrides: Annotated[list[str] | None, overrides_argument("train.lr=1e-6")] = None,
    algo: Annotated[
        str | None,
        typer.Option("--algo", metavar="NAME", help=", ".join(ALGORITHMS) + ".", autocompletion=complete_algo),
    ] = None,
    lam: Annotated[
        float | None,
        typer.Option("--lambda", metavar="X", help="DAA factor on correct responses to hard prompts; 1 is off."),
    ] = None,
    config: Annotated[
        list[str] | None,
        config_option(f"Preset ({', '.join(preset_names())}) or YAML file; repeatable, later ones win."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="PATH", help="Hugging Face directory, hub id, or demo.")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", metavar="FILE", help="Training prompts: .jsonl, .parquet, hub id, or arith."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Name of the run, a directory in DA3PO_RUNS.", autocompletion=complete_run
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", help="Training steps.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed of data order and sampling.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="[latest|STEP]",
            help="Go on from a checkpoint; without --name the newest run.",
            autocompletion=complete_resume,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete an earlier run of this name first.")] = False,
    replay_rollouts: Annotated[
        Path | None,
        typer.Option("--replay-rollouts", metavar="DIR", help="Train on the rollouts saved by another run."),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(
            "--restarts", metavar="N", min=0, help="Start all ranks again, from the last checkpoint, N times at most."
        ),
    ] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the plan, write nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per event on stdout.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model with reinforcement learning from verifiable rewards."""
    from da3po_cli.launching.launch import outer_launcher
    from da3po_cli.training.job import run
    from da3po_cli.training.prepare import Request, missing_packages, prepare

    flags = {
        "algo.name": algo,
        "algo.daa_lambda": lam,
        "model.path": model,
        "data.train": dataset,
        "run.name": name,
        "run.steps": steps,
        "run.seed": seed,
    }
    out = Out.choose(json=json, quiet=quiet)
    request = Request(
        files=config or [],
        overrides=overrides or [],
        flags=flags,
        resume=resume,
        overwrite=overwrite,
        replay=replay_rollouts,
        restarts=restarts,
    )
    if not dry_run:
        run(out, request, partial(announce, out))
    elif out.rank == 0:
        job = prepare(out, request, place=outer_launcher())
        show_plan(out, job)
        missing = missing_packages(job)
        if missing:
            out.warn(f"not installed here, and needed by this run: {', '.join(missing)}")


# --------------------------------------------------------------------------------------------------- what it would do


def plan_rows(job: Job) -> list[tuple[str, str]]:
    """What a run would do, as label and text."""
    from da3po_cli.config.models import model_facts
    from da3po_cli.config.plan import layout, overlong_text, updates_per_step
    from da3po_cli.launching.launch import AGAIN

    config, where = job.config, layout(job.config)
    algo, rollout, train_ = config.algo, config.rollout, config.train
    facts = model_facts(config.model.path)
    about = (
        f"{facts.architecture}, {facts.layers} layers" if facts else "from the hub, its layout is checked at the start"
    )
    rule = f"; lambda {algo.daa_lambda:g} where correct, A > 0 and pass rate < {algo.daa_tau:g}"
    daa = rule if algo.daa_lambda != 1 else ""
    responses = rollout.prompts * rollout.group_size
    mini = train_.mini_batch_prompts * rollout.group_size
    updates = updates_per_step(config)
    sampling = f", dynamic sampling in up to {algo.max_rounds} rounds" if algo.dynamic_sampling else ""
    place = f"{job.devices} CUDA device(s)" if job.devices else f"CPU, {len(os.sched_getaffinity(0))} core(s)"
    positions = f" of {facts.max_positions} positions" if facts and facts.max_positions else ""
    going_on = f", resumed from {job.resume}" if job.resume else ""
    if job.resume == AGAIN:
        going_on = ", the ranks were started again"
    source = f"rollouts saved in {job.replay}" if job.replay else f"{config.data.train}, reward {config.reward.name}"
    return [
        ("run", f"{job.run_dir.path}{going_on}"),
        ("algorithm", f"{ALGORITHMS[algo.name].title} ({ALGORITHMS[algo.name].source}){daa}"),
        ("model", f"{config.model.path} ({about}), {config.model.dtype}"),
        ("data", source + (f"; validation {config.data.validation}" if config.data.validation else "; no validation")),
        (
            "layout",
            f"{where.world} rank(s) = tensor {where.tensor} x pipeline {where.pipeline} x data {where.data} "
            f"on {place}; {where.engines} rollout engine(s) of {where.rollout_tensor}",
        ),
        ("step", f"{rollout.prompts} prompts x {rollout.group_size} = {responses} responses{sampling}"),
        ("length", f"{config.data.max_prompt_tokens} prompt + {rollout.max_tokens} response tokens{positions}"),
        (
            "updates",
            f"{updates} per step, each {train_.mini_batch_prompts} x {rollout.group_size} = {mini} responses, "
            f"{round(mini / where.data, 1):g} per data-parallel rank",
        ),
        ("overlong", overlong_text(config)),
        ("total", f"{config.run.steps} steps, {config.run.steps * updates} updates, seed {config.run.seed}"),
    ]


def show_plan(out: Out, job: Job) -> None:
    """Print the plan with the memory that it takes, and the command that carries it out."""
    from dataclasses import asdict

    from da3po_cli.planning import show
    from da3po_cli.planning.own import own_estimate

    rows, (found, why) = plan_rows(job), own_estimate(job.config, job.devices)
    values = None if found is None else show.values(found)
    out.event("plan", config=asdict(job.config), run=str(job.run_dir.path), **dict(rows[1:]), estimate=values)
    out.table([*rows, *(show.rows(found) if found else [("memory", why)])])
    if found:
        out.data("\n".join(["", *show.memory_lines(found), show.verdict(found)]))
    again = [token for token in sys.argv[1:] if token != "--dry-run"]
    out.say(f"\nnothing was written; run it: {shlex.join(['da3po', *again])}")


def announce(out: Out, job: Job, attempt: int) -> None:
    """Say what begins."""
    rows = plan_rows(job)
    out.event("launch", attempt=attempt, **dict(rows))
    for label, text in rows:
        if label in ("run", "algorithm", "model", "layout"):
            out.say(f"{label:<11}{text}")
