"""Every key of `algo` changes what is computed: rewards, advantages, which groups are kept, or the loss."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from da3po_cli.algos.advantages import assign_advantages
from da3po_cli.algos.batching import collate, denominators
from da3po_cli.algos.losses import make_loss_fn
from da3po_cli.algos.sampling import DynamicSampler, SamplingExhausted
from da3po_cli.algos.table import AlgoConfig
from da3po_cli.algos.types import Group, Prompt, Response, Trajectory
from da3po_cli.config.plan import overlong_cache
from da3po_cli.config.schema import Config, ModelConfig, RolloutConfig
from da3po_cli.rewards import Shaping
from da3po_cli.training.loop import use_tis

LONGEST, NEEDED = 10, 4
BASE = AlgoConfig(
    daa_lambda=2.0, dual_clip=1.5, kl_coef=0.1, dynamic_sampling=True, max_rounds=2, on_exhausted="short",
    carry_surplus=False, overlong_share=0.5, tis_cap=1.2,
)  # fmt: skip
"""All parts at work, so that each key has something to change."""
OTHER: dict[str, Any] = {
    "std_power": 0.0,
    "std_ddof": 0,
    "daa_lambda": 1.5,
    "daa_tau": 0.9,
    "daa_schedule": "linear",
    "ratio": "sequence",
    "clip_low": 0.1,
    "clip_high": 0.3,
    "dual_clip": None,
    "aggregate": "seq-mean-token-mean",
    "kl_coef": 0.0,
    "dynamic_sampling": False,
    "max_rounds": 1,
    "on_exhausted": "unfiltered",
    "carry_surplus": True,
    "overlong_cache": 2,
    "overlong_share": 0.2,
    "overlong_factor": 0.5,
    "tis": "off",
    "tis_cap": 3.0,
}
"""Another value of each key. `name` is a label: it only chooses the defaults of the others."""


def group(number: int, correct: int) -> Group:
    """Four responses of 3, 6, 8 and 10 tokens, the longest ones correct."""
    responses = [
        Response([1] * length, [-1.0 - 0.1 * length] * length, "", "stop", "correct" if acc else "wrong", int(acc))
        for length, acc in ((3, correct > 3), (6, correct > 2), (8, correct > 1), (LONGEST, correct > 0))
    ]
    return Group(Prompt(str(number), (1, 2), "", "", "s", number), responses)


def outcome(algo: AlgoConfig) -> list[Any]:
    """Three steps, as a run takes them: with more groups to keep than it needs, too few, and more again."""
    config = Config(algo=algo, model=ModelConfig(dtype="bfloat16"), rollout=RolloutConfig(max_tokens=LONGEST))
    shaping = Shaping(LONGEST, overlong_cache(config), algo.overlong_factor)
    sampler, number, found = DynamicSampler(algo, NEEDED), 0, []
    for pattern in ([1, 2, 3, 1], [0, 0, 4, 0, 0, 1], [1, 2, 3, 1]):  # correct responses of the groups, over and over
        sampler.start()
        while not sampler.full:
            drawn = [group(number + i, pattern[i % len(pattern)]) for i in range(sampler.next_round())]
            number += len(drawn)
            for response in (response for one in drawn for response in one.responses):
                response.reward = shaping.reward(response.acc, len(response.token_ids))
            sampler.add(drawn)
        try:
            batch = sampler.finish()
        except SamplingExhausted as error:
            return [*found, str(error)]
        for one in batch.kept:
            assign_advantages(one, algo)
        found.append([one.prompt.uid for one in batch.kept])
        found.append(loss(config, batch.kept))
    return found


def loss(config: Config, groups: list[Group]) -> float:
    """Of a policy that has moved by up to half a nat either way, token by token."""
    trajectories = [
        Trajectory(one.prompt.token_ids, response.token_ids, response.logprobs, response.advantage)
        for one in groups
        for response in one.responses
    ]
    batch = collate(trajectories, range(len(trajectories)))
    steps = torch.arange(batch.mask.numel(), dtype=torch.float64).reshape(batch.mask.shape)
    batch.old_logprobs = batch.rollout_logprobs.double() + 0.5 * torch.cos(steps) * batch.mask
    batch.ref_logprobs = batch.old_logprobs + 0.3 * batch.mask
    logp = batch.old_logprobs + 0.5 * torch.sin(3 * steps) * batch.mask
    bound = make_loss_fn(config.algo, denominators(trajectories, LONGEST), use_tis(config, stale=False))
    return float(bound(logp, torch.zeros_like(logp), batch)[0])


@pytest.mark.parametrize("key", [field.name for field in fields(AlgoConfig) if field.name != "name"])
def test_another_value_gives_another_step(key: str) -> None:
    assert outcome(replace(BASE, **{key: OTHER[key]})) != outcome(BASE)


def test_the_name_gives_none() -> None:
    assert outcome(replace(BASE, name="grpo")) == outcome(BASE)
