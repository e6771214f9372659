"""A training job as asked for, resolved and checked: `Request` in, `Job` out. Reads only, and imports no torch."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from da3po_cli.checks.rules import check, is_hub_data
from da3po_cli.config.devices import compute_capability, cuda_devices
from da3po_cli.config.keys import convert, key_types
from da3po_cli.config.load import Loaded, UnreadFile, flatten, load_config, resolve
from da3po_cli.config.plan import layout, with_layout
from da3po_cli.config.presets import default_files
from da3po_cli.config.schema import Config
from da3po_cli.errors import ConfigErrors, UsageError
from da3po_cli.launching.launch import AGAIN, Place
from da3po_cli.launching.nodes import identity, same_job
from da3po_cli.output import Out
from da3po_cli.runs.claim import check_unclaimed
from da3po_cli.runs.directory import RunDir, latest_run, runs_root
from da3po_cli.runs.resume import changes, refusals


@dataclass(frozen=True)
class Request:
    """What was asked for, nothing checked yet: `config`, or the layers that make one."""

    config: Config | None = None
    files: Sequence[str] = ()
    overrides: Sequence[str] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    resume: str | None = None
    """`latest`, a step as text, or None."""
    overwrite: bool = False
    replay: Path | None = None
    restarts: int = 0
    command: Sequence[str] | None = None
    """What run.json notes; None is the present command line."""


@dataclass(frozen=True)
class Job:
    """A checked request: everything that the launch needs, and nothing written yet."""

    config: Config
    run_dir: RunDir
    preset: str
    devices: int
    resume: str | None
    """As in `WorkerOptions`."""
    replay: Path | None
    place: Place | None


def prepare(out: Out, request: Request, *, place: Place | None = None, restarts: int = 0) -> Job:
    """Resolve and check a request. Reads only.

    Args:
        restarts: how often the outer launcher has started the ranks again.

    Raises:
        ConfigErrors: all problems of the config, the layout, the model and the data.
        UsageError: the run directory is in use, or there is nothing to resume.
    """
    resume, replay = request.resume, request.replay
    if resume is not None and resume != "latest" and not resume.isdecimal():
        raise UsageError(f"--resume={resume} is no step", where="--resume", hint="--resume, or --resume=STEP")
    devices = cuda_devices()
    resumed = _resumed_run(request) if resume is not None else None
    files, loaded = _load(out, request, resumed, devices.cuda, devices.why)
    world = place.world if place else None
    fp8 = loaded.config.fp8.format != "none" or loaded.config.rollout.quantization is not None
    capability = compute_capability() if fp8 and devices.cuda else None
    found = check(loaded.config, devices=devices.cuda, world=world, capability=capability)
    problems = [*loaded.problems, *_sensible(found, loaded)]
    problems += _replay_problems(replay)
    if problems:
        raise ConfigErrors(problems)
    config = with_layout(loaded.config, layout(loaded.config, devices=devices.cuda, world=world))
    preset = "+".join(Path(file).stem for file in files) or "config"
    run_dir = resumed or _run_dir(config, preset, place)
    config = replace(config, run=replace(config.run, name=run_dir.name))
    if place is not None and _started_again(run_dir, place, restarts):
        resumed, resume = run_dir, AGAIN
        config = _as_begun(run_dir, config)
        out.say(f"the ranks were started again: going on with {run_dir.path}")
    else:
        check_unclaimed(run_dir.path, "run.name")
        run_dir.check_free(resume=resume, overwrite=request.overwrite)
    if resumed is not None and resume is not None:
        _check_changes(out, resumed, config, replay)
        _name_later(out, resumed, resume)
    return Job(config, run_dir, preset, devices.cuda, resume, replay, place)


def _load(out: Out, request: Request, resumed: RunDir | None, devices: int, why: str) -> tuple[Sequence[str], Loaded]:
    """The config, with its sources and problems, and the files that it is from."""
    if request.config is not None:
        config = request.config
        name = request.flags.get("run.name")
        if name is not None:
            config = replace(config, run=replace(config.run, name=name))
        mistyped = _mistyped(config)
        if mistyped:
            raise ConfigErrors(mistyped)  # the other checks reckon with numbers
        return [], Loaded(config, {})
    files = request.files or _default_files(out, resumed, devices, why)
    return files, resolve(files, request.overrides, request.flags, os.environ)


def _mistyped(config: Config) -> list[UsageError]:
    """A config made in Python may hold values of any type, which a file could not."""
    problems: list[UsageError] = []
    for key, value in flatten(config).items():
        why = f"must be text, not {value!r}"
        try:
            fits = convert(key, value, value if isinstance(value, str) else None) == value
        except ValueError as error:
            fits, why = False, str(error)
        if not fits:
            problems.append(UsageError(f"{key}={value}: {why}", where=key, hint=f"change {key}"))
    return problems


def _default_files(out: Out, resumed: RunDir | None, devices: int, why: str) -> list[str]:
    """The config files of a command without --config, said in one line."""
    if resumed is not None and resumed.config_file.is_file():
        out.say(f"no --config: going on with {resumed.config_file}")
        return [str(resumed.config_file)]
    files, which = default_files(devices, why)
    out.say(f"no --config: using {which}")
    return files


def _resumed_run(request: Request) -> RunDir:
    named = [token.removeprefix("run.name=") for token in request.overrides if token.startswith("run.name=")]
    given = request.config.run.name if request.config is not None else None
    name = request.flags.get("run.name") or (named[-1] if named else None) or given or os.environ.get("DA3PO_RUN__NAME")
    if name is not None:
        return RunDir(runs_root() / name)
    run = latest_run()
    if run is None:
        raise UsageError(f"no run to resume in {runs_root()}", where="--resume", hint="--name of an existing run")
    return run


def _run_dir(config: Config, preset: str, place: Place | None) -> RunDir:
    """The directory of a new run; under an outer launcher a name that ranks started again come to as well."""
    name = config.run.name
    if name is None and place is not None and place.world > 1:
        if not place.job:
            raise UsageError(
                "the ranks of an outer launcher need one name for the run", where="run.name", hint="--name NAME"
            )
        name = f"{config.algo.name}-{preset}-{place.job}"
    return RunDir(runs_root() / (name or f"{config.algo.name}-{preset}-{time.strftime('%Y%m%d-%H%M%S')}"))


def _started_again(run_dir: RunDir, place: Place, restarts: int) -> bool:
    attempts = run_dir.read().get("attempts", [])
    return bool(attempts) and same_job(attempts[-1], identity(place), restarts)


def _as_begun(run_dir: RunDir, config: Config) -> Config:
    """The config that the job began with: a file may have been edited since. Only the number of ranks may be new."""
    begun = load_config([str(run_dir.config_file)], env={}).config
    return replace(begun, parallel=replace(begun.parallel, data=config.parallel.data))


def _sensible(found: list[UsageError], loaded: Loaded) -> list[UsageError]:
    """Cross-check problems with the layer that set the key, without those that only follow from a misread setting."""
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


def _check_changes(out: Out, run: RunDir, config: Config, replay: Path | None) -> None:
    """Refuse what cannot change when a run goes on, and list what does; the rule is in `da3po_cli.runs.resume`.

    Raises:
        ConfigErrors: a key has changed that the checkpoint depends on.
    """
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
    later = [step for step in run.saved_steps() if resume.isdecimal() and step > int(resume)]
    if later:
        steps = ", ".join(map(str, later))
        out.warn(f"going back to step {resume}: the checkpoints and records after it (step {steps}) will be deleted")


def missing_packages(job: Job) -> list[str]:
    """Packages that this job would import and that are not installed."""
    needed = {"torch": "torch", "megatron": "megatron-core", "transformers": "transformers"}
    if job.replay is None:
        needed["vllm"] = "vllm"
        if any(is_hub_data(source) for source in (job.config.data.train, job.config.data.validation)):
            needed["datasets"] = "datasets"
    if job.config.run.wandb_project is not None:
        needed["wandb"] = "wandb"
    return [package for module, package in needed.items() if find_spec(module) is None]
