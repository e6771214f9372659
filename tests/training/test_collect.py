"""What a step's rollouts are made with: a seed per step, and marks of rows that are solved for the first time."""

from __future__ import annotations

import json

import pytest

from da3po_cli.algos.sampling import DynamicSampler
from da3po_cli.algos.table import AlgoConfig
from da3po_cli.algos.types import Group, Response
from da3po_cli.config.models import DEMO_MODEL
from da3po_cli.config.schema import DataConfig
from da3po_cli.data.prompts import open_stream
from da3po_cli.protocols import Sampling
from da3po_cli.training.clock import Clock
from da3po_cli.training.collect import LiveRollouts


class Scripted:
    """A generator that notes how it is asked to sample; row r is solved from the (r + 1)-th call on, in half."""

    def __init__(self):
        self.asked = []
        self.sleeps = 0

    def generate(self, prompts, sampling):
        self.asked.append(sampling)
        return [Group(prompt, [self._one(prompt, n) for n in range(sampling.n)]) for prompt in prompts]

    def _one(self, prompt, number):
        right = number % 2 == 0 and prompt.index < len(self.asked)
        return Response([1], [-0.5], "", "stop", "correct" if right else "wrong", int(right), 2.0 * right - 1)

    def sleep(self):
        self.sleeps += 1


@pytest.fixture
def live(tmp_path):
    """A source of one group a step, over 5 rows, and its generator."""
    from transformers import AutoTokenizer

    file = tmp_path / "five.jsonl"
    file.write_text("".join(json.dumps({"problem": f"{row}+1=?", "answer": str(row + 1)}) + "\n" for row in range(5)))
    data = DataConfig(train=str(file), template="none")
    prompts = open_stream(data, AutoTokenizer.from_pretrained(DEMO_MODEL), "train", 3)
    sampler = DynamicSampler(AlgoConfig(dynamic_sampling=True), 1)
    generator = Scripted()
    sampling = Sampling(n=2, max_tokens=4, temperature=0.7, seed=70)
    return LiveRollouts(prompts, generator, lambda groups: None, sampler, sampling, lambda *_: None), generator


def test_a_step_samples_with_a_seed_of_its_own(live):
    """So that a prompt that is seen in two steps gets fresh samples; and a step that is done again gets the same."""
    source, generator = live
    seeds = {}
    for step in (1, 2, 3):
        before = len(generator.asked)
        source.collect(step, Clock(lambda *_: None))
        asked = generator.asked[before:]
        assert {(one.n, one.max_tokens, one.temperature) for one in asked} == {(2, 4, 0.7)}
        (seeds[step],) = {one.seed for one in asked}
        assert generator.sleeps == step
    assert len(set(seeds.values())) == 3
    source.collect(2, Clock(lambda *_: None))
    assert generator.asked[-1].seed == seeds[2]


def test_a_row_is_solved_for_the_first_time_once(live):
    source, _ = live
    solved = []
    for step in range(1, 9):
        batch = source.collect(step, Clock(lambda *_: None))
        for group in batch.kept + batch.dropped:
            assert group.first_solve == (group.correct > 0 and group.prompt.index not in solved)
            solved += [group.prompt.index] if group.first_solve else []
    assert sorted(solved) == [0, 1, 2, 3, 4]
