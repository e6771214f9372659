"""Errors of writing to a run directory, as a user can act on them."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from da3po_cli.errors import EnvironmentProblem

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """The body writes `path`.

    Raises:
        EnvironmentProblem: it cannot, with the reason and the free space.
    """
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Replace a file in one go, so that a crash or a full disk leaves the old one or the new one.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    with writing(path):
        path.parent.mkdir(exist_ok=True)
        replace_text(path, (f"{line}\n" for line in lines))


def replace_text(path: Path, pieces: Iterable[str]) -> None:
    """As `write_lines`, for text of any form; an OSError is the caller's to explain."""
    fresh = path.with_name(f".{path.name}.tmp")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def cannot_write(path: Path, error: OSError) -> EnvironmentProblem:
    """The error for a file or directory of a run that could not be written."""
    reason = error.strerror or str(error)
    hint = "see that the run directory can be written"
    if error.errno in FULL:
        reason += f" ({free_space(path)})"
        hint = "make room on the disk"
    return EnvironmentProblem(
        f"cannot write {path.name}: {reason}",
        where=str(path),
        hint=f"{hint}, then go on from the last whole checkpoint with --resume",
    )


def free_space(path: Path) -> str:
    """Free and whole space of the file system that `path` is on, or will be."""
    while not path.exists() and path != path.parent:
        path = path.parent
    usage = shutil.disk_usage(path)
    return f"{usage.free / 1e6:,.1f} MB free of {usage.total / 1e6:,.1f} MB"
