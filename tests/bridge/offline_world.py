"""Checkpoints of the same weights from many layouts: `torchrun offline_world.py INPUTS RESULTS`, for test_offline.py.

INPUTS is a torch file: rows of a batch, the directory of models, their names, a scratch directory, one free port per
entry of WORLDS. Per layout and model it leaves SCRATCH/LAYOUT/MODEL-{base,trained,moved}/checkpoints/step_1/policy:
the source's weights; the same after two updates; for one model those trained on the first layout, loaded and saved
again. RESULTS gets the log-probs of the trained policies, [layout][model] -> list of [B, S].
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from world import TRAIN, cut, objective

from da3po_cli.config.schema import ParallelConfig
from megatron_bridge import build_policy
from megatron_bridge.parallel import Parallel, initialize

# Ranks -> layouts, largest first: ranks that are not needed any more leave. What TP and PP leave is data parallel.
WORLDS = {
    8: {"tp2 pp2 dp2": ParallelConfig(tensor=2, pipeline=2)},
    4: {
        "tp2 pp2": ParallelConfig(tensor=2, pipeline=2),
        "tp2 dp2": ParallelConfig(tensor=2),
        "tp4": ParallelConfig(tensor=4),
        "pp2 vpp2 dp2": ParallelConfig(pipeline=2, virtual_pipeline=2),
        "pp2 uneven dp2": ParallelConfig(pipeline=2, pipeline_layers="1,3"),
    },
    2: {"tp2": ParallelConfig(tensor=2), "dp2": ParallelConfig()},
    1: {"one": ParallelConfig()},
}
ORIGIN = "tp2 pp2 dp2"
MOVED = "qwen3-tied"  # the model whose trained checkpoint is loaded and saved on every layout


def leave(layout: ParallelConfig, label: str, parallel: Parallel, inputs: dict[str, Any]) -> dict[str, Any]:
    """Write this layout's checkpoints. Returns model -> log-probs after two updates."""

    def policy(name: str) -> Any:
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
    for name in inputs["names"]:
        one = policy(name)
        one.save(place(label, name, "base"))
        batches = cut(rows, 4) if parallel.data_rank == 0 else []
        for _ in range(2):
            one.update(batches, objective(rows))
            one.advance_schedule()
        found[name] = one.logprobs(cut(rows, 4))
        one.save(place(label, name, "trained"))
    one = policy(MOVED)
    one.load(place(ORIGIN, MOVED, "trained"))
    one.save(place(label, MOVED, "moved"))
    return found


def main() -> None:
    inputs = torch.load(sys.argv[1], weights_only=False)
    results: dict[str, Any] = {}
    rank = int(os.environ["RANK"])
    for (world, layouts), port in zip(WORLDS.items(), inputs["ports"], strict=True):
        if rank >= world:
            return
        os.environ |= {"WORLD_SIZE": str(world), "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}
        for label, layout in layouts.items():
            parallel = initialize(layout.tensor, layout.pipeline, seed=1, virtual_pipeline=layout.virtual_pipeline)
            results[label] = leave(layout, label, parallel, inputs)
            parallel.barrier()
            if label == list(layouts)[-1]:
                parallel.shutdown()
            else:  # the process group goes on, with other groups in it
                from megatron.core import parallel_state

                parallel_state.destroy_model_parallel()
    torch.save(results, sys.argv[2])


if __name__ == "__main__":
    main()
