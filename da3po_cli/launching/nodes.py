"""Ranks that somebody else started (torchrun, srun): where this one stands, and how all of them come to one job.

Every node runs the same command. Rank 0 alone resolves it, makes the run directory and decides whether the job goes
on from an earlier attempt; the others hear from it what to do, over a TCP store, before there is a process group:

    others                                         rank 0
    arrive/K   this rank's host and restarts  -->
                                              <--  job       config, run, attempt, resume; or: end, with an exit code
    sees/K     whether K sees rank 0's files  -->
                                              <--  verdict   go, or: end
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from da3po_cli.errors import Da3poError, EnvironmentProblem

if TYPE_CHECKING:
    from torch.distributed import TCPStore

ARRIVAL_SECONDS = 600.0  # from the first rank to the last; nodes of a job may start minutes apart
FILE_SECONDS = 15.0  # until a file that one node wrote is seen on the others, with the caches of NFS
_STORE, _NONCE = "da3po/store", "da3po/nonce"
_PROCESS = secrets.token_hex(8)


@dataclass(frozen=True)
class Place:
    """A rank that somebody else started."""

    rank: int
    local_rank: int
    world: int
    local_world: int
    job: str
    """The same on all ranks of the job, and another for the next job where the launcher tells; else empty."""
    restarts: int = 0
    """How often the launcher has started this rank again: torchrun after a failure, Slurm after a requeue."""


def outer_launcher(env: Mapping[str, str] = os.environ) -> Place | None:
    """This process's place under torchrun (RANK, WORLD_SIZE) or a job step of srun with several tasks."""
    if "RANK" in env and "WORLD_SIZE" in env:
        world = int(env["WORLD_SIZE"])
        job = env.get("TORCHELASTIC_RUN_ID", "")
        return Place(
            rank=int(env["RANK"]),
            local_rank=int(env.get("LOCAL_RANK", env["RANK"])),
            world=world,
            local_world=int(env.get("LOCAL_WORLD_SIZE", world)),
            job=env.get("SLURM_JOB_ID", "") if job in ("", "none") else job,
            restarts=int(env.get("TORCHELASTIC_RESTART_COUNT", "0")) + int(env.get("SLURM_RESTART_COUNT", "0")),
        )
    if "SLURM_PROCID" in env and int(env.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        world = int(env["SLURM_STEP_NUM_TASKS"])
        alone = len([part for part in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]) == 1
        return Place(
            rank=int(env["SLURM_PROCID"]),
            local_rank=0 if alone else int(env.get("SLURM_LOCALID", "0")),  # --gpus-per-task=1: its device is 0
            world=world,
            local_world=int(env.get("SLURM_STEP_TASKS_PER_NODE", str(world)).split("(")[0].split(",")[0]),
            job=env["SLURM_JOB_ID"],
            restarts=int(env.get("SLURM_RESTART_COUNT", "0")),
        )
    return None


def rendezvous(place: Place) -> None:
    """Set what torch.distributed's env:// reads; torchrun has done so, srun has not."""
    if "MASTER_ADDR" not in os.environ:
        nodes = os.environ.get("SLURM_STEP_NODELIST", "localhost")
        first = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
        os.environ["MASTER_ADDR"] = first.stdout.split()[0]
    os.environ.setdefault("MASTER_PORT", str(20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20000))
    for name, value in (("RANK", place.rank), ("LOCAL_RANK", place.local_rank), ("WORLD_SIZE", place.world)):
        os.environ[name] = str(value)
    os.environ["LOCAL_WORLD_SIZE"] = str(place.local_world)


# -------------------------------------------------------------------------------------------------- the job's identity


def identity(place: Place, env: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What an attempt notes of the job that it belongs to, for `same_job`."""
    step = f"{env['SLURM_JOB_ID']}.{env.get('SLURM_STEP_ID', '')}" if "SLURM_PROCID" in env else ""
    agent = f"{socket.gethostname()}:{os.getppid()}" if "TORCHELASTIC_RUN_ID" in env else step
    return {"job": place.job, "launcher": agent, "process": _PROCESS}


def same_job(attempt: Mapping[str, Any], own: Mapping[str, Any], restarts: int) -> bool:
    """Whether the last attempt of a run belongs to the job of this process, whose ranks have been started again.

    The launcher itself is the surest sign: an agent of torchrun outlives its workers. The agents of other nodes count
    no restart when they only follow, so one that counts is enough.

    Args:
        attempt: of run.json, with what `identity` noted; without it the run was not started so.
        own: `identity` of this process.
        restarts: the highest count of all ranks.
    """
    if "job" not in attempt or attempt["process"] == own["process"]:  # a script may train twice
        return False
    if own["launcher"] and attempt["launcher"] == own["launcher"]:
        return True
    return restarts > 0 and attempt["job"] == own["job"]


# ---------------------------------------------------------------------------------------------------------- the store


def open_store(rank: int) -> TCPStore:
    """A store that is new in this attempt, on all ranks; torch.distributed will use it too.

    torchrun lends its ranks a store that outlives them. After a restart it still holds the addresses of the ranks that
    are gone, and a process group made over it does not come to be (seen in torch 2.13). So rank 0 opens another one,
    and the lent one only says where it is.

    Raises:
        EnvironmentProblem: rank 0 is not to be reached.
    """
    from torch.distributed import TCPStore

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    patience = timedelta(seconds=ARRIVAL_SECONDS)
    lends = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not lends and not _kept:  # rank 0's own, as new as the rank
        _kept.append(_own_store(host, port) if rank == 0 else _reach(host, port, time.monotonic() + ARRIVAL_SECONDS))
        return _kept[-1]
    lent = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=patience)
    key = f"{_STORE}/{len(_kept)}"  # a script may train twice, and the first store is still there
    if rank == 0:
        store, nonce = _own_store(host, 0), secrets.token_hex(8)
        store.set(_NONCE, nonce)
        lent.set(key, f"{store.port} {nonce}")
    else:
        store = _find(lent, key, host, rank)
    _kept.append(store)
    os.environ |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "False"}
    return store


def _own_store(host: str, port: int) -> TCPStore:
    """Rank 0's; `multi_tenant` lets torch.distributed open the same one again in this process."""
    from torch.distributed import DistNetworkError, TCPStore

    patience = timedelta(seconds=ARRIVAL_SECONDS)
    try:
        return TCPStore(host, port, is_master=True, wait_for_workers=False, multi_tenant=True, timeout=patience)
    except DistNetworkError as error:
        raise EnvironmentProblem(
            f"rank 0 cannot listen on port {port}: {str(error).splitlines()[0]}",
            where="MASTER_ADDR, MASTER_PORT",
            hint="MASTER_ADDR is the node of rank 0, and MASTER_PORT one that is free there",
        ) from error


def _find(lent: TCPStore, key: str, host: str, rank: int) -> TCPStore:
    """Follow what the lent store says until it leads to a rank 0 that is alive and new to this rank.

    It may be of the attempt before: gone, or about to be, where the agents do not wait for each other.
    """
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while True:
        port, nonce = lent.get(key).decode().split()
        if _listens(host, int(port)):
            store = _reach(host, int(port), deadline)
            right = store.check([_NONCE]) and store.get(_NONCE).decode() == nonce
            if right and store.add(f"da3po/found/{rank}", 1) == 1:
                return store
        if time.monotonic() > deadline:
            raise _unreached(host, int(port))
        time.sleep(0.2)


def _reach(host: str, port: int, deadline: float) -> TCPStore:
    from torch.distributed import TCPStore

    while not _listens(host, port):  # TCPStore would retry too, and fill the log with stack traces
        if time.monotonic() > deadline:
            raise _unreached(host, port)
        time.sleep(0.2)
    patience = timedelta(seconds=ARRIVAL_SECONDS)
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=patience)


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def _unreached(host: str, port: int) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"no rank 0 at {host}:{port} within {ARRIVAL_SECONDS:.0f} s",
        where="MASTER_ADDR, MASTER_PORT",
        hint="the same command on every node, and an address that all nodes reach; see also the output of rank 0",
    )


