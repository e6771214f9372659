"""Process groups: the one place that starts torch.distributed and Megatron's model parallelism, and asks about them.

The rest of the bridge receives a `Parallel` value and never looks a group up by itself.
"""

from __future__ import annotations

import math
import os
import random
import socket
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from da3po_cli.errors import UsageError

COLLECTIVE_SECONDS = 1800.0


@dataclass(frozen=True)
class Parallel:
    """Where this rank stands. Ranks run tensor-fastest, then data, then pipeline (Megatron's order tp-dp-pp).

    It is also the loop's `Comm`: `rank`, `world`, `data_rank`, `data_size`, `broadcast`, `barrier`.
    """

    rank: int
    world: int
    tensor_rank: int
    tensor_size: int
    pipeline_rank: int
    pipeline_size: int
    data_rank: int
    data_size: int
    tensor_group: dist.ProcessGroup
    pipeline_group: dist.ProcessGroup
    pipeline_ranks: tuple[int, ...]  # global ranks of `pipeline_group`, first stage first
    data_group: dist.ProcessGroup
    device: torch.device

    @property
    def first_stage(self) -> bool:
        return self.pipeline_rank == 0

    @property
    def last_stage(self) -> bool:
        return self.pipeline_rank == self.pipeline_size - 1

    def broadcast(self, value: Any) -> Any:
        """Rank 0's `value` (anything that pickles), on every rank."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value`, in rank order, on every rank."""
        if self.world == 1:
            return [value]
        box: list[Any] = [None] * self.world
        dist.all_gather_object(box, value)
        return box

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier()

    def megatron(self) -> AbstractContextManager[None]:
        """The context that calls into Megatron run in: the device shim on a CPU, nothing on CUDA."""
        return megatron_context(self.device)

    def shutdown(self) -> None:
        """Take Megatron's groups and the process group down; safe to call twice."""
        from megatron.core import parallel_state

        parallel_state.destroy_model_parallel()
        if dist.is_initialized():
            dist.destroy_process_group()


def megatron_context(device: torch.device) -> AbstractContextManager[None]:
    """The CPU shim where `device` is a CPU, else a null context."""
    if device.type == "cuda":
        return nullcontext()
    from megatron_bridge.cpu import cpu_device

    return cpu_device()


def _group_context(device: torch.device) -> AbstractContextManager[None]:
    """How Megatron makes its groups: one per set of ranks on a CPU, as it likes on CUDA."""
    if device.type == "cuda":
        return nullcontext()
    from megatron_bridge.cpu import shared_groups

    return shared_groups()


def initialize(
    tensor: int, pipeline: int, seed: int, virtual_pipeline: int = 1, *, timeout: float = COLLECTIVE_SECONDS
) -> Parallel:
    """Join the process group described by the environment and set up Megatron's model parallelism.

    Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT as torchrun sets them; without WORLD_SIZE a group
    of one rank is made on a free loopback port. gloo on a CPU; on CUDA NCCL, with gloo for CPU tensors.

    Args:
        tensor: tensor-parallel size.
        pipeline: pipeline-parallel size.
        seed: of Python's, torch's and Megatron's generators, the same on every rank.
        virtual_pipeline: model chunks per pipeline rank.
        timeout: seconds after which a collective gives up waiting for a rank.

    Raises:
        UsageError: tensor * pipeline does not divide the number of ranks.
    """
    _quiet()
    cuda = torch.cuda.is_available()
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world % (tensor * pipeline):
        raise UsageError(
            f"{world} rank(s) cannot be split into parallel.tensor={tensor} x parallel.pipeline={pipeline}",
            hint=f"start a multiple of {tensor * pipeline} ranks, or lower parallel.tensor / parallel.pipeline",
        )
    device = torch.device("cpu")
    if cuda:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group(
            backend="cpu:gloo,cuda:nccl" if cuda else "gloo",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout),
            init_method="env://" if "WORLD_SIZE" in os.environ else f"tcp://127.0.0.1:{_free_port()}",
        )
    random.seed(seed)
    torch.manual_seed(seed)
    return _model_parallel(tensor, pipeline, virtual_pipeline, seed, device, timeout)


def _model_parallel(
    tensor: int, pipeline: int, virtual: int, seed: int, device: torch.device, timeout: float
) -> Parallel:
    """Megatron's groups and RNG tracker, read into a `Parallel`."""
    from megatron.core import parallel_state as mpu
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    with megatron_context(device), _group_context(device):
        mpu.initialize_model_parallel(
            tensor_model_parallel_size=tensor,
            pipeline_model_parallel_size=pipeline,
            virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None,
            create_gloo_process_groups=False,  # ours have gloo for CPU tensors
            distributed_timeout_minutes=math.ceil(timeout / 60),
        )
        model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
    pipeline_group: Any = mpu.get_pipeline_model_parallel_group()
    tensor_group: Any = mpu.get_tensor_model_parallel_group()
    data_group: Any = mpu.get_data_parallel_group()
    return Parallel(
        rank=dist.get_rank(),
        world=dist.get_world_size(),
        tensor_rank=mpu.get_tensor_model_parallel_rank(),
        tensor_size=tensor,
        pipeline_rank=mpu.get_pipeline_model_parallel_rank(),
        pipeline_size=pipeline,
        data_rank=mpu.get_data_parallel_rank(),
        data_size=mpu.get_data_parallel_world_size(),
        tensor_group=tensor_group,
        pipeline_group=pipeline_group,
        pipeline_ranks=tuple(dist.get_process_group_ranks(pipeline_group)),
        data_group=data_group,
        device=device,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _quiet() -> None:
    """Silence what Megatron and torch.distributed warn about on every start and that no user can act on."""
    warnings.filterwarnings("ignore", module=r"megatron\.")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.")
    from megatron_bridge.compat import quiet

    quiet()
