"""Sampling noise on a CPU is of the sample alone: whatever else the engine does, and however it does it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from da3po_cli.rollouts.noise import splitmix64

WAYS = [(way, *more) for way in ("usual", "prompts in pieces", "too little memory") for more in ((), ("reversed",))]


def test_splitmix64_gives_its_published_numbers() -> None:
    """https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64, seed 1234567; in any order."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    places = np.array([4, 0, 2, 1, 3], dtype=np.uint64)
    assert splitmix64(np.full(5, 1234567, np.uint64), places).tolist() == [published[place] for place in places]


@pytest.fixture(scope="module")
def crowded(run_world: Any) -> dict[Any, Any]:
    return run_world(1, "crowded")[0]


@pytest.mark.slow
def test_the_ways_are_different(crowded: dict[Any, Any]) -> None:
    assert crowded["too little memory"] > 10
    assert crowded["usual"] == crowded["prompts in pieces"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.9])
@pytest.mark.parametrize("way", WAYS[1:], ids=" ".join)
def test_a_sample_is_the_same_in_any_company(crowded: dict[Any, Any], way: tuple[str, ...], temperature: float) -> None:
    """Prompts in pieces and samples that made room were read again: their numbers are those of one pass, rounded."""
    expected, got = crowded["usual", temperature], crowded[way[0], temperature, *way[1:]]
    assert len({tuple(one.token_ids) for group in expected for one in group.responses}) > 40
    for left, right in zip(expected, got, strict=True):
        assert left.prompt == right.prompt
        assert [one.token_ids for one in left.responses] == [one.token_ids for one in right.responses]
        for one, other in zip(left.responses, right.responses, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
