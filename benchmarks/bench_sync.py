"""Seconds of a weight sync, against the floor of copying the same weights once.

    OMP_NUM_THREADS=1 python benchmarks/bench_sync.py [MODEL_DIR] [--repeats 20]
    OMP_NUM_THREADS=1 python -m torch.distributed.run --standalone --nproc-per-node 2 benchmarks/bench_sync.py \\
        --training 2

`stream` walks the policy's weights (gathers over its ranks) and drops them, `push` is stream and hand-over to vLLM,
`probe` what follows the first push of a run. Variants take turns and each keeps its best time; the slowest rank counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import deque
from pathlib import Path

from da3po_cli.config.schema import RolloutConfig, TrainConfig
from da3po_cli.rollouts.engine import VllmGenerator
from da3po_cli.rollouts.sync import VllmSync
from megatron_bridge import build_policy
from megatron_bridge.parallel import initialize

DEMO = Path(__file__).resolve().parent.parent / "da3po_cli" / "demo_model"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEMO, type=Path)
    parser.add_argument("--training", type=int, default=1, help="tensor-parallel size of the policy")
    parser.add_argument("--rollout", type=int, default=1, help="tensor-parallel size of an engine")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()

    comm = initialize(args.training, 1, seed=0)
    policy = build_policy(args.model, dtype="float32", parallel=comm, train=TrainConfig(), temperature=1.0, seed=0)
    generator = VllmGenerator(
        args.model,
        rollout=RolloutConfig(max_tokens=40, tensor=args.rollout, max_sequences=64),
        dtype="float32",
        seed=0,
        max_prompt_tokens=32,
        stop_token_ids=[],
        comm=comm,
    )
    probe = [[3 + (5 * i + 3 * j) % 17 for j in range(15)] for i in range(4)]
    sync = VllmSync(policy, generator, probe, max_gap=1e-3)
    weights = {name: tensor.clone() for name, tensor in policy.iter_hf_weights(include_tied_head=False)}
    variants = {
        "copy": lambda: [tensor.clone() for tensor in weights.values()],
        "stream": lambda: deque(policy.iter_hf_weights(), maxlen=0),
        "push": sync.push,
        "probe": sync.probe_gap,
    }
    report, gap = sync.push(), sync.probe_gap()
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(args.repeats):
        for name, call in variants.items():
            comm.barrier()
            start = time.perf_counter()
            call()
            best[name] = min(best[name], generator.largest([time.perf_counter() - start])[0])
    if comm.rank == 0:
        print(f"{report.gigabytes * 1e3:.1f} MB in {len(weights)} tensors, log-prob gap {gap:.1e}")
        for name, seconds in best.items():
            print(f"{name:7s} {seconds * 1e3:8.2f} ms  {seconds / best['copy']:7.1f} x copy")
    comm.barrier()
    sys.stdout.flush()
    os._exit(0)  # skips the destructors of vLLM, which may abort


if __name__ == "__main__":
    main()
