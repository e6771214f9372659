"""The demo task: exact answers, errors that are carried on, and splits that cannot overlap."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from da3po_cli.data.arithmetic import (
    HELD_OUT_SHARE,
    LIMIT,
    MAX_STEPS,
    Problem,
    carries,
    draw,
    held_out,
    problems,
    slip_rate,
    solve,
)
from da3po_cli.rewards.arith import final_result

seeds = st.integers(0, 2**32)
lengths = st.integers(1, MAX_STEPS)


def test_worked_example() -> None:
    problem = Problem(47, (8, -16))
    assert problem.text == "47+8-16=?"
    assert problem.solution == "47+8=55,55-16=39"
    assert problem.answer == "39"


@given(seeds, lengths)
def test_answers_are_what_python_computes(seed: int, steps: int) -> None:
    problem = draw(random.Random(seed), steps)
    expression = problem.text.removesuffix("=?")
    assert int(problem.answer) == eval(expression) == solve(problem.text)
    assert final_result(problem.solution) == problem.answer
    equations = [equation.split("=") for equation in problem.solution.split(",")]
    assert len(equations) == steps
    for left, right in equations:
        assert eval(left) == int(right)
        assert 0 <= int(right) <= LIMIT


@given(seeds, lengths)
def test_a_noisy_solution_goes_on_from_its_errors(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    problem = draw(rng, steps)
    value = str(problem.start)
    for equation, term in zip(problem.noisy_solution(rng).split(","), problem.terms, strict=True):
        left, right = equation.split("=")
        assert left == f"{value}{term:+d}"
        value = right


def test_steps_slip_at_the_stated_rate() -> None:
    rng = random.Random(0)
    for value, term in ((3, 4), (7, 8), (53, -6), (40, 25), (52, -27)):
        draws = 4000
        wrong = sum(
            final_result(Problem(value, (term,)).noisy_solution(rng)) != str(value + term) for _ in range(draws)
        )
        rate = slip_rate(value, term)
        assert abs(wrong / draws - rate) < 4 * (rate * (1 - rate) / draws) ** 0.5


@pytest.mark.parametrize(
    ("value", "term", "expected"),
    [(3, 4, False), (7, 8, True), (7, 3, True), (53, -3, False), (53, -4, True), (40, -1, True), (15, 12, False)],
)
def test_carries(value: int, term: int, expected: bool) -> None:
    assert carries(value, term) is expected


def test_splits_never_overlap() -> None:
    train = {problem.text for problem in problems("train", 4000)}
    validation = {problem.text for problem in problems("validation", 256)}
    assert len(train) == 4000 and len(validation) == 256
    assert not train & validation
    assert not any(map(held_out, train)) and all(map(held_out, validation))


def test_all_problems_of_one_step_fall_into_both_splits_at_the_stated_share() -> None:
    texts = [f"{a}{sign}{b}=?" for a in range(100) for sign in "+-" for b in range(1, 30)]
    share = sum(map(held_out, texts)) / len(texts)
    assert abs(share - 1 / HELD_OUT_SHARE) < 4 * (1 / HELD_OUT_SHARE / len(texts)) ** 0.5


def test_problems_are_deterministic_and_any_prefix_is_mixed() -> None:
    assert problems("validation", 64) == problems("validation", 256)[:64]
    assert problems("train", 50, seed=1) != problems("train", 50, seed=2)
    assert [len(problem.terms) for problem in problems("validation", 16)] == [5, 6, 7, 8] * 4


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("7+8=15", "15"),
        ("7+8=15,15-3=12\n", "12"),
        ("3-5=-2", "-2"),
        ("7+8=15,", None),
        ("7+8=15,15-3", None),
        ("15", None),
        ("", None),
    ],
)
def test_final_result(response: str, expected: str | None) -> None:
    assert final_result(response) == expected


@pytest.mark.parametrize("text", ["", "7+8", "7=?", "7+x=?", "7+8=?\n"])
def test_solve_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match="not an arithmetic problem"):
        solve(text)
