"""Checks of the machine: Python, platform, cores, memory, shared memory, files, directories."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from da3po_cli.config.paths import expanded
from da3po_cli.doctor.findings import Context, Finding, fail, gib, ok, warn

TESTED_PYTHON = ((3, 11), (3, 12))
FEW_FILES, TOO_FEW_FILES = 1024, 256
"""A rank of the demo has 80 files open; sockets to other ranks and the files of a checkpoint come on top."""
SMALL_SHM = 1 << 30
"""NCCL's buffers between the GPUs of a machine; a container has 64 MiB unless told otherwise."""
RUN_BYTES = 64 << 20
"""Metrics, logs and rollouts of a short run, where the checkpoint's size is not known."""


def python(context: Context) -> Iterator[Finding]:
    version = sys.version_info[:2]
    found = f"{platform.python_version()} ({sys.executable})"
    facts: dict[str, Any] = {"version": platform.python_version(), "executable": sys.executable}
    if version in TESTED_PYTHON:
        yield ok("python", found, **facts)
    elif version < TESTED_PYTHON[0]:
        yield fail("python", found, "Python 3.11 or 3.12", **facts)
    else:
        yield warn("python", f"{found}: not tested", "Python 3.11 or 3.12", **facts)


def system(context: Context) -> Iterator[Finding]:
    libc = " ".join(platform.libc_ver()).strip()
    found = " ".join(filter(None, (platform.system(), platform.machine(), platform.release(), libc)))
    facts: dict[str, Any] = {
        "system": platform.system(),
        "machine": platform.machine(),
        "release": platform.release(),
        "libc": libc,
    }
    if platform.system() != "Linux":
        yield fail("platform", found, "Linux, such as a container or WSL", **facts)
    elif platform.machine() != "x86_64":
        yield warn("platform", f"{found}: not tested", "x86_64", **facts)
    else:
        yield ok("platform", found, **facts)


def cores(context: Context) -> Iterator[Finding]:
    own = len(os.sched_getaffinity(0))
    quota = cpu_quota(context.root)
    usable = own if quota is None else min(own, quota)
    limit = f", of which the container may use {quota:g}" if quota is not None and quota < own else ""
    found = f"{own}{limit}; {context.ranks} rank(s) in this config"
    facts = {"cores": own, "quota": quota, "ranks": context.ranks}
    if usable < context.ranks:
        fix = "more cores, or fewer ranks: parallel.data=1" if not context.cuda else "a core or more for each GPU"
        yield warn("cores", found, fix, **facts)
    else:
        yield ok("cores", found, **facts)


def memory(context: Context) -> Iterator[Finding]:
    total, available = memory_bytes(context.root)
    facts = {"total": total, "available": available}
    found = f"{gib(available)} of {gib(total)} available"
    needed = None  # on GPUs the host's memory is not what runs out
    if not context.cuda and context.estimate is not None:
        needed = context.ranks * context.estimate.stage.peak
    if needed is not None and needed > available:
        yield warn(
            "memory",
            f"{found}; this config takes about {gib(needed)}",
            "end other programs, or fewer ranks: parallel.data=1",
            **facts,
            estimate=needed,
        )
    else:
        yield ok("memory", found, **facts, estimate=needed)


def shared_memory(context: Context) -> Iterator[Finding]:
    shm = context.root / "dev/shm"
    several = context.cuda and context.ranks > 1
    fix = "docker run --ipc=host (or --shm-size=16g); in Kubernetes an emptyDir of medium Memory at /dev/shm"
    if not shm.is_dir():
        yield fail("shared memory", "/dev/shm is missing", fix, needed=several, bytes=0, free=0)
        return
    usage = shutil.disk_usage(shm)
    found = f"/dev/shm has {gib(usage.free)} of {gib(usage.total)} free"
    if several and usage.free < SMALL_SHM:
        yield warn("shared memory", f"{found}; NCCL needs it", fix, bytes=usage.total, free=usage.free)
    else:
        yield ok("shared memory", found, bytes=usage.total, free=usage.free)


