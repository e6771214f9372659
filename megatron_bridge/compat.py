"""What differs between megatron-core 0.16.1 (Python 3.11) and 0.19.2 (Python >= 3.12). No other module knows versions.

Both write checkpoints through the same classes, which the newer one calls with one more argument: the name of the
asynchronous writer. It prefers the one of another package; da3po takes Megatron's own in both.
"""

from __future__ import annotations

import inspect
import logging
import queue
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync, WriteBucket
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

_NEWER = "async_strategy" in inspect.signature(dist_checkpointing.save).parameters  # from 0.17 on


def begin_save(state: dict[str, Any], directory: Path, metadata: dict[str, Any]) -> AsyncRequest:
    """Plan a checkpoint of `state` in `directory`: `dist_checkpointing.save`, written by this process. Collective.

    Args:
        metadata: the `content_metadata`.

    Returns:
        What is left to do: `async_fn(rank, buckets, results)`, with `buckets` from `preload_fn()`, then, when all
        ranks are through, `finalize_fns`. `async_fn` is None where this rank has nothing to write.
    """
    newer: dict[str, Any] = {"async_strategy": "mcore"} if _NEWER else {}
    request: Any = dist_checkpointing.save(
        state,
        str(directory),
        sharded_strategy=_InlineSave("torch_dist", 1, thread_count=1),
        async_sharded_save=True,
        content_metadata=metadata,
        **newer,
    )
    return request


def quiet() -> None:
    """Silence what the newer version logs on every start, and torch under it warns of: no user can act on any of it."""
    logging.getLogger("megatron.core").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.distributed\.checkpoint")


class _InlineSave(TorchDistSaveShardedStrategy):
    """Megatron's format, written by this process.

    Megatron's own writer starts a manager process that imports the main program again (seconds per rank) and, before
    0.17, forks this process, which also holds the rollout engine and its threads.
    """

    def async_save(self, sharded_state_dict: Any, checkpoint_dir: Path, *writer: str) -> AsyncRequest:
        filesystem_async._results_queue = queue.Queue()  # in place of the manager's: read back in this process
        return super().async_save(sharded_state_dict, checkpoint_dir, *writer)

    def _get_save_and_finalize_callbacks(self, writer: Any, save_state_dict_ret: Any, *name: str) -> AsyncRequest:
        request = super()._get_save_and_finalize_callbacks(writer, save_state_dict_ret, *name)
        if request.async_fn is None:  # nothing to write on this rank
            return request
        return request._replace(async_fn=partial(_write, [writer.transforms]))


def _write(transforms: list[Any], rank: int, buckets: list[WriteBucket], results: queue.Queue[Any]) -> None:
    """Write this rank's files one after the other and report as Megatron's writers of several files at a time do."""
    done: Any = queue.Queue()  # Megatron's function expects multiprocessing queues; these have what it uses
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
