"""Advantages against the closed forms of the papers and an independent torch implementation."""

import itertools
import math
import random
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from da3po_cli.algos import ALGORITHMS
from da3po_cli.algos.advantages import STD_EPS, assign_advantages, daa_weights, group_advantages
from da3po_cli.algos.sampling import judge
from da3po_cli.algos.types import Group, Prompt, Response
from da3po_cli.rewards import Shaping

DAPO, DA3PO = ALGORITHMS["dapo"].defaults, ALGORITHMS["da3po"].defaults
CASES = [(size, k) for size in (2, 4, 8, 16) for k in range(1, size)]


def group_of(acc, rewards=None, verdicts=None):
    responses = [
        Response([1], [0.0], "", "stop", "correct" if correct else "wrong", correct, 2.0 * correct - 1)
        for correct in acc
    ]
    for response, reward in zip(responses, rewards or [], strict=False):
        response.reward = reward
    for response, verdict in zip(responses, verdicts or [], strict=False):
        response.verdict = verdict
    return Group(Prompt("u", (1,), "", "", "s", 0), responses)


@pytest.mark.parametrize("low", [0.0, -1.0])
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize(("size", "k"), CASES)
def test_closed_forms(size, k, ddof, low):
    # A+ = sqrt((G-k)/k), A- = -sqrt(k/(G-k)), times sqrt((G-1)/G) for ddof 1, times std/(std+eps)
    rewards = [1.0] * k + [low] * (size - k)
    std = (1 - low) * math.sqrt(k * (size - k)) / size * (math.sqrt(size / (size - 1)) if ddof else 1)
    factor = (math.sqrt((size - 1) / size) if ddof else 1) * std / (std + STD_EPS)
    advantages = group_advantages(rewards, std_power=1.0, ddof=ddof)
    assert advantages[:k] == pytest.approx([math.sqrt((size - k) / k) * factor] * k, rel=1e-12)
    assert advantages[k:] == pytest.approx([-math.sqrt(k / (size - k)) * factor] * (size - k), rel=1e-12)


def test_published_values_at_sixteen():
    # the algorithm reference lists, to three digits, G=16 with ddof 1
    for k, high, low in [
        (1, 3.750, -0.250),
        (2, 2.562, -0.366),
        (4, 1.677, -0.559),
        (7, 1.098, -0.854),
        (8, 0.968, -0.968),
    ]:
        advantages = group_advantages([1.0] * k + [-1.0] * (16 - k), std_power=1.0, ddof=1)
        assert advantages[0] == pytest.approx(high, abs=6e-4)
        assert advantages[-1] == pytest.approx(low, abs=6e-4)


@pytest.mark.parametrize("lam", [1.0, 1.5, 2.0, 2.5])
@pytest.mark.parametrize(("size", "k"), CASES)
def test_sum_after_amplification(size, k, lam):
    # hard groups: sum A' = (lambda-1) sqrt(k(G-k)), sum |A'| = (lambda+1) sqrt(k(G-k)); other groups sum to 0
    group = group_of([1] * k + [0] * (size - k))
    assign_advantages(group, replace(DA3PO, daa_lambda=lam, std_ddof=0))
    amplified = [response.advantage for response in group.responses]
    root = math.sqrt(k * (size - k))
    factor = lam if k / size < 0.5 else 1.0
    assert sum(amplified) == pytest.approx((factor - 1) * root, rel=1e-5, abs=1e-9)
    assert sum(map(abs, amplified)) == pytest.approx((factor + 1) * root, rel=1e-5)


def test_lambda_one_is_dapo_to_the_last_bit():
    rng = random.Random(1)
    for _ in range(200):
        acc = [rng.randint(0, 1) for _ in range(8)]
        rewards = [2.0 * correct - 1 - rng.random() for correct in acc]
        mine, dapo = group_of(acc, rewards), group_of(acc, rewards)
        assign_advantages(mine, replace(DA3PO, daa_lambda=1.0))
        assign_advantages(dapo, DAPO)
        assert [r.advantage.hex() for r in mine.responses] == [r.advantage.hex() for r in dapo.responses]


@pytest.mark.parametrize(("k", "amplified"), [(1, True), (7, True), (8, False), (9, False), (15, False)])
def test_only_strictly_hard_prompts_are_amplified(k, amplified):
    weights = daa_weights([1] * k + [0] * (16 - k), lam=2.0, tau=0.5)
    assert weights == [2.0 if amplified else 1.0] * k + [1.0] * (16 - k)


def test_the_threshold_is_exact_at_every_pass_rate():
    """p = k/G against tau = k/G as a user writes it, where k < tau * G could differ by a rounding."""
    for size in range(2, 33):
        for k in range(1, size):
            weights = daa_weights([1] * k + [0] * (size - k), lam=2.0, tau=k / size)
            assert weights == [1.0] * size, (k, size)


@pytest.mark.parametrize("k", range(1, 8))
def test_inverse_gamma_gives_back_what_the_filter_takes(k):
    # alpha- / alpha+ = P(kept | correct) / P(kept | wrong), in exact fractions
    kept_if_correct, kept_if_wrong = 1 - Fraction(k, 16) ** 15, 1 - Fraction(16 - k, 16) ** 15
    weights = daa_weights([1] * k + [0] * (16 - k), lam=2.0, tau=0.5, schedule="inverse_gamma")
    assert weights[:k] == pytest.approx([float(kept_if_correct / kept_if_wrong)] * k, rel=1e-12)
    assert weights[k:] == [1.0] * (16 - k)