# -------------------------------------------------------------------------------------------------------- the meeting


class Ended(Da3poError):
    """Rank 0 has ended the job before it began, and said why; nothing more to say."""

    def __init__(self, exit_code: int, run: str | None) -> None:
        super().__init__("rank 0 has ended the job; its output says why")
        self.exit_code, self.run = exit_code, run


class Meeting:
    """All ranks of the job, before there is a process group. Leaving it by an exception on rank 0 ends it for all.

    Attributes:
        restarts: the highest number of restarts of any rank (on rank 0).
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.restarts = place.restarts
        self._done = False

    def __enter__(self) -> Meeting:
        rendezvous(self.place)
        self._store = open_store(self.place.rank)
        arrived = {"host": socket.gethostname(), "restarts": self.place.restarts}
        if self.place.rank > 0:
            self._store.set(f"da3po/arrive/{self.place.rank}", json.dumps(arrived))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.place.rank == 0 and not self._done:
            self.end(error.exit_code if isinstance(error, Da3poError) else 1 if error else 0)

    def gather(self) -> None:
        """On rank 0: wait for all the others.

        Raises:
            EnvironmentProblem: some did not come.
        """
        restarts = [found["restarts"] for found in self._from_all("arrive", ARRIVAL_SECONDS).values()]
        self.restarts = max([self.place.restarts, *restarts])

    def _from_all(self, what: str, seconds: float) -> dict[int, dict[str, Any]]:
        keys = {rank: f"da3po/{what}/{rank}" for rank in range(1, self.place.world)}
        deadline = time.monotonic() + seconds
        while not self._store.check(list(keys.values())):
            if time.monotonic() > deadline:
                missing = [str(rank) for rank, key in keys.items() if not self._store.check([key])]
                raise EnvironmentProblem(
                    f"{len(missing)} of {self.place.world} ranks did not arrive within {seconds:.0f} s: "
                    f"{', '.join(missing[:16])}",
                    where="launcher",
                    hint="see their output; every node must run the same command",
                )
            time.sleep(0.1)
        return {rank: json.loads(self._store.get(key)) for rank, key in keys.items()}

    def tell(self, name: str, **value: Any) -> None:
        """On rank 0."""
        self._store.set(f"da3po/{name}", json.dumps(value))

    def end(self, exit_code: int, run: str | None = None) -> None:
        """On rank 0: there will be no job, or no more of it than there was. `run` has nothing left to do."""
        for name in ("job", "verdict"):
            self.tell(name, end=exit_code, run=run)
        self._done = True

    def hear(self, name: str) -> dict[str, Any]:
        """On the other ranks.

        Raises:
            Ended: with the exit code of rank 0.
        """
        heard = json.loads(self._store.get(f"da3po/{name}"))
        if "end" in heard:
            raise Ended(heard["end"], heard["run"])
        return heard

    def show(self, token: Path) -> None:
        """On rank 0, which has written `token`: whether all ranks see it, since the job needs a shared run directory.

        Every rank writes its part of a checkpoint into the run directory.

        Raises:
            EnvironmentProblem: some do not see it.
        """
        found = self._from_all("sees", ARRIVAL_SECONDS)
        blind = sorted({answer["host"] for answer in found.values() if not answer["sees"]})
        if blind:
            raise EnvironmentProblem(
                f"{', '.join(blind[:8])}: no access to the files that rank 0 on {socket.gethostname()} writes; every "
                "rank writes its part of a checkpoint there",
                where=str(token.parent.parent.parent.absolute()),
                hint="DA3PO_RUNS=DIR, on a file system that all nodes share under one path",
            )
        self.tell("verdict")
        self._done = True

    def look(self, token: Path, content: str) -> None:
        """On the other ranks: answer `show`, and wait for its verdict."""
        sees = {"host": socket.gethostname(), "sees": _appears(token, content)}
        self._store.set(f"da3po/sees/{self.place.rank}", json.dumps(sees))
        self.hear("verdict")


_kept: list[TCPStore] = []  # until the process ends: on rank 0 it is the server of the process group, too


def _appears(file: Path, content: str) -> bool:
    deadline = time.monotonic() + FILE_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError):
            if file.read_text() == content:
                return True
        time.sleep(0.2)
    return False


def redirect(log: Path) -> None:
    """Send stdout and stderr to one file, for C libraries too."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


@contextmanager
def into_file(log: Path) -> Iterator[None]:
    """stdout and stderr of this process go to one file, those of C libraries too; a traceback as well."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    redirect(log)
    try:
        yield
    except Exception:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, former in enumerate(saved, 1):
            os.dup2(former, number)
            os.close(former)