def open_files(context: Context) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = ["unlimited" if limit == resource.RLIM_INFINITY else f"{limit}" for limit in (soft, hard)]
    found = f"{words[0]} per process (hard limit {words[1]})"
    facts: dict[str, Any] = {"soft": soft, "hard": hard}
    few = soft != resource.RLIM_INFINITY
    reachable = hard == resource.RLIM_INFINITY or hard >= FEW_FILES
    fix = f"ulimit -n {words[1] if few and reachable and hard != soft else 65536}" + (
        "" if reachable else " as root, or LimitNOFILE of the service"
    )
    if few and soft < TOO_FEW_FILES:
        yield fail("open files", f"{found}: a rank opens more", fix, **facts)
    elif few and soft < FEW_FILES:
        yield warn("open files", f"{found}: little", fix, **facts)
    else:
        yield ok("open files", found, **facts)


def runs_directory(context: Context) -> Iterator[Finding]:
    each = None if context.estimate is None else context.estimate.checkpoint_bytes
    kept = context.config.checkpoint.keep + 1 + context.config.checkpoint.keep_best  # one is being written
    wanted = RUN_BYTES if each is None else each * kept
    what = f"; {kept} checkpoints of {gib(each)} at a time" if each is not None else ""
    yield _directory("runs", context.runs, "DA3PO_RUNS", wanted, what, checkpoint=each)


def home_directory(context: Context) -> Iterator[Finding]:
    home = expanded(context.env.get("DA3PO_HOME") or "~/.cache/da3po")
    yield _directory("cache", home, "DA3PO_HOME", 0, "", needed=False)


def temporary_directory(context: Context) -> Iterator[Finding]:
    try:
        place = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        yield fail("temporary files", str(error), "TMPDIR=DIR of a directory that you may write to")
        return
    yield _directory("temporary files", place, "TMPDIR", 0, "")


def _directory(
    name: str, path: Path, variable: str, wanted: int, what: str, *, needed: bool = True, **details: int | None
) -> Finding:
    """Whether files can be written at `path` or, where it does not exist yet, it can be made; and the room there."""
    place = nearest_existing(path)
    usage = shutil.disk_usage(place)
    facts = {"path": str(path), "free": usage.free, "total": usage.total, "wanted": wanted, **details}
    why = why_not_writable(place)
    other = f"{variable}=DIR on another disk"
    if not place.is_dir():
        return fail(name, f"{path}: {place} is not a directory", other, needed=needed, **facts)
    if why is not None:
        return fail(name, f"{path}: {why}", other, needed=needed, **facts)
    found = f"{path}: {gib(usage.free)} free{what}"
    if usage.free < wanted:
        return fail(name, f"{found}: too little", f"free {gib(wanted)}, or {other}", needed=needed, **facts)
    return ok(name, found, **facts)


# ---------------------------------------------------------------------------------------------------------- measures


def nearest_existing(path: Path) -> Path:
    """`path`, or the nearest directory above it that is there."""
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def why_not_writable(place: Path) -> str | None:
    """None where a file of a page can be written; it has no name, or is gone again. Else the reason."""
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"cannot write: {error.strerror}"
    return None


def memory_bytes(root: Path = Path("/")) -> tuple[int, int]:
    """(total, available) of this machine or container, bytes."""
    told = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines() if ":" in line)
    total, available = (int(told[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    for group in _groups(root, "memory"):
        limit = _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")
        if limit is None or limit >= total:
            continue
        used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
        cached = _inactive_file(group / "memory.stat")  # given back when something else needs it
        total, available = limit, min(available, max(0, limit - used + cached))
    return total, available


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores that the control groups of this process leave it; None is no limit."""
    quotas: list[float] = []
    for group in _groups(root, "cpu"):
        words = _text(group / "cpu.max").split()
        if len(words) != 2:
            words = [_text(group / f"cpu.cfs_{part}_us").strip() for part in ("quota", "period")]
        if all(word.isdecimal() and int(word) for word in words):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The control groups of this process from the outermost in: version 2, and version 1 of a controller."""
    mounts = {"": root / "sys/fs/cgroup", controller: root / "sys/fs/cgroup" / controller}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        mount = next((mounts[name] for name in names.split(",") if name in mounts), None)
        if mount is None:
            continue
        yield mount  # in a container the path may be that of the host
        inner = mount
        for part in path.strip("/").split("/") if path.strip("/") else ():
            inner /= part
            yield inner


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None


def _inactive_file(stat: Path) -> int:
    for line in _text(stat).splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdecimal():
            return int(value)
    return 0
