"""Tokens per second of the rollout engine, and what exact per-sample seeds cost.

    OMP_NUM_THREADS=1 python benchmarks/bench_rollout.py [MODEL_DIR] [--samples 256] [--tokens 40] [--repeats 5]
    OMP_NUM_THREADS=1 python -m torch.distributed.run --standalone --nproc-per-node 2 benchmarks/bench_rollout.py ...

Random weights, and responses run to their limit, so that all variants generate the same number of tokens. Variants take
turns and each keeps its best time: only the ratios of one run are comparable, on a shared machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from da3po_cli.algos.types import Prompt
from da3po_cli.config.schema import RolloutConfig
from da3po_cli.protocols import Sampling
from da3po_cli.rollouts.engine import VllmGenerator
from megatron_bridge.parallel import initialize

DEMO = Path(__file__).resolve().parent.parent / "da3po_cli" / "demo_model"
GROUP = 16


def measure(variants: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Best seconds of each variant, taken in turns."""
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(repeats):
        for name, call in variants.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEMO, type=Path)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()

    comm = initialize(1, 1, seed=0)
    start = time.perf_counter()
    generator = VllmGenerator(
        args.model,
        rollout=RolloutConfig(max_tokens=args.tokens, max_sequences=args.samples),
        dtype="float32",
        seed=0,
        max_prompt_tokens=32,
        stop_token_ids=[],
        comm=comm,
    )
    started = time.perf_counter() - start
    prompts = [
        Prompt(f"p{i}", tuple(3 + (5 * i + 3 * j) % 17 for j in range(15)), "", "", "", i)
        for i in range(args.samples // GROUP)
    ]
    sampling = Sampling(n=GROUP, max_tokens=args.tokens)

    def generate() -> None:
        generator.generate(prompts, sampling)

    def generate_without_seeds() -> None:
        with mock.patch("da3po_cli.rollouts.engine.sample_seed", lambda *_: None):
            generate()

    generate()  # the first call is slower
    best = measure({"seeded": generate, "without seeds": generate_without_seeds}, args.repeats)
    if comm.rank == 0:
        tokens = len(prompts) * GROUP * args.tokens
        print(f"start {started:.1f} s; {comm.world} engine(s), {tokens} tokens a call")
        for name, seconds in best.items():
            print(f"{name:14s} {seconds:7.3f} s  {tokens / seconds:8.0f} tokens/s")
        print(f"seeds cost {best['seeded'] / best['without seeds'] - 1:+.1%}")
    comm.barrier()
    sys.stdout.flush()
    os._exit(0)  # skips the destructors of vLLM, which may abort


if __name__ == "__main__":
    main()
