"""The checkpoints of a run as files: which there are, which are whole, and how one comes and goes. No torch.

checkpoints/
  step_N/       a whole checkpoint
    policy/     the trainer's part: weights, optimizer, schedule, random state
    state.json  all else, and a table of the other files
  partial_N/    one that is being written or deleted; after a crash, what is left of it. Never read.
  replaced_N/   the former step_N, for the instant in which a new one takes its name

Directories change their names and never their contents, so a crash at any moment leaves every step_N whole. What is
learnt of a step later (`amend_state`) replaces its state.json in one go.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from da3po_cli.errors import UsageError

STATE_FILE = "state.json"
_STEP = re.compile(r"step_(\d+)")
_SHARD = ".distcp"  # Megatron's tensor files: too large to hash at every load


def saved_steps(directory: Path) -> list[int]:
    """Steps with a whole checkpoint in `directory`, in ascending order."""
    found = (_STEP.fullmatch(path.parent.name) for path in directory.glob(f"step_*/{STATE_FILE}"))
    return sorted(int(match[1]) for match in found if match)


def checkpoint_path(directory: Path, step: int | None) -> tuple[int, Path]:
    """Step and path of the whole checkpoint `step` (None: the latest) in `directory`.

    Raises:
        UsageError: there is no such checkpoint (lists those that exist), or it is damaged.
    """
    step, path, _ = find_state(directory, step)
    return step, path


def find_state(directory: Path, step: int | None) -> tuple[int, Path, dict[str, Any]]:
    """The same, with what `read_state` gives."""
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
    path = directory / f"step_{step}"
    return step, path, read_state(path)


def read_state(path: Path) -> dict[str, Any]:
    """state.json of the checkpoint at `path`, checked against its files: sizes, and the bytes of all but the shards.

    Raises:
        UsageError: a file is damaged or missing; names it, and the step to use instead.
    """
    file = path / STATE_FILE
    try:
        state: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        state["step"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, STATE_FILE, f"it is cut short or no state ({error})") from None
    for name, was in state.get("files", {}).items():
        try:
            size = (path / name).stat().st_size
        except OSError:
            raise _damaged(path, name, "it is missing") from None
        if size != was["bytes"]:
            raise _damaged(path, name, f"it has {size} bytes and was written with {was['bytes']}")
        if "sha256" in was and _digest(path / name) != was["sha256"]:
            raise _damaged(path, name, "its bytes are not those that were written")
    return state


def _damaged(path: Path, name: str, why: str) -> UsageError:
    match = _STEP.fullmatch(path.name)
    others = [step for step in saved_steps(path.parent) if match and step != int(match[1])]
    before = [step for step in others if match and step < int(match[1])]
    if before:
        hint = f"use the checkpoint before it: --resume {before[-1]} (to evaluate or export, step {before[-1]})"
    elif others:
        hint = f"use another one: --resume {others[0]}"
    else:
        hint = "there is no other checkpoint of this run: restore the file, or start anew with --overwrite"
    return UsageError(f"the checkpoint {path.name} is damaged: {name}: {why}", where=str(path / name), hint=hint)


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write state.json with the table of the files below `path`, and bring everything to the disk."""
    table: dict[str, dict[str, Any]] = {}
    for file in sorted(one for one in path.rglob("*") if one.is_file()):
        table[str(file.relative_to(path))] = {"bytes": _flush(file)}
        if file.suffix != _SHARD:
            table[str(file.relative_to(path))]["sha256"] = _digest(file)
    _put_state(path, {**state, "files": table})
    for folder in (one for one in path.rglob("*") if one.is_dir()):
        _flush_directory(folder)


def amend_state(path: Path, **changes: Any) -> None:
    """Replace keys of state.json of a whole checkpoint, whose other files stay as they are.

    Raises:
        UsageError: the checkpoint is damaged.
    """
    _put_state(path, read_state(path) | changes)


def _put_state(path: Path, state: dict[str, Any]) -> None:
    """state.json, on the disk before it gets its name, so that a crash leaves the old one or the new one."""
    fresh = path / f".{STATE_FILE}.tmp"
    try:
        fresh.write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")
        _flush(fresh)
        fresh.replace(path / STATE_FILE)
    finally:
        fresh.unlink(missing_ok=True)
    _flush_directory(path)


def publish(directory: Path, step: int) -> None:
    """partial_N, whole and on the disk, becomes step_N; one of that name makes way for it."""
    partial, whole = directory / f"partial_{step}", directory / f"step_{step}"
    former = directory / f"replaced_{step}"
    if whole.exists():
        whole.rename(former)
    partial.rename(whole)
    _flush_directory(directory)
    discard(former)


def discard(path: Path) -> None:
    """Delete a checkpoint: under a name of which it is known that nothing can be read from it."""
    partial = path.with_name(f"partial_{path.name.rpartition('_')[2]}")
    with suppress(OSError):  # deleting is no reason to end a run: the next start tries again
        if path.exists() and path != partial:
            shutil.rmtree(partial, ignore_errors=True)
            path.rename(partial)
        shutil.rmtree(partial, ignore_errors=True)


def recover(directory: Path) -> None:
    """Mend what a crash left behind. For the one process that writes here, before it does."""
    for former in directory.glob("replaced_*"):
        whole = directory / f"step_{former.name.removeprefix('replaced_')}"
        if whole.exists():
            discard(former)
        else:
            former.rename(whole)
    for partial in directory.glob("partial_*"):
        shutil.rmtree(partial, ignore_errors=True)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flush(file: Path) -> int:
    """Bring a file to the disk. Returns its size in bytes."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        return os.fstat(stream.fileno()).st_size


def _flush_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
