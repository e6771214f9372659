"""Commands of the tests in interpreters that have their libraries: forked from a process that has imported them.

Importing torch, vLLM and Megatron-Core takes ten times as long as a step of the demo, in every process and rank that a
test starts. Here one process per worker of pytest imports these libraries, and nothing of this project; a command is a
fork of it that runs as `python -m MODULE` or `python SCRIPT` would, with its own arguments, environment, files and
process group. What it starts in turn (torch elastic's ranks) is forked from a process beside it that has run nothing.

`subprocess.Popen` decides: commands that need the libraries are forked; all others, and those whose environment the
libraries would have read when they were imported, start as ever. With COLD=1 in the environment all do.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import logging
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HEAVY = ("train", "eval", "ablate", "export")  # commands of da3po that import torch
MODULES = ("da3po_cli.launching.rank", "da3po_cli.evals.asking", "torch.distributed.run")
READ_AT_IMPORT = (
    "HF_HOME",
    "HF_HUB_",
    "TRANSFORMERS_",
    "VLLM_",
    "MPL",
    "HOME",
    "XDG_",
    "LD_",
    "CUDA_",
    "LC_",
    "LANG",
    "PYTHON",
)
SET_CHILD_SUBREAPER = 36  # linux/prctl.h
LIBRARIES = [
    "torch",
    "torch.distributed.run",
    "torch.distributed.launcher.api",
    "torch.distributed.checkpoint",
    "torch._dynamo",
    "torch._inductor",
    "vllm",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen3",
    "vllm.entrypoints.llm",
    "megatron.core",
    "megatron.core.parallel_state",
    "megatron.core.models.gpt",
    "megatron.core.optimizer",
    "megatron.core.distributed",
    "megatron.core.dist_checkpointing",
    "megatron.core.pipeline_parallel",
    "transformers",
    "transformers.models.auto.modeling_auto",
    "matplotlib.pyplot",
    "omegaconf",
    "rich.progress",
    "typer",
    "math_verify",
]

_execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_server: socket.socket | None = None
_environment: Mapping[str, str] = {}


def install() -> None:
    """Fork the heavy commands of this process; the libraries are imported when the first one starts."""
    global _environment
    if os.environ.get("COLD") != "1" and os.environ.get("OMP_NUM_THREADS") == "1" and sys.platform == "linux":
        from da3po_cli.rollouts.process import engine_environment

        _environment = {**os.environ, **engine_environment()}
        subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


def wanted(args: Any, env: Mapping[str, str]) -> bool:
    """Whether this command needs the libraries, and would find them as it would have imported them itself."""
    if isinstance(args, str | bytes) or not args or args[0] != sys.executable:
        return False
    rest = [str(one) for one in args[1:] if one != "-u"]
    if rest[:2] == ["-m", "da3po_cli"]:
        heavy = rest[2:3] != [] and rest[2] in HEAVY and not {"--help", "--dry-run"} & set(rest)
    elif rest[:1] == ["-m"]:
        heavy = rest[1] in MODULES
    else:
        heavy = rest != [] and rest[0].endswith(".py")
    names = {name for name in {*env, *_environment} if name.startswith(READ_AT_IMPORT)} - {"PYTHONPATH"}
    same = all(env.get(name, _environment.get(name)) == _environment.get(name) for name in names)
    return heavy and same and env.get("OMP_NUM_THREADS", "1") == "1" and env.get("COLD") != "1"


def _execute_child(
    self: Any, args: Any, executable: Any, preexec: Any, close: bool, pass_fds: Any, cwd: Any, env: Any, *rest: Any
) -> None:
    """In place of `Popen._execute_child`, whose parameters it has."""
    given = os.environ if env is None else env
    plain = executable is None and preexec is None and not pass_fds and not rest[2]  # a shell
    if not plain or not wanted(args, given):
        _execute(self, args, executable, preexec, close, pass_fds, cwd, env, *rest)
        return
    pipes, session = rest[3:9], rest[13]
    request = {
        "args": [str(one) for one in args],
        "cwd": os.path.abspath(cwd or "."),
        "env": dict(given),
        "session": bool(session),
        "cores": sorted(os.sched_getaffinity(0)),
    }
    standard = [pipes[0], pipes[3], pipes[5]]  # its ends of (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
    try:
        self.pid = _ask(request, [own if fd == -1 else fd for own, fd in enumerate(standard)])
    finally:
        self._close_pipe_fds(*pipes)
    self.returncode, self._child_created = None, True


def _ask(request: Mapping[str, Any], files: Sequence[int]) -> int:
    """Have a command started with `files` as its stdin, stdout and stderr; its process id, a child of this process."""
    global _server
    if _server is None:
        _server, theirs = socket.socketpair()
        code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import warm; warm.main({theirs.fileno()})"
        command = [sys.executable, "-c", code]
        subprocess.Popen(command, env=dict(_environment), pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
    text = json.dumps(request).encode()
    prctl = ctypes.CDLL(None).prctl
    prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # the process that starts it ends at once, and leaves it to this one
    try:
        socket.send_fds(_server, [len(text).to_bytes(8, "big")], list(files))
        _server.sendall(text)
        return int.from_bytes(_server.recv(8, socket.MSG_WAITALL), "big")
    finally:
        prctl(SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def serve(asked: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Start commands until nobody can ask any more. Returns in the processes that it starts: what each is to run."""
    while True:
        head, files, _, _ = socket.recv_fds(asked, 8, 3)
        if len(head) < 8:
            os._exit(0)
        text = asked.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            request = json.loads(text)
            if request["session"]:
                os.setsid()
            while os.getppid() == between:
                time.sleep(0.0005)
            os.write(tell, os.getpid().to_bytes(8, "big"))
            os.close(tell)
            os.close(told)
            asked.close()
            return request, files
        os.close(tell)
        for file in files:
            os.close(file)
        os.waitpid(between, 0)
        asked.sendall(os.read(told, 8))
        os.close(told)


