"""The loop's own arithmetic: what is due when, and how a batch is cut into mini-batches."""

import math

import pytest

from da3po_cli.algos import AlgoConfig
from da3po_cli.algos.types import Group, Prompt, Response, Trajectory
from da3po_cli.config.schema import Config, ModelConfig
from da3po_cli.protocols import Update
from da3po_cli.training.loop import due, micro_batches, mini_batch_rows, update_metrics, use_tis


@pytest.mark.parametrize(("every", "expected"), [(3, [3, 6, 7]), (0, [7]), (1, [1, 2, 3, 4, 5, 6, 7]), (10, [7])])
def test_due_every_n_steps_and_always_at_the_end(every, expected):
    assert [step for step in range(1, 8) if due(step, every, last=7)] == expected


def groups(*sizes):
    prompt, response = Prompt("u", (1,), "", "", "s", 0), Response([1], [0.0], "", "stop")
    return [Group(prompt, [response] * size) for size in sizes]


def test_mini_batches_are_whole_groups_in_prompt_order():
    assert list(mini_batch_rows(groups(2, 2, 2, 2, 2), 2)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(mini_batch_rows(groups(1, 3, 2), 2)) == [[0, 1, 2, 3], [4, 5]]
    assert list(mini_batch_rows([], 2)) == []


class Place:
    """Data rank r of n; the only part of a Comm that cutting needs."""

    def __init__(self, data_rank, data_size):
        self.data_rank, self.data_size = data_rank, data_size


def test_every_trajectory_is_trained_on_by_exactly_one_data_parallel_rank():
    trajectories = [Trajectory((1, 2), list(range(1, 2 + i)), [-1.0] * (i + 1), 0.5) for i in range(12)]
    rows = [3, 4, 5, 6, 7, 8, 9, 10]
    seen = []
    for rank in range(3):
        for batch in micro_batches(trajectories, rows, Config(), Place(rank, 3)):
            seen += batch.rows
    assert sorted(seen) == rows


@pytest.mark.parametrize("stale", [False, True])
def test_tis_is_on_for_half_precision_and_older_samples_unless_told_otherwise(stale):
    full, half = ModelConfig(dtype="float32"), ModelConfig(dtype="bfloat16")
    assert use_tis(Config(model=full), stale=stale) == stale
    assert use_tis(Config(model=half), stale=stale)
    assert use_tis(Config(model=full, algo=AlgoConfig(tis="on")), stale=stale)
    assert not use_tis(Config(model=half, algo=AlgoConfig(tis="off")), stale=stale)


def update(loss=1.0, norm=2.0, skipped=False):
    return Update(loss=loss, grad_norm=norm, lr=1e-3, skipped=skipped, sums={})


def test_a_skipped_update_is_counted_and_does_not_colour_the_gradient_norm():
    metrics = update_metrics([update(loss=1.0, norm=2.0), update(loss=3.0, norm=math.inf, skipped=True)])
    assert metrics["train/loss"] == 2.0
    assert metrics["train/grad_norm"] == 2.0
    assert metrics["train/skipped"] == 1
    assert metrics["train/updates"] == 2
    assert math.isnan(update_metrics([update(norm=math.nan, skipped=True)])["train/grad_norm"])
