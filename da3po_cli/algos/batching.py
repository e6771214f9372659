"""From trajectories to micro-batches: which rows go to which data-parallel rank and forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapreplace
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
    """Spread rows over data-parallel ranks, and each rank's rows over micro-batches of at most a number of tokens.

    Both times rows go, longest first, to where the fewest tokens are (Graham's LPT rule), so that no two ranks, and no
    two micro-batches of a rank, differ by more than one row. The fullest micro-batch comes first: a lack of memory
    shows at once.

    Args:
        lengths: tokens of each row, prompt and response.
        micro_batch_tokens: upper bound of the tokens of a micro-batch; a longer row travels alone.

    Returns:
        Every row exactly once. All ranks get the same number of micro-batches, since a pass is collective; a rank with
        too few rows gets empty ones (see `collate`). The same input gives the same plan.
    """
    ranks = _spread(range(len(lengths)), lengths, data_size)
    count = max((_fewest(rows, lengths, micro_batch_tokens) for rows in ranks), default=0)
    return [_spread(rows, lengths, count) for rows in ranks]


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


def _spread(rows: Iterable[int], lengths: Sequence[int], count: int) -> list[list[int]]:
    """Rows in `count` bins of like load, fullest first. Ties go to the bin with fewer rows, then to the earlier one."""
    bins: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, 0, number) for number in range(count)]  # (tokens, rows, bin)
    for row in sorted(rows, key=lambda row: (-lengths[row], row)):
        tokens, size, number = heap[0]
        bins[number].append(row)
        heapreplace(heap, (tokens + lengths[row], size + 1, number))
    load = {number: tokens for tokens, _, number in heap}
    return [bins[number] for number in sorted(load, key=lambda number: (-load[number], number))]


def _fewest(rows: Sequence[int], lengths: Sequence[int], budget: int) -> int:
    """The fewest bins, from what first-fit decreasing needs upwards, over which `_spread` keeps to the budget."""
    loads: list[int] = []
    for length in sorted((lengths[row] for row in rows), reverse=True):
        fits = next((number for number, load in enumerate(loads) if load + length <= budget), None)
        if fits is None:
            loads.append(length)
        else:
            loads[fits] += length
    count = len(loads)
    while any(len(bin_) > 1 and sum(lengths[row] for row in bin_) > budget for bin_ in _spread(rows, lengths, count)):
        count += 1
    return count
