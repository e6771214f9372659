"""Weights, optimizer, schedule, random state through Megatron's dist_checkpointing: save on one layout, load on any."""

from __future__ import annotations

import queue
import random
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync, WriteBucket
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.dist_checkpointing.validation import StrictHandling
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer

from da3po_cli.errors import UsageError
from megatron_bridge.optimizer import WarmupSchedule
from megatron_bridge.parallel import Parallel

# The only sharding of the optimizer state that Megatron can load on another tensor- and pipeline-parallel layout.
_METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}


def save(
    directory: Path,
    model: DistributedDataParallel,
    optimizer: MegatronOptimizer,
    schedule: WarmupSchedule,
    parallel: Parallel,
) -> None:
    """Write `directory`, which is made. Collective."""
    if parallel.rank == 0:
        directory.mkdir(parents=True, exist_ok=True)
    parallel.barrier()
    state = _state(model, optimizer, loading=False)
    state["schedule"] = {"position": schedule.position}
    state["world"] = parallel.world
    state["rng"] = _rng_object(parallel, _rng_state())
    strategy = _InlineSave("torch_dist", 1, thread_count=1)
    dist_checkpointing.save(state, str(directory), sharded_strategy=strategy, content_metadata=_METADATA)


def load(
    directory: Path,
    model: DistributedDataParallel,
    optimizer: MegatronOptimizer,
    schedule: WarmupSchedule,
    parallel: Parallel,
) -> None:
    """The inverse of `save`. The random state is restored where the number of ranks is the same. Collective.

    Raises:
        UsageError: `directory` holds no checkpoint.
    """
    if not (directory / "metadata.json").is_file():
        raise UsageError(f"no policy checkpoint in {directory}", hint="resume from a step that was saved completely")
    state = _state(model, optimizer, loading=True)
    saved_world = dist_checkpointing.load_common_state_dict(str(directory))["world"]
    if saved_world == parallel.world:
        state["rng"] = _rng_object(parallel, None)
    loaded: Any = dist_checkpointing.load(state, str(directory), strict=StrictHandling.RAISE_UNEXPECTED)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    schedule.seek(loaded["schedule"]["position"])
    if "rng" in loaded:
        _set_rng_state(loaded["rng"])


def _state(model: DistributedDataParallel, optimizer: MegatronOptimizer, loading: bool) -> dict[str, Any]:
    stage: Any = model.module
    weights = stage.sharded_state_dict(metadata=dict(_METADATA))
    moments = optimizer.sharded_state_dict(weights, is_loading=loading, metadata=dict(_METADATA))
    return {"model": weights, "optimizer": moments}


def _rng_object(parallel: Parallel, value: Any) -> ShardedObject:
    return ShardedObject("rng", value, (parallel.world,), (parallel.rank,), replica_id=0)


def _rng_state() -> dict[str, Any]:
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_rng_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


class _InlineSave(TorchDistSaveShardedStrategy):
    """Megatron's format, written by this process.

    Megatron's own writer starts a manager process that imports the main program again (seconds per rank) and forks
    this process, which also holds the rollout engine and its threads.
    """

    def async_save(self, sharded_state_dict: Any, checkpoint_dir: Path) -> AsyncRequest:
        filesystem_async._results_queue = queue.Queue()  # in place of the manager's: read back in this process
        return super().async_save(sharded_state_dict, checkpoint_dir)

    def _get_save_and_finalize_callbacks(self, writer: Any, save_state_dict_ret: Any) -> AsyncRequest:
        request = super()._get_save_and_finalize_callbacks(writer, save_state_dict_ret)
        if request.async_fn is None:  # nothing to write on this rank
            return request
        return request._replace(async_fn=partial(_write, [writer.transforms]))


def _write(transforms: list[Any], rank: int, buckets: list[WriteBucket], results: queue.Queue[Any]) -> None:
    """Write this rank's files one after the other and report as Megatron's multi-process writer does."""
    done: Any = queue.Queue()  # Megatron's writer expects multiprocessing queues; these have what it uses
    running: Any = queue.Queue()
    written: dict[int, Any] = {}
    for index, bucket in enumerate(buckets):
        running.put(index)
        FileSystemWriterAsync.write_preloaded_data(transforms, index, bucket, done, running, use_fsync=True)
        _, written[index] = done.get()
        if isinstance(written[index], Exception):
            results.put(written[index])
            return
    results.put(written)
