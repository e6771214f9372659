"""A training job from what was asked for to its end: resolve and check, make the run directory, launch.

`da3po train` and `da3po_cli.train` are thin covers of `run`.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from da3po_cli.config.checks import check, is_hub_data
from da3po_cli.config.devices import compute_capability, cuda_devices
from da3po_cli.config.keys import convert, key_types
from da3po_cli.config.load import Loaded, UnreadFile, config_hash, dump, flatten, from_dict, load_config, resolve
from da3po_cli.config.plan import layout, with_layout
from da3po_cli.config.presets import default_files
from da3po_cli.config.schema import Config
from da3po_cli.errors import ConfigErrors, Da3poError, EnvironmentProblem, RankFailed, Terminated, UsageError
from da3po_cli.output import Out
from da3po_cli.runs import RunDir, command_line, latest_run, runs_root
from da3po_cli.runs.resume import changes, refusals
from da3po_cli.runtime import launch as launching
from da3po_cli.runtime.launch import AGAIN, Place, WorkerOptions
from da3po_cli.runtime.nodes import Ended, Meeting, identity, into_file, outer_launcher, same_job

TOKEN = "token"  # beside the logs: what rank 0 writes to see whether all ranks see it


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


# ------------------------------------------------------------------------------------------------------------- prepare


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


# ----------------------------------------------------------------------------------------------------------------- run

Announce = Callable[[Job, int], None]
"""Told of the job and its attempt once the run directory is there."""


def run(out: Out, request: Request, announce: Announce, *, isolated: bool = False) -> RunDir:
    """Train: on rank 0 from the request on, on the other ranks of an outer launcher as rank 0 says.

    Args:
        isolated: leave this process as it was, see `launch`.

    Raises:
        Da3poError: something is wrong with the request, or of the first rank that failed.
        KeyboardInterrupt, Terminated: a signal came, and all ranks have ended.
    """
    place = outer_launcher()
    if place is None or place.world == 1:
        return _lead(out, request, announce, place, None, isolated)
    with Meeting(place) as meeting:
        if place.rank > 0:
            try:
                return _follow(meeting)
            except Ended as ended:
                if ended.run is None:
                    raise
                return RunDir(runs_root() / ended.run)
        meeting.gather()
        return _lead(out, request, announce, place, meeting, isolated)


def _lead(
    out: Out, request: Request, announce: Announce, place: Place | None, meeting: Meeting | None, isolated: bool
) -> RunDir:
    """Rank 0, or the only process so far."""
    job = prepare(out, request, place=place, restarts=meeting.restarts if meeting else place.restarts if place else 0)
    missing = missing_packages(job)
    if missing:
        raise EnvironmentProblem(
            f"not installed: {', '.join(missing)}",
            where=sys.prefix,
            hint=f"pip install {' '.join(missing)}; the README has the tested versions for CPU and GPU",
        )
    run_dir = job.run_dir
    if _nothing_left(out, job):
        if meeting is not None:
            meeting.end(0, run_dir.name)
        return run_dir
    again = job.resume == AGAIN
    argv = request.command or command_line()
    attempt = run_dir.create(dump(job.config), config_hash(job.config), argv, overwrite=request.overwrite and not again)
    options = WorkerOptions(
        attempt=attempt,
        resume=job.resume,
        replay=None if job.replay is None else str(job.replay.absolute()),
        json=out.mode == "json",
        quiet=out.mode == "quiet",
    )
    if place is not None:
        attempts = run_dir.read()["attempts"]
        run_dir.update(attempts=[*attempts[:-1], attempts[-1] | identity(place)])
    if meeting is not None:
        _share(meeting, job, options)
    announce(job, attempt)
    try:
        _launch(job.config, run_dir, options, isolated=isolated, restarts=request.restarts)
    except (KeyboardInterrupt, Terminated):
        if "step" in run_dir.read()["attempts"][-1]:  # it stopped after a step, and has said how to go on
            raise
        if run_dir.saved_steps():
            out.say(f"\ninterrupted; go on with: da3po train --resume --name {run_dir.name}")
        else:
            out.say(f"\ninterrupted before the first checkpoint; logs in {run_dir.attempt(attempt)}")
        raise
    except Exception as error:
        if meeting is None or isinstance(error, Da3poError):
            raise
        raise _first_to_fail(error, run_dir.attempt(attempt)) from error
    from da3po_cli.reports.build import report_after

    report_after(out, run_dir)
    return run_dir


_GONE = ("closed by peer", "reset by peer", "remote process exit")  # gloo, gloo, NCCL


def _first_to_fail(error: Exception, logs: Path) -> Da3poError:
    """What ended the job, under an outer launcher: rank 0 may only have missed a rank that failed before it did."""
    first = launching.first_failure(logs, {0: 1})
    missed = any(text in str(error) for text in _GONE)
    if not missed or not first.message.startswith("rank 0 "):
        return first
    return RankFailed(
        f"a rank has gone without a word, killed perhaps: {str(error).splitlines()[0]}",
        where=str(logs),
        hint="see the launcher's output on all nodes for its exit code; the machine may have run out of memory",
    )


def _launch(config: Config, run_dir: RunDir, options: WorkerOptions, **more: Any) -> None:
    launching.launch(config, run_dir, options, **{name: value for name, value in more.items() if value})


def _nothing_left(out: Out, job: Job) -> bool:
    """Whether the run to resume has all its steps already; says so. No error: a job that is requeued may ask again."""
    if job.resume is None:
        return False
    saved = job.run_dir.saved_steps()
    step = int(job.resume) if job.resume.isdecimal() else max(saved, default=0)
    if step < job.config.run.steps:
        return False
    out.say(f"nothing to do: {job.run_dir.path} has step {step} of {job.config.run.steps}; --steps N goes on to N")
    out.event("done", status="done", run=str(job.run_dir.path), steps=step)
    return True


# ------------------------------------------------------------------------------------------------------ the other ranks


def _share(meeting: Meeting, job: Job, options: WorkerOptions) -> None:
    """Tell the other ranks what to do, once they all see the run directory."""
    content, token = secrets.token_hex(8), job.run_dir.attempt(options.attempt) / TOKEN
    token.write_text(content)
    try:
        meeting.tell("job", config=asdict(job.config), run=job.run_dir.name, options=asdict(options), token=content)
        meeting.show(token)
    except BaseException:
        job.run_dir.finish("failed")
        raise
    finally:
        token.unlink(missing_ok=True)


def _follow(meeting: Meeting) -> RunDir:
    """A rank that rank 0 tells what to do; it says nothing but why it failed.

    Raises:
        RankFailed: by anything but a Da3poError; names the log.
    """
    heard = meeting.hear("job")
    run_dir, options = RunDir(runs_root() / heard["run"]), WorkerOptions(**heard["options"])
    logs = run_dir.attempt(options.attempt)
    meeting.look(logs / TOKEN, heard["token"])
    log = logs / f"rank_{meeting.place.rank}.log"
    try:
        with into_file(log):
            _launch(from_dict(heard["config"]), run_dir, options)
    except Da3poError as error:
        error.where = f"{error.where}; log in {log}" if error.where else f"log in {log}"
        raise
    except Exception as error:
        raise RankFailed(f"{type(error).__name__}: {error}", where=f"log in {log}") from error
    return run_dir
