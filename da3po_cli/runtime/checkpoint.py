"""Checkpoints: written beside and renamed, the newest kept, old ones deleted only once the new one is whole."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3po_cli.errors import UsageError
from da3po_cli.runtime import Comm, Policy
from da3po_cli.runtime.collect import RolloutSource

STATE_FILE = "state.json"


def saved_steps(directory: Path) -> list[int]:
    """Steps with a whole checkpoint in `directory`, in ascending order."""
    found = (path.parent.name.removeprefix("step_") for path in directory.glob(f"step_*/{STATE_FILE}"))
    return sorted(int(name) for name in found if name.isdigit())


def checkpoint_path(directory: Path, step: int | None) -> tuple[int, Path]:
    """Step and path of the whole checkpoint `step` (None: the latest) in `directory`.

    Raises:
        UsageError: there is no such checkpoint; lists those that exist.
    """
    steps = saved_steps(directory)
    if step is None and steps:
        step = steps[-1]
    if step is None or step not in steps:
        wanted = "no whole checkpoint" if step is None else f"no checkpoint of step {step}"
        raise UsageError(
            f"{wanted} (steps saved: {', '.join(map(str, steps)) or 'none'})",
            where=str(directory),
            hint="name one of these steps; a new run starts with --overwrite or another --name",
        )
    return step, directory / f"step_{step}"


@dataclass(frozen=True)
class CheckpointStore:
    """checkpoints/step_N/{policy/, state.json} of one run; `state.json` is written last."""

    directory: Path
    keep: int
    policy: Policy
    source: RolloutSource
    comm: Comm

    def save(self, step: int) -> None:
        """Write checkpoint `step`; collective. An interrupted save leaves only a directory whose name says so."""
        partial, whole = self.directory / f"partial_{step}", self.directory / f"step_{step}"
        if self.comm.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            (partial / "policy").mkdir(parents=True)
        self.comm.barrier()
        self.policy.save(partial / "policy")
        self.comm.barrier()
        if self.comm.rank == 0:
            state = {"step": step, "source": self.source.state()}
            (partial / STATE_FILE).write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")
            shutil.rmtree(whole, ignore_errors=True)
            partial.rename(whole)
            for old in saved_steps(self.directory)[: -self.keep]:
                shutil.rmtree(self.directory / f"step_{old}")
        self.comm.barrier()

    def load(self, step: int | None) -> int:
        """Restore checkpoint `step` (None: the latest) on any layout; returns its step.

        Raises:
            UsageError: there is no such checkpoint.
        """
        step, path = checkpoint_path(self.directory, step)
        self.policy.load(path / "policy")
        state: dict[str, Any] = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        self.source.load_state(state["source"])
        return step
