"""`da3po train`: resolve, check, show the plan, make the run directory, launch."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from da3po_cli.algos.table import ALGORITHMS
from da3po_cli.config.presets import preset_names
from da3po_cli.errors import ConfigErrors, EnvironmentProblem, Terminated, UsageError
from da3po_cli.output import Out

if TYPE_CHECKING:
    from da3po_cli.config.load import Loaded
    from da3po_cli.config.schema import Config
    from da3po_cli.runs import RunDir
    from da3po_cli.runtime.launch import Place

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


def _complete_algo(start: str) -> list[tuple[str, str]]:
    return [(name, entry.summary) for name, entry in ALGORITHMS.items() if name.startswith(start)]


def _complete_config(start: str) -> list[str]:
    return [name for name in preset_names() if name.startswith(start)]


def train(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Config keys, such as train.lr=1e-6.")
    ] = None,
    algo: Annotated[
        str | None,
        typer.Option("--algo", metavar="NAME", help=", ".join(ALGORITHMS) + ".", autocompletion=_complete_algo),
    ] = None,
    lam: Annotated[
        float | None,
        typer.Option("--lambda", metavar="X", help="DAA factor on correct responses to hard prompts; 1 is off."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="NAME|FILE",
            help=f"Preset ({', '.join(preset_names())}) or YAML file; repeatable, later ones win.",
            autocompletion=_complete_config,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="PATH", help="Hugging Face directory, hub id, or demo.")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", metavar="FILE", help="Training prompts: .jsonl, .parquet, hub id, or arith."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the run, a directory in DA3PO_RUNS.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", help="Training steps.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Seed of data order, sampling and initialisation.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="[latest|STEP]", help="Go on from a checkpoint; without --name the newest run."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete an earlier run of this name first.")] = False,
    replay_rollouts: Annotated[
        Path | None,
        typer.Option("--replay-rollouts", metavar="DIR", help="Train on the rollouts saved by another run."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the plan, write nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per event on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")] = False,
) -> None:
    """Train a model with reinforcement learning from verifiable rewards."""
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
    job = prepare(out, config or [], overrides or [], flags, resume=resume, overwrite=overwrite, replay=replay_rollouts)
    missing = missing_packages(job)
    if dry_run:
        show_plan(out, job)
        if missing:
            out.warn(f"not installed here, and needed by this run: {', '.join(missing)}")
        return
    if missing:
        raise EnvironmentProblem(
            f"not installed: {', '.join(missing)}",
            where=sys.prefix,
            hint=f"pip install {' '.join(missing)}; the README has the tested versions for CPU and GPU",
        )
    start(out, job, overwrite=overwrite)


@dataclass(frozen=True)
class Job:
    """A checked command: everything that the launch needs, and nothing written yet."""

    config: Config
    run_dir: RunDir
    preset: str
    devices: int
    resume: str | None
    replay: Path | None
    place: Place | None


def prepare(
    out: Out,
    files: list[str],
    overrides: list[str],
    flags: Mapping[str, Any],
    *,
    resume: str | None = None,
    overwrite: bool = False,
    replay: Path | None = None,
) -> Job:
    """Resolve and check a command. Reads only.

    Raises:
        ConfigErrors: all problems of the config, the layout, the model and the data.
        UsageError: the run directory is in use, or there is nothing to resume.
    """
    from da3po_cli.config.checks import check
    from da3po_cli.config.devices import compute_capability, cuda_devices
    from da3po_cli.config.load import resolve
    from da3po_cli.config.plan import layout, with_layout
    from da3po_cli.runtime.launch import outer_launcher

    if resume is not None and resume != "latest" and not resume.isdigit():
        raise UsageError(f"--resume={resume} is no step", where="--resume", hint="--resume, or --resume=STEP")
    devices = cuda_devices()
    place = outer_launcher()
    resumed = _resumed_run(flags, overrides) if resume is not None else None
    files = files or _default_files(out, resumed, devices.cuda, devices.why)
    loaded = resolve(files, overrides, flags, os.environ)
    world = place.world if place else None
    fp8 = loaded.config.fp8.format != "none" or loaded.config.rollout.quantization is not None
    capability = compute_capability() if fp8 and devices.cuda else None
    found = check(loaded.config, devices=devices.cuda, world=world, capability=capability)
    problems = [*loaded.problems, *_sensible(found, loaded)]
    problems += _replay_problems(replay)
    if problems:
        raise ConfigErrors(problems)
    config = with_layout(loaded.config, layout(loaded.config, devices=devices.cuda, world=world))
    preset = "+".join(Path(file).stem for file in files)
    run_dir = resumed or _run_dir(config, preset, place)
    config = replace(config, run=replace(config.run, name=run_dir.name))
    if place is None or place.rank == 0:
        run_dir.check_free(resume=resume, overwrite=overwrite)
        if resumed is not None and resume is not None:
            _check_changes(out, resumed, config, replay)
            _name_later(out, resumed, resume)
    return Job(config, run_dir, preset, devices.cuda, resume, replay, place)


def _default_files(out: Out, resumed: RunDir | None, devices: int, why: str) -> list[str]:
    """The config files of a command without --config, said in one line."""
    if resumed is not None and resumed.config_file.is_file():
        out.say(f"no --config: going on with {resumed.config_file}")
        return [str(resumed.config_file)]
    named = os.environ.get("DA3PO_CONFIG")
    if named:
        out.say(f"no --config: using DA3PO_CONFIG={named}")
        return [part.strip() for part in named.split(",") if part.strip()]
    preset = "qwen3-4b" if devices else "demo"
    out.say(f"no --config: using the preset {preset} ({why})")
    return [preset]


def _resumed_run(flags: Mapping[str, Any], overrides: list[str]) -> RunDir:
    from da3po_cli.runs import RunDir, latest_run, runs_root

    named = [token.removeprefix("run.name=") for token in overrides if token.startswith("run.name=")]
    name = flags.get("run.name") or (named[-1] if named else None) or os.environ.get("DA3PO_RUN__NAME")
    if name is not None:
        return RunDir(runs_root() / name)
    run = latest_run()
    if run is None:
        raise UsageError(f"no run to resume in {runs_root()}", where="--resume", hint="--name of an existing run")
    return run


def _run_dir(config: Config, preset: str, place: Place | None) -> RunDir:
    """The directory of a new run; under an outer launcher all ranks must come to the same name."""
    from da3po_cli.runs import RunDir, runs_root

    name = config.run.name
    if name is None and place is not None and place.world > 1:
        if not place.job:
            raise UsageError(
                "the ranks of an outer launcher need one name for the run", where="run.name", hint="--name NAME"
            )
        name = f"{config.algo.name}-{preset}-{place.job}"
    return RunDir(runs_root() / (name or f"{config.algo.name}-{preset}-{time.strftime('%Y%m%d-%H%M%S')}"))


def _sensible(found: list[UsageError], loaded: Loaded) -> list[UsageError]:
    """Cross-check problems with the layer that set the key, without those that only follow from a misread setting."""
    from da3po_cli.config.load import UnreadFile

    if any(isinstance(problem, UnreadFile) for problem in loaded.problems):
        return []
    suspect = {word for problem in loaded.problems for word in _keys_in(problem)}
    kept = [problem for problem in found if not suspect & _keys_in(problem)]
    for problem in kept:
        source = loaded.sources.get(problem.where or "", "default")
        if not source.startswith("default"):
            problem.where = source if (problem.where or "") in source else f"{problem.where}, set by {source}"
    return kept


def _keys_in(problem: UsageError) -> set[str]:
    from da3po_cli.config.keys import key_types

    text = f"{problem.message} {problem.where} {problem.hint}"
    return {key for key in key_types() if key in text}


def _replay_problems(replay: Path | None) -> list[UsageError]:
    if replay is None or any(replay.glob("step_*.jsonl")) or any(replay.glob("rollouts/step_*.jsonl")):
        return []
    what = "holds no step_N.jsonl" if replay.is_dir() else "is not a directory"
    return [
        UsageError(
            f"{replay} {what}",
            where="--replay-rollouts",
            hint="--replay-rollouts runs/NAME, of a run with run.save_rollouts=true",
        )
    ]


# --------------------------------------------------------------------------------------------------- dry run, launch


def plan_rows(job: Job) -> list[tuple[str, str]]:
    """What a run would do, as label and text."""
    from da3po_cli.config.models import model_facts
    from da3po_cli.config.plan import layout, updates_per_step

    config, where = job.config, layout(job.config)
    algo, rollout, train_ = config.algo, config.rollout, config.train
    facts = model_facts(config.model.path)
    about = (
        f"{facts.architecture}, {facts.layers} layers" if facts else "from the hub, its layout is checked at the start"
    )
    daa = f"; lambda {algo.daa_lambda:g} where correct and pass rate < {algo.daa_tau:g}" if algo.daa_lambda != 1 else ""
    responses = rollout.prompts * rollout.group_size
    mini = train_.mini_batch_prompts * rollout.group_size
    updates = updates_per_step(config)
    sampling = f", dynamic sampling in up to {algo.max_rounds} rounds" if algo.dynamic_sampling else ""
    place = f"{job.devices} CUDA device(s)" if job.devices else f"CPU, {len(os.sched_getaffinity(0))} core(s)"
    positions = f" of {facts.max_positions} positions" if facts and facts.max_positions else ""
    source = f"rollouts saved in {job.replay}" if job.replay else f"{config.data.train}, reward {config.reward.name}"
    return [
        ("run", f"{job.run_dir.path}" + (f", resumed from {job.resume}" if job.resume else "")),
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
            f"{mini // where.data} per data-parallel rank",
        ),
        ("total", f"{config.run.steps} steps, {config.run.steps * updates} updates, seed {config.run.seed}"),
    ]


def show_plan(out: Out, job: Job) -> None:
    """Print the plan, and the command that carries it out."""
    from dataclasses import asdict

    rows = plan_rows(job)
    out.event("plan", config=asdict(job.config), run=str(job.run_dir.path), **dict(rows[1:]))
    out.table(rows)
    again = [token for token in sys.argv[1:] if token != "--dry-run"]
    out.say(f"\nnothing was written; run it: {shlex.join(['da3po', *again])}")


def missing_packages(job: Job) -> list[str]:
    """Packages that this job would import and that are not installed."""
    from da3po_cli.config.checks import is_hub_data

    needed = {"torch": "torch", "megatron": "megatron-core", "transformers": "transformers"}
    if job.replay is None:
        needed["vllm"] = "vllm"
        if any(is_hub_data(source) for source in (job.config.data.train, job.config.data.validation)):
            needed["datasets"] = "datasets"
    if job.config.run.wandb_project is not None:
        needed["wandb"] = "wandb"
    return [package for module, package in needed.items() if find_spec(module) is None]


def start(out: Out, job: Job, *, overwrite: bool) -> None:
    """Make the run directory and run the job."""
    from da3po_cli.config.load import config_hash, dump
    from da3po_cli.reports.build import report_after
    from da3po_cli.runs import command_line
    from da3po_cli.runtime.launch import WorkerOptions, launch

    if _nothing_left(out, job):
        return
    run_dir, leader = job.run_dir, job.place is None or job.place.rank == 0
    if leader:
        attempt = run_dir.create(dump(job.config), config_hash(job.config), command_line(), overwrite=overwrite)
        rows = plan_rows(job)
        out.event("launch", attempt=attempt, **dict(rows))
        for label, text in rows:
            if label in ("run", "algorithm", "model", "layout"):
                out.say(f"{label:<11}{text}")
    else:
        attempt = run_dir.await_attempt()
    options = WorkerOptions(
        attempt=attempt,
        resume=job.resume,
        replay=None if job.replay is None else str(job.replay.absolute()),
        json=out.mode == "json",
        quiet=out.mode == "quiet",
    )
    try:
        launch(job.config, run_dir, options)
    except (KeyboardInterrupt, Terminated):
        if "step" in run_dir.read()["attempts"][-1]:  # it stopped after a step, and has said how to go on
            raise
        if run_dir.saved_steps():
            out.say(f"\ninterrupted; go on with: da3po train --resume --name {run_dir.name}")
        else:
            out.say(f"\ninterrupted before the first checkpoint; logs in {run_dir.attempt(attempt)}")
        raise
    if leader:
        report_after(out, run_dir)


def _check_changes(out: Out, run: RunDir, config: Config, replay: Path | None) -> None:
    """Refuse what cannot change when a run goes on, and list what does; the rule is in `da3po_cli.runs.resume`.

    Raises:
        ConfigErrors: a key has changed that the checkpoint depends on.
    """
    from da3po_cli.config.load import load_config
    from da3po_cli.runs.resume import changes, refusals

    if not run.config_file.is_file():
        return
    before = load_config([str(run.config_file)], env={}).config
    problems = list(refusals(before, config, replay=replay is not None))
    if problems:
        raise ConfigErrors(problems)
    for key, old, new in changes(before, config):
        out.warn(f"{key} was {old} in the run so far, now {new}")


def _name_later(out: Out, run: RunDir, resume: str) -> None:
    """Name the checkpoints of a future that the run gives up."""
    later = [step for step in run.saved_steps() if resume != "latest" and step > int(resume)]
    if later:
        steps = ", ".join(map(str, later))
        out.warn(f"going back to step {resume}: the checkpoints and records after it (step {steps}) will be deleted")


def _nothing_left(out: Out, job: Job) -> bool:
    """Whether the run to resume has all its steps already; says so. No error: a job that is requeued may ask again."""
    if job.resume is None:
        return False
    saved = job.run_dir.saved_steps()
    step = int(job.resume) if job.resume != "latest" else max(saved, default=0)
    if step < job.config.run.steps:
        return False
    out.say(f"nothing to do: {job.run_dir.path} has step {step} of {job.config.run.steps}; --steps N goes on to N")
    out.event("done", status="done", run=str(job.run_dir.path), steps=step)
    return True