def become(request: Mapping[str, Any], files: Sequence[int]) -> list[str]:
    """Make this process what a new interpreter would be, but for the libraries; what that one would run."""
    global _server
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    os.sched_setaffinity(0, request["cores"])
    _server, theirs = socket.socketpair()
    if os.fork() == 0:
        _server.close()
        for file in files:
            os.close(file)
        return become(*serve(theirs))
    theirs.close()
    for own, file in enumerate(files):
        os.dup2(file, own)
        os.close(file)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    tempfile.tempdir = None
    return request["args"]


def run(args: Sequence[str]) -> None:
    """`python ARGS`, in this process."""
    rest = [one for one in args[1:] if one != "-u"]
    sys.stdout.reconfigure(write_through="-u" in args)  # type: ignore[union-attr]
    searched = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:0] = [os.getcwd() if rest[0] == "-m" else str(Path(rest[0]).resolve().parent), *searched]
    sys.orig_argv = list(args)
    if any((Path(entry) / "sitecustomize.py").exists() for entry in searched):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    if rest[0] == "-m":
        sys.argv = rest[1:]
        sys.modules.pop(rest[1], None)
        runpy._run_module_as_main(rest[1])  # type: ignore[attr-defined]
    else:
        sys.argv = rest
        runpy.run_path(rest[0], run_name="__main__")


def main(fd: int) -> None:
    """Import the libraries, and fork until the worker of pytest has gone."""
    sys.path[:] = [entry for entry in sys.path if entry != str(HERE)]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    global _environment
    _environment = dict(os.environ)
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as the product does; what a user sees is tested with cold commands
        for name in LIBRARIES:
            importlib.import_module(name)
    logging.disable(logging.NOTSET)
    strangers = [one for one in sys.modules if one.partition(".")[0] in ("da3po_cli", "megatron_bridge")]
    assert not strangers, f"a copy of this project could not bring its own: {strangers}"
    gc.collect()
    gc.freeze()
    run(become(*serve(socket.socket(fileno=fd))))
