"""Checkpoints of the same weights from many layouts: `python offline_world.py INPUTS RESULTS`, for test_offline.py.

INPUTS is a torch file: rows of a batch, the directory of models, a scratch directory, one free port per entry of
WORLDS. The ranks are forks of one process, so that Megatron is imported once. Per layout and model they leave
SCRATCH/LAYOUT/MODEL-{base,trained,moved}/checkpoints/step_1/policy: the source's weights; the same after two updates;
for one model those trained on the first layout, loaded and saved again. RESULTS gets the log-probs of the trained
policies, [layout][model] -> list of [B, S].
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from world import TRAIN, cut, objective

from da3po_cli.config.schema import ParallelConfig
from megatron_bridge import build_policy
from megatron_bridge.arch import read_arch
from megatron_bridge.engine import MegatronPolicy
from megatron_bridge.parallel import Parallel, initialize

ALL = ("qwen3-tied", "qwen3-untied", "qwen2-tied", "qwen2-untied", "llama-tied", "llama-untied")
TWO = ("qwen3-tied", "qwen2-untied")  # head size unlike hidden / heads, query and key norms; biases and a head
# Ranks -> layout -> models, most ranks first: those that are not needed any more leave.
WORLDS: dict[int, dict[str, tuple[ParallelConfig, tuple[str, ...]]]] = {
    8: {"tp2 pp2 dp2": (ParallelConfig(tensor=2, pipeline=2), TWO)},
    4: {
        "tp2 pp2": (ParallelConfig(tensor=2, pipeline=2), ALL),
        "tp2 dp2": (ParallelConfig(tensor=2), TWO),
        "tp4": (ParallelConfig(tensor=4), TWO),
        "pp2 vpp2 dp2": (ParallelConfig(pipeline=2, virtual_pipeline=2), TWO),
        "pp2 uneven dp2": (ParallelConfig(pipeline=2, pipeline_layers="1,3"), TWO),
    },
    2: {"tp2": (ParallelConfig(tensor=2), TWO), "dp2": (ParallelConfig(), TWO)},
    1: {"one": (ParallelConfig(), ALL)},
}
MOVED = "qwen3-tied"  # its checkpoint trained on ORIGIN is loaded and saved again on every other layout
ORIGIN = "tp2 pp2 dp2"


def leave(
    layout: ParallelConfig, label: str, names: tuple[str, ...], parallel: Parallel, inputs: dict[str, Any]
) -> dict[str, Any]:
    """Write this layout's checkpoints. Returns model -> log-probs after two updates."""

    def policy(name: str) -> MegatronPolicy:
        return build_policy(
            inputs["models"] / name,
            dtype="float32",
            parallel=parallel,
            train=TRAIN,
            temperature=1.0,
            seed=1,
            layout=layout,
        )

    def place(label: str, name: str, kind: str) -> Path:
        return inputs["scratch"] / label / f"{name}-{kind}" / "checkpoints" / "step_1" / "policy"

    rows, found = inputs["rows"], {}
    for name in names:
        one = policy(name)
        one.save(place(label, name, "base"))
        batches = cut(rows, 4) if parallel.data_rank == 0 else []
        for _ in range(2):
            one.update(batches, objective(rows))
            one.advance_schedule()
        found[name] = one.logprobs(cut(rows, 4))
        one.save(place(label, name, "trained"))
    if label == ORIGIN:
        return found
    one = policy(MOVED)
    one.load(place(ORIGIN, MOVED, "trained"))
    one.save(place(label, MOVED, "moved"))
    return found


def rank(number: int, inputs: dict[str, Any], results: dict[str, Any], out: str) -> None:
    """What one of the processes does."""
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "MASTER_ADDR": "127.0.0.1"}
    for (world, layouts), port in zip(WORLDS.items(), inputs["ports"], strict=True):
        if number >= world:
            return
        os.environ |= {"WORLD_SIZE": str(world), "MASTER_PORT": str(port)}
        for label, (layout, names) in layouts.items():
            parallel = initialize(layout.tensor, layout.pipeline, seed=1, virtual_pipeline=layout.virtual_pipeline)
            results[label] = leave(layout, label, names, parallel, inputs)
            parallel.barrier()
            parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
    torch.save(results, out)


if __name__ == "__main__":
    given = torch.load(sys.argv[1], weights_only=False)
    read_arch(given["models"] / MOVED)  # imports transformers before the fork
    torch.multiprocessing.start_processes(rank, (given, {}, sys.argv[2]), nprocs=max(WORLDS), start_method="fork")
