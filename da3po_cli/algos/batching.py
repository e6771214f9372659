"""From trajectories to padded micro-batches: which rows go to which data-parallel rank and forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch

from da3po_cli.algos.types import Denominators, MicroBatch, Trajectory

Plan = list[list[list[int]]]
"""[data rank][micro-batch][row]"""


def denominators(trajectories: Sequence[Trajectory], norm_length: int) -> Denominators:
    """Global denominators of the mini-batch made of these trajectories."""
    lengths = [len(trajectory.response_ids) for trajectory in trajectories]
    return Denominators(sum(lengths), sum(length > 0 for length in lengths), norm_length)


def plan_micro_batches(lengths: Sequence[int], data_size: int, micro_batch_tokens: int) -> Plan:
    """Spread rows over data-parallel ranks and pack each rank's rows into micro-batches.

    Ranks are balanced by tokens: rows go, longest first, to the rank with the fewest tokens so far, so that no two
    ranks differ by more than one row. On a rank, rows sorted by length are cut greedily, so that neighbours are of
    like length and little is padded. Longest first also means that a lack of memory shows in the first pass.

    Args:
        lengths: tokens of each row, prompt and response.
        micro_batch_tokens: upper bound of rows * longest row of a micro-batch; a longer row travels alone.

    Returns:
        Every row exactly once. All ranks get the same number of micro-batches, since a pass is collective: a rank
        with fewer splits its largest ones, and once all of them are single rows, gets empty ones (see `collate`).
        The same input gives the same plan.
    """
    plan = [_pack(rows, lengths, micro_batch_tokens) for rows in _deal(lengths, data_size)]
    count = max((len(batches) for batches in plan), default=0)
    for batches in plan:
        while len(batches) < count:
            _split_largest(batches, lengths)
    return plan


def collate(trajectories: Sequence[Trajectory], rows: Sequence[int]) -> MicroBatch:
    """Pad the chosen trajectories on the right with 0 to the longest one, [B, S].

    Position t holds token t and predicts token t + 1, so a response of R tokens after a prompt of P has its True mask
    at positions P - 1 ... P + R - 2, and the last position of a row has no target. No rows give one row of two masked
    positions, with which a rank takes part in a pass to which it adds nothing.

    Raises:
        ValueError: a prompt is empty, for then nothing predicts the first response token, or a response has not one
            rollout log-prob per token.
    """
    picked = [trajectories[row] for row in rows] or [Trajectory((0, 0), [], [], 0.0)]
    for row, item in zip(rows, picked, strict=False):
        if not item.prompt_ids:
            raise ValueError(f"trajectory {row} has an empty prompt")
        if len(item.rollout_logprobs) != len(item.response_ids):
            counts = f"{len(item.response_ids)} response tokens and {len(item.rollout_logprobs)} log-probs"
            raise ValueError(f"trajectory {row} has {counts}")
    total = torch.tensor([item.length for item in picked]).unsqueeze(1)  # [B, 1]
    prompt = torch.tensor([len(item.prompt_ids) for item in picked]).unsqueeze(1)
    position = torch.arange(int(total.max())).unsqueeze(0)  # [1, S]
    mask = (position >= prompt - 1) & (position < total - 1)  # [B, S]

    # a boolean index walks row by row, the order in which the values are chained
    tokens = torch.zeros(mask.shape, dtype=torch.int64)
    ids = chain.from_iterable(chain(item.prompt_ids, item.response_ids) for item in picked)
    tokens[position < total] = torch.as_tensor(np.fromiter(ids, dtype=np.int64))
    targets = torch.zeros_like(tokens)
    targets[:, :-1] = tokens[:, 1:]
    logprobs = torch.zeros(mask.shape, dtype=torch.float32)
    values = chain.from_iterable(item.rollout_logprobs for item in picked)
    logprobs[mask] = torch.as_tensor(np.fromiter(values, dtype=np.float32))
    return MicroBatch(
        tokens=tokens,
        targets=targets,
        mask=mask,
        advantages=torch.tensor([item.advantage for item in picked], dtype=torch.float32),
        rollout_logprobs=logprobs,
        rows=list(rows),
    )


def _deal(lengths: Sequence[int], data_size: int) -> list[list[int]]:
    """Rows of each rank, longest first. Ties go to the rank with fewer rows, then to the lower rank."""
    ranks: list[list[int]] = [[] for _ in range(data_size)]
    tokens = [0] * data_size
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        rank = min(range(data_size), key=lambda rank: (tokens[rank], len(ranks[rank]), rank))
        ranks[rank].append(row)
        tokens[rank] += lengths[row]
    return ranks


def _pack(rows: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut rows, sorted longest first, into the fewest runs with len(run) * longest <= budget."""
    batches: list[list[int]] = []
    for row in rows:
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _split_largest(batches: list[list[int]], lengths: Sequence[int]) -> None:
    """Halve the micro-batch with the most padded tokens, in place; append an empty one when none can be halved."""
    sizes = [len(rows) * lengths[rows[0]] if len(rows) > 1 else 0 for rows in batches]
    largest = max(range(len(batches)), key=lambda index: (sizes[index], -index), default=None)
    if largest is None or not sizes[largest]:
        batches.append([])
        return
    rows = batches[largest]
    half = len(rows) // 2
    batches[largest : largest + 1] = [rows[:half], rows[half:]]
