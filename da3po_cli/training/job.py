"""A training job from what was asked for to its end: prepare, make the run directory, launch.

`da3po train` and `da3po_cli.train` are thin covers of `run`.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from da3po_cli.config.load import config_hash, dump, from_dict
from da3po_cli.config.schema import Config
from da3po_cli.errors import Da3poError, EnvironmentProblem, RankFailed, Terminated
from da3po_cli.launching import launch as launching
from da3po_cli.launching.launch import AGAIN, Place, WorkerOptions
from da3po_cli.launching.nodes import Ended, Meeting, identity, into_file, outer_launcher
from da3po_cli.output import Out
from da3po_cli.runs.claim import claim
from da3po_cli.runs.directory import RunDir, command_line, runs_root
from da3po_cli.training.prepare import Job, Request, missing_packages, prepare

TOKEN = "token"  # beside the logs: what rank 0 writes to see whether all ranks see it


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
    with claim(run_dir.path, "run.name"):
        if job.resume != AGAIN:  # another job may have made it since it was looked at
            run_dir.check_free(resume=job.resume, overwrite=request.overwrite)
        _work(out, request, job, announce, meeting, isolated)
        from da3po_cli.reports.build import report_after

        report_after(out, run_dir)
    return run_dir


def _work(out: Out, request: Request, job: Job, announce: Announce, meeting: Meeting | None, isolated: bool) -> None:
    """Make the run directory, which is claimed, and launch."""
    run_dir, place, again = job.run_dir, job.place, job.resume == AGAIN
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
