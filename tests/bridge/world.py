"""What the ranks of a spawned world do: `torchrun world.py INPUTS RESULTS`, used by test_world.py.

INPUTS is a torch file: rows of the batch, the directory of models, a scratch directory, the layouts. RESULTS gets, per
layout and model, what rank 0 sees; every rank checks that it sees the same.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from da3po_cli.algos.types import MicroBatch
from da3po_cli.config.schema import ParallelConfig, TrainConfig
from megatron_bridge import build_policy
from megatron_bridge.parallel import Parallel, initialize

# What is left of the 4 ranks is data parallel. The models have 4 layers and 2 key/value heads.
LAYOUTS = {
    "(2, 2)": ParallelConfig(tensor=2, pipeline=2),
    "(1, 1)": ParallelConfig(),
    "(2, 1)": ParallelConfig(tensor=2),
    "(1, 2)": ParallelConfig(pipeline=2),
    "tp2 sp": ParallelConfig(tensor=2, sequence=True),
    "tp2 pp2 sp": ParallelConfig(tensor=2, pipeline=2, sequence=True),
    "pp2 vpp2": ParallelConfig(pipeline=2, virtual_pipeline=2),
    "pp2 1+3": ParallelConfig(pipeline=2, pipeline_layers="1,3"),
    "tp4": ParallelConfig(tensor=4),
}
TRAIN = TrainConfig(lr=1e-2, warmup_steps=4, weight_decay=0.1, grad_clip=1.0)


def micro_batch(rows: list[dict[str, Any]]) -> MicroBatch:
    """Right-pad rows to the longest of them."""
    longest = max(len(row["ids"]) for row in rows)
    shape = (len(rows), longest)
    tokens, targets = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    mask, rollout = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)
    for index, row in enumerate(rows):
        length = len(row["ids"])
        tokens[index, :length] = row["ids"]
        targets[index, : length - 1] = row["ids"][1:]
        mask[index, row["prompt"] - 1 : length - 1] = True
        rollout[index, : length - 1] = row["rollout"][1:]
    advantages = torch.tensor([row["advantage"] for row in rows])
    return MicroBatch(tokens, targets, mask, advantages, rollout * mask)


def cut(rows: list[dict[str, Any]], per_batch: int) -> list[MicroBatch]:
    return [micro_batch(rows[start : start + per_batch]) for start in range(0, len(rows), per_batch)]


def objective(rows: list[dict[str, Any]]) -> Any:
    """A token-mean importance-weighted loss over the whole batch, divided by the global token count."""
    tokens = sum(len(row["ids"]) - row["prompt"] for row in rows)

    def loss(logprobs: torch.Tensor, entropy: torch.Tensor, batch: MicroBatch) -> tuple[torch.Tensor, dict[str, Any]]:
        ratio = torch.exp(logprobs - batch.rollout_logprobs)
        value = -(ratio * batch.advantages[:, None] * batch.mask).sum() / tokens
        return value, {"tokens": batch.mask.sum(), "entropy": (entropy * batch.mask).sum()}

    return loss


def same_everywhere(parallel: Parallel, value: Any, what: str) -> None:
    """Every rank has the same value, bit for bit."""
    seen = parallel.gather(value)
    assert all(_equal(one, seen[0]) for one in seen), f"{what} differs between ranks"


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(_equal(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(_equal(*pair) for pair in zip(left, right, strict=True))
    return left == right


LAYOUT = ParallelConfig()  # the one in use


def policy(models: Path, name: str, parallel: Parallel, temperature: float = 1.0, **options: Any) -> Any:
    dtype = options.pop("dtype", "float32")
    train = options.pop("train", TRAIN)
    return build_policy(
        models / name,
        dtype=dtype,
        parallel=parallel,
        train=train,
        temperature=temperature,
        seed=1,
        layout=LAYOUT,
        **options,
    )


def gradients(one: Any) -> dict[str, torch.Tensor]:
    stream = one.exporter.tensors(include_tied_head=False, values=lambda param: param.main_grad)
    return {name: tensor.clone() for name, tensor in stream}


def forward(parallel: Parallel, inputs: dict[str, Any]) -> dict[str, Any]:
    """Per model: log-probs at two temperatures, and the exported weights."""
    out: dict[str, Any] = {}
    batches = cut(inputs["rows"], 4)
    for name in inputs["names"]:
        one = policy(inputs["models"], name, parallel)
        logprobs = one.logprobs(batches)
        weights = {key: tensor.clone() for key, tensor in one.iter_hf_weights()}
        warm = policy(inputs["models"], name, parallel, temperature=0.7).logprobs(batches)
        same_everywhere(parallel, [logprobs, warm, weights], name)
        untied = [key for key, _ in one.iter_hf_weights(include_tied_head=False)]
        out[name] = dict(logprobs=logprobs, warm=warm, weights=weights, export_names=untied)
    return out


def backward(parallel: Parallel, inputs: dict[str, Any]) -> dict[str, Any]:
    """Loss, sums, gradient norm and all gradients, for several ways to cut the same batch."""
    rows, out = inputs["rows"], {}
    share = rows[parallel.data_rank :: parallel.data_size]
    cuts = {
        "one": cut(share, 8),
        "pairs": cut(share, 2),
        "singles": cut(share, 1),
        "uneven": cut(rows[:6], 2) if parallel.data_rank == 0 else [micro_batch(rows[6:])],
        "idle": cut(rows, 3) if parallel.data_rank == 0 else [],
    }
    if parallel.data_size > 2:
        cuts["uneven"] = [[micro_batch(rows[:5])], cut(rows[5:], 1), [], []][parallel.data_rank]
    if parallel.data_size == 1:
        del cuts["uneven"], cuts["idle"]
    for name in inputs["names"]:
        # at learning rate 0 an update leaves the weights as they are, and the policy serves all cuts
        one = policy(inputs["models"], name, parallel, temperature=0.7, train=TrainConfig(lr=0.0))
        for label, batches in cuts.items():
            update = one.update(batches, objective(rows))
            for chunk in one.chunks:
                chunk.zero_grad_buffer()
            loss, sums = one.accumulate(batches, objective(rows), all_reduce=True)
            grads = gradients(one)
            same_everywhere(parallel, [loss, sums, grads, update], f"{name}/{label}")
            out[name, label] = dict(loss=loss, sums=sums, grads=grads, update=update)
            if name != inputs["names"][0]:
                break  # all cuts on the first model, one on the others
    return out


def resume(parallel: Parallel, inputs: dict[str, Any], label: str) -> dict[str, Any]:
    """Saved at (2, 2) after two steps; there and on every other layout two more."""
    rows, directory = inputs["rows"], inputs["scratch"] / "policy"
    batches = cut(rows, 4) if parallel.data_rank == 0 else []

    def steps(one: Any) -> list[Any]:
        taken = []
        for _ in range(2):
            taken.append(one.update(batches, objective(rows)))
            one.advance_schedule()
        return [*taken, {key: tensor.clone() for key, tensor in one.iter_hf_weights()}]

    name = "qwen3-tied"
    out: dict[str, Any] = {}
    if label == "(2, 2)":
        one = policy(inputs["models"], name, parallel, with_reference=True)
        initial = one.logprobs(cut(rows, 4))
        out["first"] = steps(one)
        one.save(directory)
        out["straight"] = steps(one)
        out["reference"] = [initial, one.logprobs(cut(rows, 4), reference=True), one.logprobs(cut(rows, 4))]
    one = policy(inputs["models"], name, parallel)
    one.load(directory)
    inner = one.optimizer.chained_optimizers[0].optimizer
    counters = [state["step"] for state in inner.state.values()]
    out["counters"] = ([float(step) for step in counters], len({step.data_ptr() for step in counters}))
    out["resumed"] = steps(one)
    return out


def half(parallel: Parallel, inputs: dict[str, Any]) -> dict[str, Any]:
    """bfloat16 with full recomputation: log-probs, one update, log-probs."""
    train = TrainConfig(lr=1e-2, warmup_steps=0, recompute=True)
    one = policy(inputs["models"], "qwen3-tied", parallel, dtype="bfloat16", train=train)
    batches = cut(inputs["rows"], 4)
    before = one.logprobs(batches)
    share = cut(inputs["rows"][parallel.data_rank :: parallel.data_size], 2)
    update = one.update(share, objective(inputs["rows"]))
    weights = {key: tensor.clone() for key, tensor in one.iter_hf_weights()}
    same_everywhere(parallel, [before, update, weights], "bfloat16")
    return dict(logprobs=before, update=update, after=one.logprobs(batches), weights=weights)


def main() -> None:
    global LAYOUT
    inputs = torch.load(sys.argv[1], weights_only=False)
    results: dict[str, Any] = {}
    for label in inputs["layouts"]:
        LAYOUT = LAYOUTS[label]
        from megatron.core import parallel_state

        parallel = initialize(LAYOUT.tensor, LAYOUT.pipeline, seed=1, virtual_pipeline=LAYOUT.virtual_pipeline)
        one: dict[str, Any] = {"forward": forward(parallel, inputs)}
        one["backward"] = backward(parallel, inputs)
        one["resume"] = resume(parallel, inputs, label)
        one["half"] = half(parallel, inputs)
        one["comm"] = [parallel.broadcast({"from": parallel.rank}), parallel.gather(parallel.data_rank)]
        parallel.barrier()
        results[label] = one
        parallel_state.destroy_model_parallel()
    if dist.get_rank() == 0:
        torch.save(results, sys.argv[2])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
