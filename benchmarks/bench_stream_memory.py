"""Memory that the resharding stream takes beyond the weights, against the largest tensor and the whole model.

    OMP_NUM_THREADS=1 python -m torch.distributed.run --standalone --nproc-per-node 2 \\
        benchmarks/bench_stream_memory.py --tensor 2

A random model is streamed once to warm up, then once more with the peak of the resident memory reset before (Linux).
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections import deque
from pathlib import Path

from da3po_cli.config.schema import TrainConfig
from megatron_bridge import build_policy
from megatron_bridge.parallel import initialize

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(field: str) -> int:
    """VmRSS or VmHWM (its peak), bytes."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--pipeline", type=int, default=1)
    args = parser.parse_args()
    comm = initialize(args.tensor, args.pipeline, seed=0)
    box = [tempfile.mkdtemp() if comm.rank == 0 else ""]
    directory = Path(comm.broadcast(box)[0])
    if comm.rank == 0:
        import transformers

        config = transformers.Qwen3Config(
            vocab_size=16000,
            hidden_size=1024,
            intermediate_size=4096,
            num_hidden_layers=8,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=64,
            tie_word_embeddings=True,
        )
        transformers.Qwen3ForCausalLM(config).save_pretrained(directory)
    comm.barrier()
    train = TrainConfig(lr=0.0)
    policy = build_policy(directory, dtype="float32", parallel=comm, train=train, temperature=1.0, seed=0)
    sizes = [tensor.nbytes for _, tensor in policy.iter_hf_weights(include_tied_head=False)]
    gc.collect()
    before = resident("VmRSS")
    CLEAR.write_text("5")
    deque(policy.iter_hf_weights(), maxlen=0)
    extra = resident("VmHWM") - before
    megabytes = 1e6
    print(
        f"rank {comm.rank}: {extra / megabytes:.0f} MB beyond the weights; largest tensor {max(sizes) / megabytes:.0f} "
        f"MB (x {extra / max(sizes):.2f}), whole model {sum(sizes) / megabytes:.0f} MB (x {extra / sum(sizes):.2f})",
        flush=True,
    )
    comm.shutdown()


if __name__ == "__main__":
    main()
