"""Sampling noise on a CPU: a function of the sample's seed and of the place in its sequence, and of nothing else.

vLLM's CPU sampler draws a number per row and engine step from a `torch.Generator` of each seeded request. Such a stream
moves on with every draw, also those that are thrown away when a prompt is read in pieces or a response that had to make
room is read again, so a sample would depend on what it was batched with; vLLM rewinds it there, which generators of a
CPU cannot do and end with an error. Here requests carry their seed in `extra_args` and have no generator. On a GPU,
vLLM's sampler counts places itself, or rewinds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

SEED = "da3po_seed"  # key in SamplingParams.extra_args: 63 bits

_STEP = np.uint64(0x9E3779B97F4A7C15)


def splitmix64(seeds: npt.NDArray[np.uint64], places: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The output number `places` (from 0) of the SplitMix64 generators that start at `seeds`; both [n].

    Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014. A counter times an odd constant,
    mixed: any output is had without those before it.
    """
    mixed = seeds + (places + np.uint64(1)) * _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def by_place(worker: Any) -> None:
    """Have this vLLM worker sample with noise of (`SEED`, tokens so far); requests without a seed have seed 0.

    Call it on every rank of an engine, once (`LLMEngine.collective_rpc`).
    """
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    runner = worker.model_runner
    sampler = runner.sampler.topk_topp_sampler

    def forward(
        logits: torch.Tensor, generators: Any, k: torch.Tensor | None, p: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A token per row of `logits` [B, V], and where they are asked for the log-probs [B, V] that it is drawn by."""
        logits = apply_top_k_top_p(logits, k, p)
        batch, rows = runner.input_batch, logits.shape[0]
        asked = [runner.requests[name].sampling_params.extra_args for name in batch.req_ids[:rows]]
        seeds = np.array([extra[SEED] if extra else 0 for extra in asked], dtype=np.uint64)
        noise = splitmix64(seeds, batch.num_tokens_no_spec[:rows].astype(np.uint64)) >> np.uint64(1)
        drawn = torch.ops._C.fused_gumbel_argmax(logits.float(), torch.from_numpy(noise.astype(np.int64)))
        processed = sampler.logprobs_mode == "processed_logprobs"
        return drawn, logits.log_softmax(dim=-1, dtype=torch.float32) if processed else None

    sampler.forward = forward
