"""The arithmetic grader, overlong shaping, and the marks that a group receives."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from da3po_cli.algos.advantages import assign_advantages
from da3po_cli.algos.table import ALGORITHMS
from da3po_cli.algos.types import Group, Prompt, Response
from da3po_cli.config.schema import RewardConfig
from da3po_cli.errors import DivergedError, UsageError
from da3po_cli.rewards import REWARDS, Grade, Shaping, grade_groups, overlong
from da3po_cli.rewards.registry import sources
from da3po_cli.training.collect import Grader


@pytest.mark.parametrize(
    ("response", "finish", "gold", "verdict", "extracted"),
    [
        ("47+8=55,55-16=39", "stop", "39", "correct", "39"),
        ("47+8=39", "stop", "39", "correct", "39"),  # the outcome counts, not the steps
        ("47+8=55,55-16=40", "stop", "39", "wrong", "40"),
        ("47+8=55,55-16=39", "length", "39", "wrong", None),
        ("47+8=55,55-16=", "stop", "39", "wrong", None),
        ("47+8=55,55-16=39,", "stop", "39", "wrong", None),
        ("47+8=55,55-16=039", "stop", "39", "wrong", "039"),
        ("39", "stop", "39", "wrong", None),
        ("", "stop", "39", "wrong", None),
        ("1+2=3=3", "stop", "3", "correct", "3"),
    ],
)
def test_arith(response, finish, gold, verdict, extracted):
    result = REWARDS["arith"](response, finish, gold)
    assert (result.verdict, result.extracted) == (verdict, extracted)


@pytest.mark.parametrize(
    ("length", "value"),
    [(0, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20479, -4095 / 4096), (20480, -1.0), (30000, -1.0)],
)
def test_overlong_closed_form(length, value):
    assert overlong(length, 20480, 4096) == value


@given(st.integers(0, 200), st.integers(1, 100))
def test_overlong_is_continuous_monotone_and_bounded(length, cache):
    here, there = overlong(length, 100, cache), overlong(length + 1, 100, cache)
    assert -1 <= there <= here <= 0
    assert here - there <= 1 / cache + 1e-12


def test_shaping():
    assert Shaping(100).reward(1, 100) == 1.0
    assert Shaping(100).reward(0, 100) == -1.0
    assert Shaping(100, overlong_cache=20).reward(1, 90) == 0.5
    assert Shaping(100, overlong_cache=20, overlong_factor=0.5).reward(0, 100) == -1.5


def test_shaping_with_other_values():
    zero_one = Shaping(100, wrong=0.0, format_bonus=0.1)
    assert [zero_one.reward(1, 5), zero_one.reward(0, 5)] == [1.0, 0.0]
    assert [zero_one.reward(1, 5, answered=True), zero_one.reward(0, 5, answered=True)] == [1.1, 0.1]


def test_grade_groups_fills_and_counts():
    texts = ["right", "false", "odd", "right"]
    responses = [
        Response([1] * size, [0.0] * size, text, "stop") for size, text in zip([1, 1, 1, 10], texts, strict=True)
    ]
    responses.append(Response([], [], "right", "failed"))
    group = Group(Prompt("u", (1,), "", "gold", "s", 0), responses)
    seen = []

    def grade(items):
        seen.extend(items)
        verdicts = {"right": "correct", "false": "wrong"}
        return [Grade(verdicts.get(response, "unknown"), response, "test") for response, _, _ in items]

    counts = grade_groups([group], lambda source: grade, Shaping(10, overlong_cache=4))
    assert counts == {"correct": 2, "wrong": 1, "unknown": 1, "failed": 1}
    assert seen == [(text, "stop", "gold") for text in texts]  # the failed one is not graded
    assert [response.verdict for response in responses] == ["correct", "wrong", "unknown", "correct", "unknown"]
    assert [response.acc for response in responses] == [1, 0, 0, 1, 0]
    assert [response.reward for response in responses] == [1.0, -1.0, -1.0, 0.0, 0.0]
    assert group.pass_rate == pytest.approx(2 / 3)


def test_an_unknown_answer_has_the_wrong_reward_and_does_not_colour_its_group():
    """Known rewards 1, -1, -1: mean -1/3, std (ddof 1) 2/sqrt(3); the unknown one gets no advantage."""
    responses = [Response([1], [0.0], text, "stop") for text in ("correct", "wrong", "wrong", "unknown")]
    group = Group(Prompt("u", (1,), "", "gold", "s", 0), responses)
    grade_groups([group], lambda source: lambda items: [Grade(text, None, "") for text, _, _ in items], Shaping(10))
    assert [response.reward for response in responses] == [1.0, -1.0, -1.0, -1.0]
    assert group.pass_rate == pytest.approx(1 / 3)
    assign_advantages(group, ALGORITHMS["dapo"].defaults)
    spread = 2 / math.sqrt(3)
    expected = [(4 / 3) / spread, (-2 / 3) / spread, (-2 / 3) / spread, 0.0]
    assert [response.advantage for response in responses] == pytest.approx(expected, abs=1e-5)


class OneRank:
    rank, world = 0, 1


def groups_of(source, *pairs):
    responses = [Response([1], [0.0], text, "stop") for text, _ in pairs]
    return [
        Group(Prompt(str(n), (1,), "", gold, source, 0), [r])
        for n, (r, (_, gold)) in enumerate(zip(responses, pairs, strict=True))
    ]


def test_the_grader_takes_a_reward_per_data_source():
    grader = Grader(RewardConfig(by_source="sums = arith, aime=dapo", workers=1), Shaping(10), OneRank())
    groups = [
        *groups_of("sums", ("1+2=3", "3"), (r"\boxed{3}", "3")),
        *groups_of("aime", ("Answer: 3", "3"), (r"\boxed{3}", "3")),
        *groups_of("other", ("1+2=3", "3"), (r"\boxed{3}", "3")),
    ]
    grader(groups)
    assert [group.responses[0].acc for group in groups] == [1, 0, 1, 0, 0, 1]
    grader.close()


def test_a_grader_that_judges_too_little_stops_the_run():
    """The first 4 never do; above that the share decides, and answers that were never given don't count."""
    unreadable = (r"\boxed{\int_0^1 x^x dx}", "x+1")
    fine = (r"\boxed{x+1}", "x+1")
    with contextlib.closing(Grader(RewardConfig(workers=1, max_unknown=0.25), Shaping(10), OneRank())) as grader:
        grader(groups_of("s", *[unreadable] * 4))
        grader(groups_of("s", *[unreadable] * 5, *[fine] * 15))
        with pytest.raises(DivergedError, match="6 of 20 answers") as caught:
            grader(groups_of("s", *[unreadable] * 6, *[fine] * 14))
        assert "reward.deadline_s" in caught.value.hint


def test_a_reward_that_is_none_fails_when_the_grader_is_made():
    with pytest.raises(UsageError, match="cannot import"):
        Grader(RewardConfig(name="not_there:reward"), Shaping(10), OneRank())


def test_sources_are_written_as_pairs():
    assert sources("") == {}
    assert sources("gsm8k=math, aime = dapo,") == {"gsm8k": "math", "aime": "dapo"}
    for text in ("gsm8k", "=math", "gsm8k="):
        with pytest.raises(UsageError, match="source=reward"):
            sources(text)
