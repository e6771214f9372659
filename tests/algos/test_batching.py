"""Micro-batch planning and padding: every row once, budgets, balance, alignment."""

import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from da3po_cli.algos.batching import collate, denominators, plan_micro_batches
from da3po_cli.algos.types import Trajectory

LENGTHS = st.lists(st.integers(2, 300), max_size=80)


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 5), st.integers(50, 1000))
def test_plan(lengths, ranks, budget):
    plan = plan_micro_batches(lengths, ranks, budget)
    assert len(plan) == ranks
    assert sorted(row for rank in plan for batch in rank for row in batch) == list(range(len(lengths)))
    assert len({len(rank) for rank in plan}) == 1
    for rank in plan:
        loads = [sum(lengths[row] for row in batch) for batch in rank]
        assert loads == sorted(loads, reverse=True)
        assert all(load <= budget or len(batch) == 1 for load, batch in zip(loads, rank, strict=True))
        assert max(loads, default=0) - min(loads, default=0) <= max(lengths, default=0)
        # an empty micro-batch only where there are no rows to give it
        assert all(rank) or all(len(batch) <= 1 for batch in rank)
    loads = [sum(lengths[row] for batch in rank for row in batch) for rank in plan]
    assert max(loads) - min(loads) <= max(lengths, default=0)
    assert plan == plan_micro_batches(lengths, ranks, budget)


def test_plan_needs_as_few_passes_as_the_tokens_allow():
    # 4 rows of 10 and 4 of 100 are 440 tokens: two passes of 400, of 220 tokens each
    assert plan_micro_batches([10, 100] * 4, 1, 400) == [[[1, 5, 0, 4], [3, 7, 2, 6]]]
    assert plan_micro_batches([10, 100] * 4, 1, 440) == [[[1, 3, 5, 7, 0, 2, 4, 6]]]


def test_a_row_beyond_the_budget_travels_alone():
    assert plan_micro_batches([50, 10, 10], 1, 25) == [[[0], [1, 2]]]


def test_ranks_without_rows_get_empty_batches():
    assert plan_micro_batches([5], 3, 100) == [[[0]], [[]], [[]]]
    assert plan_micro_batches([], 2, 100) == [[], []]


def test_a_rank_splits_rather_than_idles():
    plan = plan_micro_batches([90, 30, 30, 30], 2, 60)  # rank 0 has one long row, rank 1 three short ones
    assert plan == [[[0], []], [[1, 3], [2]]]


def long_tailed(count: int) -> list[int]:
    """Lengths of a reasoning run: log-normal with a median of 1,500 tokens, cut at 20,480; by inverse sampling."""
    normal = NormalDist(math.log(1500), 1.0)
    return [min(20480, int(math.exp(normal.inv_cdf((place * 0.61803398875) % 1)))) for place in range(1, count + 1)]


@pytest.mark.parametrize(
    ("lengths", "budget"),
    [
        pytest.param(long_tailed(512 * 16), 32768, id="long-tailed"),
        pytest.param([20 + place * 7 % 60 for place in range(512)], 1024, id="like the demo's"),
    ],
)
def test_the_budget_is_filled_and_ranks_are_balanced(lengths, budget):
    for ranks in (1, 8):
        plan = plan_micro_batches(lengths, ranks, budget)
        passes = ranks * len(plan[0])
        assert sum(lengths) / (passes * budget) >= 0.95 or len(plan[0]) == -(-sum(lengths) // (ranks * budget))
        loads = [sum(lengths[row] for batch in rank for row in batch) for rank in plan]
        assert max(loads) / (sum(loads) / ranks) <= 1.02


@settings(deadline=None)
@given(st.data())
def test_collate_aligns_and_pads(data):
    tokens = st.integers(1, 99)
    items = data.draw(
        st.lists(st.tuples(st.lists(tokens, min_size=1, max_size=6), st.lists(tokens, max_size=8)), min_size=1)
    )
    trajectories = [
        Trajectory(tuple(prompt), response, [-0.25 * (place + 1) for place in range(len(response))], float(number))
        for number, (prompt, response) in enumerate(items)
    ]
    rows = data.draw(st.lists(st.sampled_from(range(len(items))), min_size=1, unique=True))
    batch = collate(trajectories, rows)
    assert batch.rows == rows
    assert batch.tokens.shape == batch.mask.shape == (len(rows), max(trajectories[row].length for row in rows))
    for line, row in enumerate(rows):
        prompt, response = items[row]
        whole = [*prompt, *response]
        assert batch.tokens[line, : len(whole)].tolist() == whole
        assert not batch.tokens[line, len(whole) :].any()
        assert batch.targets[line, : len(whole) - 1].tolist() == whole[1:]
        assert not batch.targets[line, len(whole) - 1 :].any()
        # read through the mask, a row gives back its response and its log-probs
        mask = batch.mask[line]
        assert batch.targets[line][mask].tolist() == response
        assert batch.rollout_logprobs[line][mask].tolist() == trajectories[row].rollout_logprobs
        assert not batch.rollout_logprobs[line][~mask].any()
        assert batch.advantages[line] == row
    kinds = (batch.tokens.dtype, batch.targets.dtype, batch.mask.dtype, batch.advantages.dtype)
    assert kinds == (torch.int64, torch.int64, torch.bool, torch.float32)


def test_collate_of_nothing_takes_part_without_adding():
    batch = collate([], [])
    assert batch.tokens.shape == (1, 2)
    assert not batch.mask.any()
    assert batch.rows == []


def test_collate_rejects():
    with pytest.raises(ValueError, match="trajectory 0 has an empty prompt"):
        collate([Trajectory((), [1], [0.0], 0.0)], [0])
    with pytest.raises(ValueError, match="trajectory 0 has 2 response tokens and 1 log-probs"):
        collate([Trajectory((1,), [1, 2], [0.0], 0.0)], [0])


def test_denominators():
    trajectories = [Trajectory((1, 2), [1] * size, [0.0] * size, 0.0) for size in (3, 0, 5)]
    counts = denominators(trajectories, 64)
    assert (counts.tokens, counts.sequences, counts.norm_length) == (8, 2, 64)
