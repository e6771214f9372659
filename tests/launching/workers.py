"""Workers that `launch` starts in the tests: what a rank may do, without a model."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from da3po_cli.config.schema import Config
from da3po_cli.errors import DivergedError
from da3po_cli.launching.launch import WorkerOptions
from da3po_cli.launching.stop import Stop, listener
from da3po_cli.runs.directory import RunDir


def _group() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")


def report(config: Config, run_dir: Path, options: WorkerOptions) -> None:
    """Every rank adds its number over gloo and writes what it sees."""
    import torch
    import torch.distributed as dist

    _group()
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    sys.stdout.write(f"talk of rank {dist.get_rank()}\n")
    seen = {
        "sum": total.item(),
        "threads": os.environ["OMP_NUM_THREADS"],
        "seed": config.run.seed,
        "attempt": options.attempt,
        "pid": os.getpid(),
        "local_rank": os.environ["LOCAL_RANK"],
    }
    (run_dir / f"seen_{dist.get_rank()}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


def diverge_on_rank_1(config: Config, run_dir: Path, options: WorkerOptions) -> None:
    """Rank 1 fails; rank 0 waits for it in a collective, as in a real run."""
    import torch
    import torch.distributed as dist

    _group()
    if dist.get_rank() == 1:
        raise DivergedError("loss is nan at step 3", hint="train.lr=1e-6", where="step 3")
    dist.all_reduce(torch.ones(1))


def killed_on_rank_1(config: Config, run_dir: Path, options: WorkerOptions) -> None:
    import torch
    import torch.distributed as dist

    _group()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    dist.all_reduce(torch.ones(1))


def wait(config: Config, run_dir: Path, options: WorkerOptions) -> None:
    """Rank 0 sleeps in Python, the others wait for it inside gloo, where no Python handler can run."""
    import torch
    import torch.distributed as dist

    (run_dir / f"pid_{os.environ['RANK']}").write_text(str(os.getpid()))
    _group()
    if dist.get_rank() == 0:
        (run_dir / "ready").touch()
        try:
            time.sleep(120)
        finally:
            (run_dir / "unwound").touch()
            sys.stderr.flush()
    dist.all_reduce(torch.ones(1))


class _Comm:
    """The part of a Comm that Stop needs, over gloo."""

    def broadcast(self, value: object) -> object:
        import torch.distributed as dist

        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]


def short_steps(config: Config, run_dir: Path, options: WorkerOptions) -> None:
    """Steps of 0.2 s, each with a collective, until somebody asks for a stop."""
    _steps(run_dir, 0.2)


def long_step(config: Config, run_dir: Path, options: WorkerOptions) -> None:
    """A step that does not end in the time of a test."""
    _steps(run_dir, 300)


def _steps(run_dir: Path, seconds: float) -> None:
    """As train_worker: ask after each step, and note where it stopped."""
    import torch.distributed as dist

    (run_dir / f"pid_{os.environ['RANK']}").write_text(str(os.getpid()))
    _group()
    signals = listener()
    assert signals is not None
    stop = Stop(_Comm(), signals, lambda text: os.write(2, f"{text}\n".encode()), None)  # type: ignore[arg-type]
    step, asked = 0, False
    while not asked:
        step += 1
        stop.begin(step)
        if dist.get_rank() == 0:
            (run_dir / "ready").touch()
            time.sleep(seconds)
        dist.barrier()
        asked = stop.here(0.0)
    (run_dir / f"stopped_{dist.get_rank()}").write_text(str(step))
    if dist.get_rank() == 0:
        assert signals.asked is not None
        RunDir(run_dir).finish("interrupted", step=step, signal=signals.asked.name)
    stop.close()
    dist.destroy_process_group()
