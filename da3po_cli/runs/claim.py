"""One process at a time works in a directory: a file in it says which one, on which machine.

It needs no locks of the file system, which some have not, and tells those who come after who has it. The claim of a
process that has ended is taken over: on the same machine the kernel knows; of another machine, a claim counts as long as
its owner touches it.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from da3po_cli.errors import EnvironmentProblem, UsageError
from da3po_cli.runs.heartbeat import process_state

FILE = "claim.json"
TOUCH_SECONDS = 20.0
STALE_SECONDS = 180.0  # of another machine; file systems over a network show changes after up to a minute
_RESTARTS = (("SLURM_JOB_ID", "SLURM_RESTART_COUNT"), ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"))


@dataclass(frozen=True)
class Owner:
    """The process that has a directory."""

    host: str
    machine: str
    """Tells machines (and containers) of one name apart: where process ids mean the same."""
    pid: int
    born: str
    since: str
    token: str
    job: str = ""
    """Of the scheduler or torchrun; empty outside of them."""
    restarts: int = 0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


def owner_at_work(directory: Path) -> Owner | None:
    """Who has the directory; None where nobody has, or no more. Reads only."""
    owner = _read(directory / FILE)
    return owner if owner is not None and _alive(owner, directory / FILE) else None


def check_unclaimed(directory: Path, where: str) -> None:
    """Raises UsageError while somebody is at work in the directory; `where` is what asked for it."""
    owner = owner_at_work(directory)
    if owner is not None:
        raise _taken(directory, owner, where)


@contextmanager
def claim(directory: Path, where: str) -> Iterator[None]:
    """Have the directory, which is made, for as long as the body runs.

    Raises:
        UsageError: somebody has it; `where` is what asked for it.
        EnvironmentProblem: nothing can be written there.
    """
    own = _me()
    file = directory / FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _make(file, own, where)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write {file}: {error.strerror or error}",
            where=str(directory),
            hint="DA3PO_RUNS names another place; see its permissions, and the space that is left",
        ) from error
    ended = threading.Event()

    def touch() -> None:
        while not ended.wait(TOUCH_SECONDS):
            with suppress(OSError):
                os.utime(file)

    threading.Thread(target=touch, daemon=True, name="claim").start()
    try:
        yield
    finally:
        ended.set()
        with suppress(OSError):
            if _read(file) == own:
                file.unlink()
                directory.rmdir()  # where nothing came of it


def _make(file: Path, own: Owner, where: str) -> None:
    """Write the claim, where there is none or that of a process that has ended."""
    while True:
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            pass
        else:
            with os.fdopen(descriptor, "w") as made:
                json.dump(asdict(own), made)
            return
        owner = _read(file)
        if owner is None:  # gone meanwhile, or about to be written
            time.sleep(0.05)
            continue
        if _alive(owner, file) and not _before(owner, own):
            raise _taken(file.parent, owner, where)
        aside = file.with_name(f".{FILE}.{own.token}")
        with suppress(FileNotFoundError):  # somebody else was faster
            file.rename(aside)
            if _read(aside) != owner:  # and has it now
                aside.rename(file)
        aside.unlink(missing_ok=True)


def _read(file: Path) -> Owner | None:
    """The claim in a file; None where there is no file. What is no claim belongs to nobody that lives."""
    for _ in range(20):
        try:
            return Owner(**json.loads(file.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):  # it is just being written
            time.sleep(0.05)
    return Owner("?", "?", 0, "", "?", "")


def _alive(owner: Owner, file: Path) -> bool:
    if owner.machine == _machine():
        state, born = process_state(owner.pid)
        return state not in ("", "Z", "X") and born == owner.born
    probe = file.with_name(f".{FILE}.now.{secrets.token_hex(4)}")  # the clock of the file system, not of this machine
    try:
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
    except OSError:  # read only
        now = time.time()
    try:
        return now - file.stat().st_mtime < STALE_SECONDS
    except OSError:
        return False


def _before(owner: Owner, own: Owner) -> bool:
    """Whether it is of an earlier start of this very job, which the scheduler or torchrun has ended."""
    return bool(own.job) and owner.job == own.job and owner.restarts < own.restarts


def _me(env: Mapping[str, str] = os.environ) -> Owner:
    job, restarts = "", 0
    for name, count in _RESTARTS:
        if env.get(name):
            job, restarts = env[name], int(env.get(count) or 0)
            break
    born, since = process_state(os.getpid())[1], time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return Owner(socket.gethostname(), _machine(), os.getpid(), born, since, secrets.token_hex(8), job, restarts)


def _machine() -> str:
    """The machine since it was started, and the container: process ids count within it."""
    found = [socket.gethostname()]
    with suppress(OSError):
        found += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(found)


def _taken(directory: Path, owner: Owner, where: str) -> UsageError:
    return UsageError(
        f"somebody is at work in {directory}: {owner}",
        where=where,
        hint="wait for it, or end it; another --name. Its claim ends with the process, of another machine after "
        f"{STALE_SECONDS / 60:.0f} minutes",
    )
