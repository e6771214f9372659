"""Micro-batch planning and padding: every row once, budgets, balance, alignment."""

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
        for batch in rank:
            padded = len(batch) * max((lengths[row] for row in batch), default=0)
            assert padded <= budget or len(batch) == 1
        # an empty micro-batch only where nothing is left to halve
        assert all(batch for batch in rank) or all(len(batch) <= 1 for batch in rank)
    loads = [sum(lengths[row] for batch in rank for row in batch) for rank in plan]
    assert max(loads) - min(loads) <= max(lengths, default=0)
    assert plan == plan_micro_batches(lengths, ranks, budget)


def test_plan_is_sorted_by_length_and_minimal():
    # 4 rows of 10 and 4 of 100 in 400: mixing them would take three passes, sorting takes two
    assert plan_micro_batches([10, 100] * 4, 1, 400) == [[[1, 3, 5, 7], [0, 2, 4, 6]]]


def test_a_row_beyond_the_budget_travels_alone():
    assert plan_micro_batches([50, 10, 10], 1, 25) == [[[0], [1, 2]]]


def test_ranks_without_rows_get_empty_batches():
    assert plan_micro_batches([5], 3, 100) == [[[0]], [[]], [[]]]
    assert plan_micro_batches([], 2, 100) == [[], []]


def test_a_rank_splits_rather_than_idles():
    plan = plan_micro_batches([100, 100, 50, 50, 50, 50], 2, 100)
    assert [len(rank) for rank in plan] == [2, 2]
    plan = plan_micro_batches([90, 30, 30, 30], 2, 60)  # rank 0 has one long row, rank 1 three short ones
    assert plan == [[[0], []], [[1, 2], [3]]]


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
