"""Arms from the command line's words, and gates over them."""

from __future__ import annotations

import pytest

from da3po_cli.ablations.gate import parse_gate
from da3po_cli.ablations.matrix import make_arms
from da3po_cli.errors import UsageError

LAMBDAS = ["lambda=1.0", "lambda=1.5", "lambda=2.0"]


def test_one_parameter() -> None:
    arms = make_arms(None, ["lambda=1.0,1.5,2.0"])
    assert [arm.label for arm in arms] == LAMBDAS
    assert [arm.overrides for arm in arms] == [("lambda=1.0",), ("lambda=1.5",), ("lambda=2.0",)]
    assert arms[1].run_name(2) == "lambda-1.5-seed2"


def test_algorithms_and_parameters_make_every_combination() -> None:
    arms = make_arms("grpo,dapo", ["train.lr=1e-4,1e-5", "algo.kl_coef=0"])
    assert [arm.label for arm in arms] == [
        "grpo lr=1e-4 kl_coef=0",
        "grpo lr=1e-5 kl_coef=0",
        "dapo lr=1e-4 kl_coef=0",
        "dapo lr=1e-5 kl_coef=0",
    ]
    assert arms[2].overrides == ("algo.name=dapo", "train.lr=1e-4", "algo.kl_coef=0")
    assert arms[2].run_name(0) == "dapo_lr-1e-4_kl-coef-0-seed0"


def test_equal_leaves_keep_their_sections_and_quoted_values_their_commas() -> None:
    arms = make_arms(None, ["model.path=a", 'data.path="x,y",z'])
    assert [arm.label for arm in arms] == ["model.path=a data.path=x,y", "model.path=a data.path=z"]


def test_names_of_directories_are_told_apart() -> None:
    slugs = [arm.slug for arm in make_arms(None, ["data.train=a/b,a-b,a b"])]
    assert slugs == ["train-a-b", "train-a-b+1", "train-a-b+2"]
    long = make_arms(None, [f"data.train={'x' * 300},{'x' * 300}y"])
    assert long[0].slug != long[1].slug and max(len(arm.run_name(0)) for arm in long) < 120


@pytest.mark.parametrize(
    ("algos", "params", "word"),
    [
        (None, [], "nothing to compare"),
        ("dapp", [], "did you mean dapo"),
        (None, ["lambda"], "KEY=V1,V2"),
        (None, ["lambda=1,"], "empty value"),
        (None, ["lambda=1,1"], "given twice"),
        (None, ["lambda=1", "lambda=2"], "lambda=V1,V2"),
        (None, ["run.seed=1,2"], "--seeds"),
        (None, ["lambda=1", "algo.daa_lambda=2"], "lambda is given twice"),
        (None, ["lambda=1\n2"], "empty value"),
        (None, ["validation.samples=4,8"], "validation.samples=VALUE sets it for all arms"),
    ],
)
def test_mistakes(algos: str | None, params: list[str], word: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_arms(algos, params)
    assert word in f"{caught.value.message} {caught.value.hint}"


MEANS = {"lambda=1.0": 0.70, "lambda=1.5": 0.75, "lambda=2.0": 0.72}


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("lambda=2.0 > lambda=1.0", True),
        ("lambda=2.0>lambda=1.0", True),
        ("lambda=2.0 > lambda=1.0 + 0.01", True),
        ("lambda=2.0 > lambda=1.0 + 0.03", False),
        ("lambda=2.0 - 0.02 >= lambda=1.0 - 0.01", True),
        ("lambda=2.0 >= 0.72", True),
        ("lambda=2.0 > 0.72", False),
        ("0.5 < lambda=1.0 and lambda=1.5 > lambda=2.0", True),
        ("lambda=1.5 > lambda=1.0 and lambda=1.5 <= 0.7", False),
        ("7e-1 <= lambda=1.5 + 1", True),
    ],
)
def test_gates(text: str, met: bool) -> None:
    assert (parse_gate(text, LAMBDAS).failures(MEANS) == []) is met


def test_the_longest_label_wins_and_numbers_in_labels_are_whole() -> None:
    labels = ["lr=1", "lr=1e-4", "dapo lr=1"]
    means = {"lr=1": 0.1, "lr=1e-4": 0.9, "dapo lr=1": 0.5}
    assert parse_gate("lr=1e-4 > dapo lr=1 and dapo lr=1 > lr=1", labels).failures(means) == []


def test_an_arm_without_a_result_fails_the_gate() -> None:
    (text,) = parse_gate("lambda=2.0 > lambda=1.0", LAMBDAS).failures({"lambda=1.0": 0.1})
    assert text == "lambda=2.0 > lambda=1.0: no finished run of lambda=2.0"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lambda=2.0",
        "lambda=2.0 >",
        "lambda=3.0 > 1",
        "0.1 > 0.2 or 0.2 > 0.1",
        "0.1 < 0.2 < 0.3",
        "__import__('os') > 1",
        "1 == 1",
    ],
)
def test_what_is_no_gate(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_gate(text, LAMBDAS)
    assert "lambda=1.0, lambda=1.5, lambda=2.0" in str(caught.value.hint)


def test_scores_are_shares() -> None:
    with pytest.raises(UsageError, match="75 in the gate") as caught:
        parse_gate("lambda=2.0 > 75", LAMBDAS)
    assert "0.75 for 75 %" in str(caught.value.hint)
