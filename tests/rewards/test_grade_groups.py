"""The arithmetic grader, overlong shaping, and the marks that a group receives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from da3po_cli.algos.types import Group, Prompt, Response
from da3po_cli.rewards import REWARDS, Grade, Shaping, grade_groups, overlong


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


def test_grade_groups_fills_and_counts():
    texts = ["right", "false", "odd", "right"]
    responses = [
        Response([1] * size, [0.0] * size, text, "stop") for size, text in zip([1, 1, 1, 10], texts, strict=True)
    ]
    responses.append(Response([], [], "right", "failed"))
    group = Group(Prompt("u", (1,), "", "gold", "s", 0), responses)
    seen = []

    def reward(response, finish_reason, gold):
        seen.append((response, finish_reason, gold))
        return Grade({"right": "correct", "false": "wrong"}.get(response, "unknown"), response, "test")

    counts = grade_groups([group], reward, Shaping(10, overlong_cache=4))
    assert counts == {"correct": 2, "wrong": 1, "unknown": 1, "failed": 1}
    assert seen == [(text, "stop", "gold") for text in texts]  # the failed one is not graded
    assert [response.verdict for response in responses] == ["correct", "wrong", "unknown", "correct", "unknown"]
    assert [response.acc for response in responses] == [1, 0, 0, 1, 0]
    assert [response.reward for response in responses] == [1.0, -1.0, 0.0, 0.0, 0.0]
    assert group.pass_rate == pytest.approx(2 / 3)
