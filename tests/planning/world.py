"""What the ranks of a spawned world do: `torchrun world.py DIRECTORY`, used by test_megatron.py.

DIRECTORY holds one Hugging Face directory per model; `bytes_N.json` gets what rank N has allocated, by layout, dtype
and model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from da3po_cli.config.schema import ParallelConfig, TrainConfig
from megatron_bridge import build_policy
from megatron_bridge.parallel import initialize

# What is left of the ranks is data parallel. The models have 4 layers and 2 key-value heads.
LAYOUTS = {
    "dp4": ParallelConfig(),
    "tp2": ParallelConfig(tensor=2),
    "tp4": ParallelConfig(tensor=4),
    "pp2": ParallelConfig(pipeline=2),
    "pp2 1+3": ParallelConfig(pipeline=2, pipeline_layers="1,3"),
    "pp2 vpp2": ParallelConfig(pipeline=2, virtual_pipeline=2),
    "tp2 pp2 sp": ParallelConfig(tensor=2, pipeline=2, sequence=True),
    "pp4": ParallelConfig(pipeline=4),
}
DTYPES = ("float32", "bfloat16")


def allocated(policy: Any) -> dict[str, int]:
    """Bytes of the storages behind the weights, the gradients and the optimizer's state, each storage once."""
    weights, gradients, main, moments = [], [], [], []
    for chunk in policy.chunks:
        weights += [param.data for param in chunk.parameters()]
        gradients += [param.main_grad for param in chunk.parameters()]
    held = {tensor.untyped_storage().data_ptr() for tensor in weights}
    for part in policy.optimizer.chained_optimizers:
        for group in part.optimizer.param_groups:
            main += [one for one in group["params"] if one.untyped_storage().data_ptr() not in held]
        for state in part.optimizer.state.values():
            moments += [state["exp_avg"], state["exp_avg_sq"]]
    named = {"weights": weights, "gradients": gradients, "main": main, "moments": moments}
    return {name: _bytes(tensors) for name, tensors in named.items()}


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}.values())


def measure(directory: Path, layout: ParallelConfig, parallel: Any) -> dict[str, Any]:
    """By dtype and model: the bytes of this rank, and its place."""
    place = {"stage": parallel.pipeline_rank, "data_rank": parallel.data_rank, "data": parallel.data_size}
    found: dict[str, Any] = {"place": place}
    for dtype in DTYPES:
        for model in sorted(path for path in directory.iterdir() if path.is_dir()):
            policy = build_policy(
                model,
                dtype=dtype,  # type: ignore[arg-type]
                parallel=parallel,
                train=TrainConfig(),
                temperature=1.0,
                seed=1,
                layout=layout,
            )
            found[f"{dtype} {model.name}"] = allocated(policy)
    return found


def main() -> None:
    from megatron.core import parallel_state

    directory, results = Path(sys.argv[1]), {}
    for label, layout in LAYOUTS.items():
        parallel = initialize(layout.tensor, layout.pipeline, seed=1, virtual_pipeline=layout.virtual_pipeline)
        results[label] = measure(directory, layout, parallel)
        parallel.barrier()
        parallel_state.destroy_model_parallel()
    (directory / f"bytes_{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
