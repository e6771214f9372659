"""The sums for pretrained models: every sum once, prompts that stop before the equals sign, graded by its answer."""

from __future__ import annotations

from typing import Any

from da3po_cli.data.arithmetic import SUM_LIMIT, WORKED_SUMS, sums
from da3po_cli.data.formats import load_rows
from da3po_cli.rewards.arith import grade_arith


def test_both_splits_together_hold_every_sum_once() -> None:
    train, held_out = sums("train"), sums("validation")
    found = [prompt.splitlines()[-1] for prompt, _ in train + held_out]
    everything = {f"{a} + {b}" for a in range(1, SUM_LIMIT + 1) for b in range(1, SUM_LIMIT + 1)}
    assert len(found) == len(set(found))
    assert set(found) == everything - {f"{a} + {b}" for a, b in WORKED_SUMS}
    assert len(held_out) > 20


def test_a_prompt_and_its_answers() -> None:
    prompt, answer = sums("train")[17]
    last = prompt.splitlines()[-1]
    assert answer == str(eval(last))
    for line in prompt.splitlines()[:-1]:
        left, _, right = line.partition(" = ")
        assert eval(left) == int(right)
    assert grade_arith(f" = {answer}\n", "stop", answer).verdict == "correct"
    assert grade_arith(f" = {answer}", "stop", answer).verdict == "correct"
    assert grade_arith(f" = {int(answer) + 1}\n", "stop", answer).verdict == "wrong"
    assert grade_arith(f" = {answer}", "length", answer).verdict == "wrong"  # perhaps a longer number
    assert grade_arith(f"{answer}\n", "stop", answer).verdict == "wrong"


def test_as_a_data_source() -> None:
    rows: Any = load_rows("sums", "validation")
    assert [(row.messages[0]["content"], row.answer) for row in rows.rows] == sums("validation")
    assert not rows.dropped.counts
    assert len(load_rows("sums@[:5]", "train").rows) == 5
