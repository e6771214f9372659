"""What vLLM needs of the process that it shares with the trainer, and what it must not change there."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any


def engine_environment() -> dict[str, str]:
    """Environment variables that keep vLLM in this process, quiet, and off the network.

    A launcher that gives them to the workers before they import torch also silences the C++ side.
    """
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler must live in the rank for the external launcher
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several ranks share the cores
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


@contextmanager
def starting(rank: int) -> Iterator[None]:
    """Import and start vLLM quietly, and take back what it changes in the process that the trainer shares.

    vLLM sets environment variables that launchers and child processes read (LOCAL_WORLD_SIZE, LD_PRELOAD) and replaces
    torch.set_num_threads; its external launcher reads RANK and LOCAL_RANK, which a run without torchrun does not have.
    """
    import torch

    for name, value in engine_environment().items():
        os.environ.setdefault(name, value)
    before = {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LD_PRELOAD")}
    os.environ.setdefault("RANK", str(rank))
    os.environ.setdefault("LOCAL_RANK", str(rank))
    set_num_threads, logging_limit = torch.set_num_threads, logging.root.manager.disable
    logging.disable(logging.WARNING)  # some lines come before vLLM has read its own log level
    try:
        with warnings.catch_warnings(), running():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging_limit)
        torch.set_num_threads = set_num_threads
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def name_shared_memory(token: str) -> None:
    """Give the shared memory over which the ranks of a CPU engine talk a name of its own; `token` is the job's.

    vLLM makes the name of how its ranks found each other, and under the external launcher of nothing: all engines of a
    machine would use one name, so a second job would end at once, and one that was killed would block all later ones.
    """
    from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

    def make_group_name(communicator: Any) -> str:
        return f"/da3po-{token}-{communicator.unique_name}-{'-'.join(map(str, communicator.ranks))}"

    _CPUSHMDistributed.make_group_name = staticmethod(make_group_name)


@contextmanager
def running() -> Iterator[None]:
    """Run vLLM without touching the trainer's random streams, and on CPU without JIT compilation.

    vLLM draws from the global generator at each step. On CPU the model runs eagerly, yet one tiny function of the
    sampler is under torch.compile, which costs 20 s of C++ compilation for nothing.
    """
    import torch

    cuda = torch.cuda.is_available()
    stance = nullcontext() if cuda else torch.compiler.set_stance("force_eager")
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if cuda else []), stance:
        yield
