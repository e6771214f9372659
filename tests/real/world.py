"""`torchrun world.py MODEL SEQUENCES RESULT [CHECKPOINT]`: log-probs of a float32 policy, tensor-parallel on all ranks.

SEQUENCES is a torch file with lists of token ids; RESULT gets one tensor of log-probs per list, of all ids but the
first. With CHECKPOINT the policy's weights come from there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from da3po_cli.algos.batching import collate
from da3po_cli.algos.types import Trajectory
from da3po_cli.config.schema import TrainConfig
from megatron_bridge import build_policy
from megatron_bridge.parallel import initialize


def main(model: Path, sequences: str, result: str, checkpoint: str | None = None) -> None:
    parallel = initialize(int(os.environ["WORLD_SIZE"]), 1, seed=0)
    policy = build_policy(model, dtype="float32", parallel=parallel, train=TrainConfig(), temperature=1.0, seed=0)
    if checkpoint is not None:
        policy.load(Path(checkpoint))
    ids = torch.load(sequences)
    rows = [Trajectory(tuple(one[:1]), one[1:], [0.0] * (len(one) - 1), 0.0) for one in ids]
    batches = [collate(rows, range(start, min(start + 5, len(rows)))) for start in range(0, len(rows), 5)]
    tables = [row for batch in policy.logprobs(batches) for row in batch]
    if parallel.rank == 0:
        torch.save([row[: len(one) - 1].clone() for row, one in zip(tables, ids, strict=True)], result)
    parallel.barrier()
    parallel.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
