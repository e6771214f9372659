"""vLLM beside the trainer on one GPU: sleep, wake, resharding, and the same log-probs on both sides."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu


def free_gib() -> float:
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0] / 2**30


def test_sleep_wake_and_resharding(
    parallel: Any, build: Any, wide: Path, batches: Any, cross_entropy: Any, record_property: Any
) -> None:
    """One life of an engine in one test, because a process can start one only: the order is that of a training run."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    from da3po_cli.algos.types import Prompt
    from da3po_cli.config.schema import RolloutConfig, TrainConfig
    from da3po_cli.protocols import Sampling
    from da3po_cli.rollouts.engine import VllmGenerator
    from da3po_cli.rollouts.sync import VllmSync

    start = time.perf_counter()
    rollout = RolloutConfig(max_tokens=128, max_sequences=64, gpu_memory=0.4)
    options = {"dtype": "bfloat16", "seed": 0, "max_prompt_tokens": 64, "stop_token_ids": [0]}
    generator = VllmGenerator(wide, rollout=rollout, comm=parallel, **options)  # asleep, before the policy: as a run
    record_property("start", f"{time.perf_counter() - start:.0f} s")
    asleep = free_gib()
    layers = "local" if importlib.util.find_spec("transformer_engine") is None else "te"
    policy = build(wide, layers, train=TrainConfig(lr=1e-4, warmup_steps=0))
    ids = [[100 + 7 * row + 3 * column for column in range(32)] for row in range(8)]
    sync = VllmSync(policy, generator, ids, max_gap=0.05)
    before = free_gib()

    first = sync.push()
    gaps = [sync.probe_gap()]
    assert before - free_gib() > 1.0  # awake: 1.2 GB of weights and the KV cache
    prompts = [Prompt(f"p{row}", tuple(tokens), "", "", "", row) for row, tokens in enumerate(ids)]
    sampling = Sampling(n=8, max_tokens=128, seed=3)
    start = time.perf_counter()
    groups = generator.generate(prompts, sampling)
    taken = time.perf_counter() - start
    responses = [response for group in groups for response in group.responses]
    assert len(responses) == 64 and all(response.finish_reason in ("stop", "length") for response in responses)
    tokens = sum(len(response.token_ids) for response in responses)

    generator.sleep()
    assert free_gib() > before - 0.5  # given back
    data = batches(rows=8, length=512, vocab=20000)
    update = policy.update(data, cross_entropy(sum(int(batch.mask.sum()) for batch in data)))
    assert not update.skipped
    second = sync.push()
    gaps.append(sync.probe_gap())
    start = time.perf_counter()
    generator.sleep()
    slept = time.perf_counter() - start
    third = sync.push()
    gaps.append(sync.probe_gap())
    assert max(gaps) < 0.1  # the engine has the new weights
    best = min(second.seconds, third.seconds)
    record_property("resharding", f"{first.gigabytes / best:.1f} GB/s ({first.gigabytes:.2f} GB in {best:.2f} s)")
    record_property("sleep", f"{slept:.2f} s")
    record_property("rollout", f"{tokens / taken:,.0f} tokens/s")
    record_property("log-prob gap", f"{max(gaps):.1e}")
    record_property("free while asleep", f"{asleep:.0f} GiB")
    generator.close()
