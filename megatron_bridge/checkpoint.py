"""Weights, optimizer, schedule, random state through Megatron's dist_checkpointing: save on one layout, load on any."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import WriteBucket
from megatron.core.dist_checkpointing.validation import StrictHandling
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException

from da3po_cli.errors import EnvironmentProblem, UsageError
from megatron_bridge.compat import begin_save
from megatron_bridge.optimizer import WarmupSchedule
from megatron_bridge.parallel import Parallel

# The only sharding of the optimizer state that Megatron can load on another tensor- and pipeline-parallel layout. It is
# gathered in host memory and on one rank, the one that writes it: on the devices the rollout engine is awake.
_METADATA: dict[str, Any] = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "distrib_optim_fully_reshardable_mem_efficient": True,
}


def save(
    directory: Path,
    chunks: Sequence[DistributedDataParallel],
    optimizer: MegatronOptimizer,
    schedule: WarmupSchedule,
    parallel: Parallel,
    *,
    background: bool = False,
) -> Save:
    """Plan a save to `directory`, which is made; with `background`, copy everything and start to write. Collective.

    The directory holds no checkpoint before `Save.finish`.
    """
    if parallel.rank == 0:
        directory.mkdir(parents=True, exist_ok=True)
    parallel.barrier()
    state = _state(chunks, optimizer, loading=False)
    state["schedule"] = {"position": schedule.position}
    state["world"] = parallel.world
    state["rng"] = _rng_object(parallel, _rng_state())
    given = [tensor for value in nested_values(state) if isinstance(tensor := getattr(value, "data", None), Tensor)]
    try:
        request = begin_save(state, directory, _METADATA)
    except RuntimeError as error:  # what torch.save makes of an OSError, on the one rank that writes the common part
        if not any(words in str(error) for words in ("iostream error", "inline_container")):
            raise
        raise _cannot_write(directory, "common.pt") from error
    return Save(directory, request, parallel, given if background else None)


class Save:
    """A save under way; see `protocols.PendingSave`.

    Args:
        given: the tensors of the state, for a writer that is a thread: it gets no memory of theirs. None: `finish`
            writes.
    """

    def __init__(
        self, directory: Path, request: AsyncRequest, parallel: Parallel, given: Sequence[Tensor] | None
    ) -> None:
        self._directory, self._request, self._parallel = directory, request, parallel
        self._write: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None
        self.seconds = 0.0
        if request.async_fn is None:  # nothing to write on this rank
            return
        rank, _, results = request.async_fn_args
        buckets = request.preload_fn()
        if given is not None:
            buckets = [_own(bucket, given) for bucket in buckets]
        self._write = partial(request.async_fn, rank, buckets, results)
        if given is not None:
            # A daemon: whoever ends the job at once does not wait for a checkpoint that nobody will finish.
            self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        begun = time.monotonic()
        if self._write is not None:
            self._write()
            self._write = None  # and with it the copies
        self.seconds = time.monotonic() - begun

    def done(self) -> bool:
        """Whether the writers of all ranks are through. Collective."""
        busy = torch.tensor(self._thread is not None and self._thread.is_alive(), dtype=torch.int32)
        if self._parallel.world > 1:
            busy = busy.to(self._parallel.device)
            dist.all_reduce(busy)
        return not busy.item()

    def finish(self) -> None:
        """Wait for the writers of all ranks, then write the metadata, which makes a checkpoint of it. Collective.

        Raises:
            EnvironmentProblem: a rank could not write, on every rank.
        """
        if self._thread is not None:
            self._thread.join()
        else:
            self._run()
        try:
            with self._parallel.megatron():
                for finalize in self._request.finalize_fns:
                    finalize()
        except CheckpointException as error:  # a BaseException, whose details only rank 0 knows
            causes = "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in error.failures.items())
            raise _cannot_write(self._directory, causes or "see rank 0") from error


def _cannot_write(directory: Path, cause: str) -> EnvironmentProblem:
    """Torch's own words seldom say that a disk is full, so its room is said as well."""
    free = shutil.disk_usage(directory).free / 1e6
    return EnvironmentProblem(
        f"the checkpoint could not be written ({cause}); {free:,.1f} MB are free on its disk",
        where=str(directory),
        hint="make room on the disk and go on with --resume; the previous checkpoint is untouched",
    )


def _own(bucket: WriteBucket, given: Sequence[Tensor]) -> WriteBucket:
    """`bucket` without memory of the tensors `given`.

    Megatron copies what is on a device, and views; a tensor on the CPU that has its storage for itself it hands on.
    """
    shared = {tensor.untyped_storage().data_ptr() for tensor in given}
    file, key, (plain, tensors) = bucket
    copies = [
        (item, tensor.clone() if tensor.untyped_storage().data_ptr() in shared else tensor) for item, tensor in tensors
    ]
    return file, key, (plain, copies)


def load(
    directory: Path,
    chunks: Sequence[DistributedDataParallel],
    optimizer: MegatronOptimizer,
    schedule: WarmupSchedule,
    parallel: Parallel,
) -> None:
    """The inverse of `save`. The random state is restored where the number of ranks is the same. Collective.

    Raises:
        UsageError: `directory` holds no checkpoint, or one that cannot be read.
    """
    if not (directory / "metadata.json").is_file():
        raise UsageError(f"no policy checkpoint in {directory}", hint="resume from a step that was saved completely")
    state = _state(chunks, optimizer, loading=True)
    saved_world = dist_checkpointing.load_common_state_dict(str(directory))["world"]
    if saved_world == parallel.world:
        state["rng"] = _rng_object(parallel, None)
    try:
        loaded: Any = dist_checkpointing.load(state, str(directory), strict=StrictHandling.RAISE_UNEXPECTED)
    except CheckpointException as error:  # a BaseException
        causes = "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in error.failures.items())
        raise UsageError(
            f"the checkpoint cannot be read ({causes})", where=str(directory), hint="resume from another step"
        ) from error
    except CheckpointingException as error:
        raise UsageError(
            f"the checkpoint is not of this model: {str(error).splitlines()[0]}",
            where=str(directory),
            hint="resume with the model, and with TransformerEngine installed or not, as it was saved",
        ) from error
    for number, chunk in enumerate(chunks):
        chunk.load_state_dict(loaded[f"model{number}"])
    optimizer.load_state_dict(loaded["optimizer"])
    schedule.seek(loaded["schedule"]["position"])
    if "rng" in loaded:
        _set_rng_state(loaded["rng"])


def _state(chunks: Sequence[DistributedDataParallel], optimizer: MegatronOptimizer, loading: bool) -> dict[str, Any]:
    weights = {}
    for number, chunk in enumerate(chunks):
        module: Any = chunk.module
        weights[f"model{number}"] = module.sharded_state_dict(metadata=dict(_METADATA))
    moments = optimizer.sharded_state_dict(weights, is_loading=loading, metadata=dict(_METADATA))
    return {**weights, "optimizer": moments}


def _rng_object(parallel: Parallel, value: Any) -> ShardedObject:
    return ShardedObject("rng", value, (parallel.world,), (parallel.rank,), replica_id=0)


def _rng_state() -> dict[str, Any]:
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
        tracker: Any = get_cuda_rng_tracker()
        state["tracker"] = tracker.get_states()
    return state


def _set_rng_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
        tracker: Any = get_cuda_rng_tracker()
        tracker.set_states(state["tracker"])