def test_the_linear_schedule_falls_from_lambda_to_one():
    def first(k, tau):
        return daa_weights([1] * k + [0] * (16 - k), lam=3.0, tau=tau, schedule="linear")[0]

    assert [first(k, 0.5) for k in (2, 4, 6, 8)] == [2.5, 2.0, 1.5, 1.0]
    assert first(4, 1.0) == 2.5


@pytest.mark.parametrize("schedule", ["constant", "inverse_gamma", "linear"])
def test_lambda_one_is_dapo_with_every_schedule(schedule):
    assert daa_weights([1, 0, 0, 0], lam=1.0, tau=0.5, schedule=schedule) == [1.0] * 4


def test_correctness_decides_and_not_the_shaped_reward():
    # a correct response of full length has reward 1 - 1 = 0 and is amplified all the same
    shaping = Shaping(max_tokens=100, overlong_cache=20)
    group = group_of([1, 0, 0, 0], [shaping.reward(1, 100), shaping.reward(0, 10), shaping.reward(0, 100), -1.0])
    assert group.responses[0].reward == 0.0
    assign_advantages(group, DA3PO)
    assert [response.daa_weight for response in group.responses] == [2.0, 1.0, 1.0, 1.0]
    assert group.responses[0].advantage > 0
    # and lengths alone do not make a wrong group worth keeping
    assert judge(group_of([0] * 4, [shaping.reward(0, length) for length in (10, 85, 95, 100)])) == "too_hard"


@pytest.mark.parametrize("schedule", ["constant", "inverse_gamma", "linear"])
def test_a_punished_correct_response_is_not_punished_more(schedule):
    """With overlong_factor=2 a correct response of full length has reward 1 - 2 = -1, as a wrong one has.

    Then one of eight stands out: A = sqrt(7) sqrt(7/8) for it and -sqrt(1/7) sqrt(7/8) for all others.
    """
    shaping = Shaping(max_tokens=100, overlong_cache=20, overlong_factor=2.0)
    group = group_of([1, 1] + [0] * 6, [shaping.reward(1, 10), shaping.reward(1, 100)] + [shaping.reward(0, 10)] * 6)
    assign_advantages(group, replace(DA3PO, daa_schedule=schedule))
    weights = daa_weights([1, 1] + [0] * 6, lam=2.0, tau=0.5, schedule=schedule)
    assert weights[0] == weights[1] > 1
    high, low = math.sqrt(7) * math.sqrt(7 / 8), -math.sqrt(1 / 7) * math.sqrt(7 / 8)
    expected = [weights[0] * high, *[low] * 7]
    assert [response.advantage for response in group.responses] == pytest.approx(expected, rel=1e-5)
    assert [response.daa_weight for response in group.responses] == [weights[0], *[1.0] * 7]


@pytest.mark.parametrize("rewards", [[0.2] * 7, [0.1] * 3, [-1.0] * 16, [1 / 3] * 5, [1.0]])
def test_equal_rewards_give_exact_zeros(rewards):
    assert group_advantages(rewards, std_power=1.0, ddof=1) == [0.0] * len(rewards)


@pytest.mark.parametrize(("ddof", "power"), list(itertools.product([0, 1], [0.5, 1.0, 2.0])))
def test_against_torch(ddof, power):
    rewards = torch.rand(16, dtype=torch.float64, generator=torch.Generator().manual_seed(ddof))
    expected = (rewards - rewards.mean()) / (rewards.std(correction=ddof) ** power + 1e-6)
    assert group_advantages(rewards.tolist(), std_power=power, ddof=ddof) == pytest.approx(expected.tolist(), rel=1e-12)


def test_no_std_is_the_centred_reward():
    assert group_advantages([1.0, -1.0, -1.0, -1.0], std_power=0.0, ddof=1) == [1.5, -0.5, -0.5, -0.5]


def test_nearly_equal_rewards_keep_their_size():
    # a variance in low precision would shrink these to about 0; the exact value is +-sqrt(1/2) * std/(std+eps)
    std = 1e-5 / math.sqrt(2)
    high = group_advantages([1.0, 1.00001], std_power=1.0, ddof=1)[1]
    assert high == pytest.approx(math.sqrt(0.5) * std / (std + 1e-6), rel=1e-5)


@given(st.lists(st.floats(-2, 2), min_size=2, max_size=16), st.floats(-3, 3))
def test_sum_is_zero_and_a_shift_changes_nothing(rewards, shift):
    advantages = group_advantages(rewards, std_power=1.0, ddof=1)
    assert math.fsum(advantages) == pytest.approx(0, abs=1e-6)
    if max(rewards) - min(rewards) > 1e-3:
        moved = group_advantages([reward + shift for reward in rewards], std_power=1.0, ddof=1)
        assert moved == pytest.approx(advantages, rel=1e-6, abs=1e-9)


def test_unknown_responses_take_no_part():
    group = group_of([1, 0, 0, 0], verdicts=["correct", "wrong", "wrong", "unknown"])
    group.responses[3].reward = 0.0
    assign_advantages(group, DA3PO)
    alone = group_of([1, 0, 0])
    assign_advantages(alone, DA3PO)
    assert [response.advantage for response in group.responses] == [*(r.advantage for r in alone.responses), 0.0]
    assert group.pass_rate == pytest.approx(1 / 3)
