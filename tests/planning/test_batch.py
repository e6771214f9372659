"""The arithmetic of a step by hand, and the kept ratio by integration."""

from __future__ import annotations

import math

import pytest

from da3po_cli.config.load import load_config
from da3po_cli.config.schema import ParallelConfig
from da3po_cli.planning.activations import in_flight
from da3po_cli.planning.batch import Measured, batch_of, kept_ratio


@pytest.mark.parametrize("group_size", [2, 8, 16])
def test_kept_ratio_is_the_integral(group_size: int) -> None:
    """Of 1 - p^G - (1-p)^G over the arcsine law: p = sin^2(x) with x uniform on (0, pi/2), by the midpoint rule."""
    count = 2000
    points = [math.sin((i + 0.5) / count * math.pi / 2) ** 2 for i in range(count)]
    mean = sum(1 - p**group_size - (1 - p) ** group_size for p in points) / count
    assert kept_ratio(group_size) == pytest.approx(mean, abs=1e-6)


def test_the_step_of_the_paper() -> None:
    config = load_config(["qwen3-4b"], env={}).config
    batch = batch_of(config, 8)
    assert (batch.responses, batch.updates, batch.mini_responses, batch.rank_responses) == (8192, 16, 512, 64)
    assert batch.longest == 2048 + 20480
    assert batch.mean == 9011
    assert batch.micro_batches == 24  # 64 x 9011 = 576,704 tokens in micro-batches of 24,576
    assert batch.tokens == 24030
    assert batch.most_tokens == 24576
    assert batch.kept == pytest.approx(0.72, abs=0.005)
    assert batch.generated == math.ceil(512 / batch.kept)


def test_responses_that_do_not_divide_over_the_ranks() -> None:
    """512 over 7 data-parallel ranks are 73.14: the fullest rank has 74, and of 600 ranks the fullest has 1."""
    config = load_config(["qwen3-4b"], env={}).config
    assert batch_of(config, 7).rank_responses == 74
    assert batch_of(config, 600).rank_responses == 1


def test_a_run_takes_the_place_of_assumptions() -> None:
    config = load_config(["qwen3-4b"], env={}).config
    batch = batch_of(config, 8, Measured("first", 0.5, 3000.0))
    assert (batch.generated, batch.mean, batch.kept_source) == (1024, 3000, "measured in first")
    assert batch.micro_batches == 8  # 192,000 tokens
    half = batch_of(config, 8, Measured("first", 0.5, None))
    assert half.mean == 9011


def test_without_dynamic_sampling_every_group_counts() -> None:
    config = load_config(["qwen3-4b"], ["algo.name=grpo"], env={}).config
    assert not config.algo.dynamic_sampling
    assert batch_of(config, 8).generated == config.rollout.prompts


def test_a_sequence_longer_than_a_micro_batch_travels_alone() -> None:
    config = load_config(["qwen3-4b"], ["train.micro_batch_tokens=4096"], env={}).config
    assert batch_of(config, 8).most_tokens == 22528


def simulated(pipeline: int, stage: int, micro_batches: int) -> int:
    """Most micro-batches between their forward and backward on a stage: 1F1B, step by step."""
    warmup = min(pipeline - stage - 1, micro_batches)
    order = ["F"] * warmup + ["F", "B"] * (micro_batches - warmup) + ["B"] * warmup
    held = most = 0
    for one in order:
        held += 1 if one == "F" else -1
        most = max(most, held)
    return most


@pytest.mark.parametrize("pipeline", [1, 2, 4, 8])
def test_micro_batches_in_flight(pipeline: int) -> None:
    for stage in range(pipeline):
        assert in_flight(ParallelConfig(pipeline=pipeline), stage) == simulated(pipeline, stage, 32)
