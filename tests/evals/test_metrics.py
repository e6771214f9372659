"""Metrics against enumeration, and against the fractions that they must be."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from da3po_cli.evals.metrics import Sample, Scores, answer_key, average, by_difficulty, majority, score, tally


def samples(pattern: str) -> list[Sample]:
    """c: right; w: wrong, all the same; a-b: other wrong answers; -: no answer; ?: unknown; x: failed."""
    verdicts = {"c": "correct", "?": "unknown", "x": "unknown"}
    reasons = {"x": "failed", "-": "length"}
    return [
        Sample(verdicts.get(one, "wrong"), None if one in "-x" else one, reasons.get(one, "stop"), 7) for one in pattern
    ]


def scored(*patterns: str) -> Scores:
    return score([tally(str(index), index, samples(pattern)) for index, pattern in enumerate(patterns)])


def test_one_right_of_four_is_a_pass_at_four():
    found = scored("wcww")
    assert found.passes[4].mean == 1.0
    assert found.avg.mean == 0.25
    assert found.passes[1].mean == pytest.approx(0.25)


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=6))
def test_every_pass_at_k_by_enumeration(outcomes):
    """The share of the k-subsets of a problem's samples with a right one in it, averaged over problems."""
    found = scored(*["".join("c" if right else "w" for right in problem) for problem in outcomes])
    assert sorted(found.passes) == [1, 2, 3, 4, 5]
    for k, interval in found.passes.items():
        shares = [
            Fraction(
                sum(any(draw) for draw in itertools.combinations(problem, k)),
                sum(1 for _ in itertools.combinations(problem, k)),
            )
            for problem in outcomes
        ]
        assert interval.mean == pytest.approx(float(sum(shares) / len(shares)))


@given(st.lists(st.integers(0, 8), min_size=1, max_size=40))
def test_avg_and_pass_are_whole_multiples(correct):
    found = scored(*["c" * right + "w" * (8 - right) for right in correct])
    for value, unit in ((found.avg.mean, 8 * len(correct)), (found.passes[8].mean, len(correct))):
        assert value * unit == pytest.approx(round(value * unit), abs=1e-9)
    assert round(found.avg.mean * 8 * len(correct)) == sum(correct)
    assert round(found.passes[8].mean * len(correct)) == sum(right > 0 for right in correct)


def test_shares_and_lengths():
    found = scored("cw-?", "xx--")
    assert (found.truncated, found.unknown, found.failed) == (3 / 8, 1 / 8, 2 / 8)
    assert found.length.mean == 7
    assert found.avg.mean == 1 / 8  # unknown, failed and cut off are not correct


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ("ccw", 1.0),
        ("cww", 0.0),
        ("cwa", 1 / 3),  # three answers, each given once
        ("ccwwa", 1 / 2),
        ("c---", 1.0),  # samples without an answer have no vote
        ("---", 0.0),
        ("c??", 0.0),  # what could not be judged is an answer all the same
        ("aabbc", 0.0),
    ],
)
def test_majority(pattern, value):
    assert majority(samples(pattern)) == pytest.approx(value)


def test_majority_is_the_chance_of_a_random_choice_among_the_most_frequent():
    for pattern in map("".join, itertools.product("cwa", repeat=4)):
        counts = {one: pattern.count(one) for one in "cwa"}
        most = [one for one, count in counts.items() if count == max(counts.values())]
        assert majority(samples(pattern)) == pytest.approx(("c" in most) / len(most))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1/2", "0.5", True),
        (r"\frac{2}{4}", "0.50", True),
        (r"\dfrac12", r"\frac{1}{2}", True),
        (" 42 ", "42.0", True),
        ("-3", "3", False),
        ("x+1", "x + 1", True),
        ("1/0", "0", False),
        ("", "0", False),
    ],
)
def test_answers_are_told_apart_by_value(one, other, same):
    assert (answer_key(one) == answer_key(other)) is same


def test_average_is_the_plain_mean_over_benchmarks():
    small, large = scored("cc"), scored(*["ww"] * 99)
    assert average([small, large], "avg").mean == 0.5


def test_problems_must_have_equally_many_samples():
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        scored("cc", "ccc")
    with pytest.raises(ValueError, match="one number of samples"):
        score([])


def test_levels_are_those_of_the_model_before_training() -> None:
    start = {"a": 0, "b": 3, "c": 4, "d": 5, "e": 6, "f": 8}  # of 8: below a half, below three quarters, the rest
    now = {"a": 2, "b": 8, "c": 4, "d": 8, "e": 6, "f": 7, "new": 8}
    start, now = ({problem: count / 8 for problem, count in counts.items()} for counts in (start, now))
    assert by_difficulty(start, now) == {"hard": 10 / 16, "medium": 12 / 16, "easy": 13 / 16}
    assert by_difficulty({"a": 1.0}, {"a": 0.5}) == {"easy": 0.5}
    assert by_difficulty({}, {"a": 0.5}) == {}
