"""Which checkpoint a user means: RUN, RUN@STEP, a run's directory, or the checkpoint's own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from da3po_cli.config.paths import expanded
from da3po_cli.errors import UsageError
from da3po_cli.runs.directory import RunDir, find_run
from da3po_cli.runs.checkpoints import STATE_FILE, checkpoint_path

_STEP_DIRECTORY = re.compile(r"step_(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """One whole checkpoint of a run."""

    run: RunDir
    step: int
    path: Path

    @property
    def policy(self) -> Path:
        """Where the weights are."""
        return self.path / "policy"


def find_checkpoint(text: str, step: int | None = None) -> Checkpoint:
    """The checkpoint that `text` and `--step` name; the newest of a run where neither names a step.

    Args:
        text: a run's name or directory, `latest`, RUN@STEP, or .../checkpoints/step_N.

    Raises:
        UsageError: no such run or checkpoint, an incomplete one, or two different steps named.
    """
    directory = expanded(text)
    found = _STEP_DIRECTORY.fullmatch(directory.name)
    if found and directory.is_dir():
        return _checked(_run_of(directory), _one_step(int(found[1]), step, text))
    name, at, suffix = text.rpartition("@")
    if at and not directory.exists():
        if not suffix.isdecimal():
            raise UsageError(f"{suffix!r} is no step", where=text, hint="RUN@STEP, such as demo@40")
        return _checked(find_run(name), _one_step(int(suffix), step, text))
    return _checked(find_run(text), step)


def _run_of(directory: Path) -> RunDir:
    run = RunDir(directory.resolve().parent.parent)
    if directory.resolve().parent != run.checkpoints.resolve() or not run.config_file.is_file():
        raise UsageError(
            f"{directory} is not in the checkpoints of a run, so its config is unknown",
            where=str(run.config_file),
            hint="put it back to RUN/checkpoints/, beside the run's config.yaml",
        )
    return run


def _one_step(named: int, flag: int | None, text: str) -> int:
    if flag not in (None, named):
        raise UsageError(f"{text} names step {named} and --step says {flag}", where="--step", hint="leave out one")
    return named


def _checked(run: RunDir, step: int | None) -> Checkpoint:
    wanted = run.checkpoints / f"step_{step}"
    if step is not None and wanted.is_dir() and not (wanted / STATE_FILE).is_file():
        raise UsageError(
            f"the checkpoint of step {step} is incomplete: it has no {STATE_FILE}",
            where=str(wanted),
            hint="leave out the step for the newest whole checkpoint",
        )
    return Checkpoint(run, *checkpoint_path(run.checkpoints, step))
