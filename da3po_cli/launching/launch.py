"""From one command to all ranks of a job.

* An outer launcher (torchrun, srun) has started this process: it is one rank, and runs the worker. How such ranks agree
  on the job is in `da3po_cli.launching.nodes`.
* One rank: the worker runs in this process. No agent, so torch is imported once.
* Several ranks: one in-process launch of torch elastic, whose ranks are fresh interpreters
  (`da3po_cli.launching.rank`). Rank 0 inherits the terminal, the others write to logs/attempt_N/rank_K.log.

A rank that fails leaves rank_K.error.json; the earliest one is raised again here, as the error it was.
How signals reach the ranks is in `da3po_cli.launching.stop`.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

from da3po_cli import errors
from da3po_cli.config.load import from_dict
from da3po_cli.config.plan import layout
from da3po_cli.config.schema import Config
from da3po_cli.errors import Da3poError, RankFailed, Terminated
from da3po_cli.launching import stop
from da3po_cli.launching.nodes import Place, outer_launcher, rendezvous
from da3po_cli.launching.watchdog import watch
from da3po_cli.output import print_error, redact
from da3po_cli.rollouts.process import engine_environment
from da3po_cli.runs.directory import RunDir

__all__ = ["AGAIN", "Place", "WorkerOptions", "launch", "outer_launcher", "read_spec", "run_rank"]

WORKER = "da3po_cli.training.worker:train_worker"
AGAIN = "again"
ASKING = "rank_0.pid"  # beside the logs, while rank 0 takes requests to stop
SHUTDOWN_SECONDS = 10  # from a rank's failure, or from the signal that ends the job at once, to SIGKILL


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker must know of the invocation, beside the config."""

    attempt: int = 1
    resume: str | None = None
    """`latest`, a step as text, or None. AGAIN: ranks that were started again go on from the latest checkpoint, or
    from the beginning where there is none."""
    replay: str | None = None
    """Directory of saved rollouts to train on instead of generating."""
    json: bool = False
    quiet: bool = False

    @property
    def replay_dir(self) -> Path | None:
        return None if self.replay is None else Path(self.replay)


Worker = Callable[[Config, Path, WorkerOptions], None]


# ----------------------------------------------------------------------------------------------------------- launch


def launch(
    config: Config,
    run_dir: RunDir,
    options: WorkerOptions,
    *,
    worker: str = WORKER,
    isolated: bool = False,
    restarts: int = 0,
) -> int:
    """Run the job and wait for it. The run directory has been made (`RunDir.create`).

    Args:
        worker: `module:function` of type Worker.
        isolated: a single rank, too, gets an interpreter of its own, so that this one is left as it was.
        restarts: how often all ranks are started again, from the last checkpoint, when one fails. Under an outer
            launcher that is the launcher's to do.

    Returns:
        0.

    Raises:
        Da3poError: of the first rank that failed, with its kind, exit code and message.
        KeyboardInterrupt, Terminated: a signal came, and all ranks have ended: after the step and with a checkpoint,
            of which run.json has the step, or at once.
    """
    place = outer_launcher()
    world = place.world if place else layout(config).world
    _set_environment(place.local_world if place else world)
    if place is not None and place.rank > 0:  # the run directory is rank 0's
        rendezvous(place)
        run_rank(config, run_dir, options, worker)
        return 0
    with _noting_the_end(run_dir):
        if place is not None:
            rendezvous(place)
            run_rank(config, run_dir, options, worker)
        elif world == 1 and not isolated and not restarts:
            _alone()
            run_rank(config, run_dir, options, worker)
        else:
            _elastic(config, run_dir, options, worker, world, restarts)
    return 0


@contextmanager
def _noting_the_end(run_dir: RunDir) -> Iterator[None]:
    """Write to run.json how the attempt ended, unless the worker has; raise the signal that ended it."""
    try:
        yield
        attempt = run_dir.read()["attempts"][-1]
        if attempt.get("signal"):
            raise KeyboardInterrupt if attempt["signal"] == signal.SIGINT.name else Terminated
    except (KeyboardInterrupt, Terminated):
        run_dir.finish("interrupted")
        raise
    except BaseException:
        with suppress(OSError):  # the disk is full, which is what the error says
            run_dir.finish("failed")
        raise
    if "status" not in attempt:
        run_dir.finish("finished")


def _set_environment(local_world: int) -> None:
    """What torch and vLLM read when they are imported. The cores are shared by the ranks of this machine."""
    cores = len(os.sched_getaffinity(0))
    for name, value in (engine_environment() | {"OMP_NUM_THREADS": str(max(1, cores // local_world))}).items():
        os.environ.setdefault(name, value)


def _alone() -> None:
    """The environment of a job of one rank, as torchrun would set it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _elastic(config: Config, run_dir: RunDir, options: WorkerOptions, worker: str, world: int, restarts: int) -> None:
    logs = run_dir.attempt(options.attempt)
    spec = logs / "launch.json"
    spec.write_text(
        json.dumps(
            {
                "worker": worker,
                "config": asdict(config),
                "run_dir": str(run_dir.path.absolute()),
                "options": asdict(options),
                "launcher": os.getpid(),
            },
            indent=2,
        )
    )
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if os.environ.get("DA3PO_DEBUG") != "1":
        _silence("torch.distributed.elastic")  # `main` says better what the agent says
    launch_config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world,
        run_id=f"{run_dir.name}-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=restarts,
        monitor_interval=0.1,
        shutdown_timeout=SHUTDOWN_SECONDS,
        signals_to_handle="SIGQUIT",  # the others are the relay's
    )
    relay = _Relay(logs / ASKING)
    try:
        with relay.installed():
            elastic_launch(launch_config, sys.executable)("-m", "da3po_cli.launching.rank", str(spec))
    except SignalException as caught:
        _restore_terminal()
        raise (KeyboardInterrupt if caught.sigval == signal.SIGINT else Terminated) from None
    except ChildFailedError as failed:
        _restore_terminal()
        codes = {rank: failure.exitcode for rank, failure in failed.failures.items()}
        raise first_failure(logs, codes) from None
    if relay.asked is not None and "step" in run_dir.read()["attempts"][-1]:
        raise KeyboardInterrupt if relay.asked == signal.SIGINT else Terminated


class _Relay:
    """The launcher's handler: the first signal asks rank 0 to stop after its step, the next one ends all ranks."""

    def __init__(self, asking: Path) -> None:
        self._asking = asking
        self.asked: signal.Signals | None = None
        self._when = 0.0

    @contextmanager
    def installed(self) -> Iterator[None]:
        """In place of the handlers of this process; only a main thread has any."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self) for number in stop.ENDINGS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        from torch.distributed.elastic.multiprocessing import SignalException

        found = signal.Signals(number)
        if self.asked is None:
            try:
                os.kill(int(self._asking.read_text()), stop.ASK)
            except (OSError, ValueError):  # rank 0 is not in its loop
                raise SignalException(f"got {found.name}", found) from None
            self.asked, self._when = found, time.monotonic()
        elif time.monotonic() - self._when > stop.BOUNCE:
            raise SignalException(f"got {found.name} again", found)


def _silence(package: str) -> None:
    """Turn off the loggers of a package that has been imported; its modules may have set levels of their own."""
    for name in [package, *logging.root.manager.loggerDict]:
        if name == package or name.startswith(f"{package}."):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _restore_terminal() -> None:
    """Show the cursor again; a killed rank 0 may have hidden it for a live display."""
    if sys.stderr.isatty():
        sys.stderr.write("\033[?25h")
        sys.stderr.flush()


# ---------------------------------------------------------------------------------------------------------- one rank


def run_rank(config: Config, run_dir: RunDir, options: WorkerOptions, worker: str, *, launched: bool = False) -> None:
    """Run the worker as the rank that the environment names; note its error in rank_K.error.json and let it pass.

    Args:
        launched: `_elastic` started this rank, and keeps the signals.
    """
    rank, logs = int(os.environ["RANK"]), run_dir.attempt(options.attempt)
    stop.listen(rank, logs / ASKING if launched else None)
    module, _, function = worker.partition(":")

    def stalled(error: Da3poError, behind: int) -> None:
        note_error(error, logs, rank, about=behind)
        if not launched:  # nobody else will tell
            run_dir.finish("failed")
            error.message = f"rank {behind}: {error.message}"
            print_error(error, as_json=options.json)
            _restore_terminal()

    try:
        with watch(logs, rank, config.health.stall_timeout, stalled):
            entry = cast(Worker, getattr(importlib.import_module(module), function))
            entry(config, run_dir.path, options)
    except Exception as error:
        with suppress(OSError):  # a disk so full that it does not even hold this
            note_error(error, logs, rank)
        raise


def note_error(error: Exception, logs: Path, rank: int, *, about: int | None = None) -> None:
    """Write rank_K.error.json: what the launcher needs to raise the error again, and the traceback.

    Args:
        about: the rank whose error it is, where that one cannot tell; it may still write a file of its own.
    """
    known = error if isinstance(error, Da3poError) else None
    record = {
        "rank": rank if about is None else about,
        "time": time.time(),
        "type": type(error).__name__,
        "message": known.message if known else str(error),
        "hint": known.hint if known else None,
        "where": known.where if known else None,
        "exit_code": known.exit_code if known else 1,
        "known": known is not None,
        "traceback": "".join(traceback.format_exception(error)),
    }
    logs.mkdir(parents=True, exist_ok=True)
    fresh = logs / f".rank_{rank}.error.tmp"
    fresh.write_text(redact(json.dumps(record, indent=2)) + "\n")  # libraries put addresses into their errors
    fresh.replace(logs / f"rank_{rank}.error.json")


def first_failure(logs: Path, codes: Mapping[int, int]) -> Da3poError:
    """The error of the rank that failed first.

    The others often fail a moment later because their peer is gone, so time decides, not the order of ranks.

    Args:
        codes: exit code by rank as the agent saw it, for ranks that could not leave a file (negative: a signal).
    """
    records = [json.loads(file.read_text()) for file in logs.glob("rank_*.error.json")]
    killed = {rank: code for rank, code in codes.items() if code < 0 and code not in (-signal.SIGTERM, -signal.SIGINT)}
    if killed and not any(record["rank"] in killed for record in records):
        rank, code = min(killed.items())
        name = signal.Signals(-code).name
        memory = "; the machine may have run out of memory" if name == "SIGKILL" else ""
        return RankFailed(
            f"rank {rank} was ended by {name}{memory}",
            exit_code=128 - code,
            where=_log_name(logs, rank),
            hint="fewer train.micro_batch_tokens or rollout.max_sequences" if memory else None,
        )
    if not records:
        rank, code = min(codes.items(), default=(0, 1))
        return RankFailed(f"rank {rank} ended with exit code {code}", exit_code=code or 1, where=_log_name(logs, rank))
    return _revive(min(records, key=lambda record: record["time"]), logs)


def _revive(record: Mapping[str, Any], logs: Path) -> Da3poError:
    rank = record["rank"]
    if not record["known"]:
        return RankFailed(
            f"rank {rank} failed: {record['type']}: {record['message']}",
            where=_log_name(logs, rank),
            hint=f"this looks like a bug; the traceback is in {logs / f'rank_{rank}.error.json'}",
        )
    kind = getattr(errors, record["type"], Da3poError)
    error = Da3poError(record["message"], hint=record["hint"], where=record["where"])
    if isinstance(kind, type) and issubclass(kind, Da3poError) and kind is not errors.ConfigErrors:
        error = kind(record["message"], hint=record["hint"], where=record["where"])
    error.exit_code = record["exit_code"]
    error.message = f"rank {rank}: {error.message}"
    return error


def _log_name(logs: Path, rank: int) -> str:
    return f"rank {rank}" if rank == 0 else f"rank {rank}, log in {logs / f'rank_{rank}.log'}"


@dataclass(frozen=True)
class Spec:
    """What a rank is to do, as `_elastic` wrote it."""

    config: Config
    run_dir: RunDir
    options: WorkerOptions
    worker: str
    launcher: int
    """Process id of the launcher."""


def read_spec(file: Path) -> Spec:
    """Read logs/attempt_N/launch.json."""
    spec = json.loads(file.read_text())
    return Spec(
        config=from_dict(spec["config"]),
        run_dir=RunDir(Path(spec["run_dir"])),
        options=WorkerOptions(**spec["options"]),
        worker=spec["worker"],
        launcher=spec["launcher"],
    )
