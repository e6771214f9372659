"""A run as data and as a document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_runs import make_group, make_run

from da3po_cli.errors import UsageError
from da3po_cli.reports.data import RunData
from da3po_cli.reports.plots import draw
from da3po_cli.reports.run_report import first_solves, run_document
from da3po_cli.reports.theory import count_groups

SCORES = {0: (0.5, 0.9), 10: (0.7, 0.95)}


def test_accuracy_on_problems_that_were_hard_before_training(tmp_path: Path) -> None:
    """Of 8 samples: a 0 -> 4, b 3 -> 5 are hard (below 0.5); c 4 -> 8 and d 8 -> 8 are not."""
    counts = {0: {"a": 0, "b": 3, "c": 4, "d": 8}, 10: {"a": 4, "b": 5, "c": 8, "d": 8}}
    run = RunData(make_run(tmp_path / "r", SCORES, correct=counts))
    assert run.hard_curve() == [(0, pytest.approx(3 / 16)), (10, pytest.approx(9 / 16))]
    assert run.hard_curve(hard=False) == [(0, pytest.approx(12 / 16)), (10, 1.0)]
    rows = {row[0]: row for row in run_document(run).sections[0].tables[0].rows}
    assert rows["hard problems (base rate < 0.5)"][1:4] == ("18.75", "56.25", "+37.50")


def test_without_results_per_problem_there_is_no_such_curve(tmp_path: Path) -> None:
    run = RunData(make_run(tmp_path / "r", SCORES))
    assert run.hard_curve() == [] and run.problem_scores() == {}
    run = RunData(make_run(tmp_path / "s", SCORES, correct={10: {"a": 1}}))
    assert run.hard_curve() == [], "hard is what the model before training solved below a half"


def test_results_of_a_future_that_was_given_up_are_not_read(tmp_path: Path) -> None:
    groups = {1: [make_group(1, 1)], 99: [make_group(2, 1)]}
    run = RunData(make_run(tmp_path / "r", SCORES, correct={0: {"a": 1}, 99: {"a": 8}}, groups=groups))
    assert list(run.validations) == [0]
    assert [step for step, _ in run.groups()] == [1]


def test_a_damaged_file_of_results_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", SCORES, correct={0: {"a": 1}})
    (run.path / "validation/step_0.json").write_text('{"arith": [1]}')
    with pytest.raises(UsageError) as caught:
        run_document(RunData(run))
    assert "step_0.json" in str(caught.value.where)


def test_first_solves(tmp_path: Path) -> None:
    """Prompt 1 is unsolved, then solved; 2 was solved before; 3 is not hard; 4 was dropped; 5 is hard at once."""
    groups = {
        1: [make_group(1, 0, drop="too_hard"), make_group(2, 1), make_group(3, 2), make_group(4, 1, drop="surplus")],
        2: [make_group(1, 1), make_group(2, 1), make_group(4, 1), make_group(5, 1, text="5?")],
    }
    run = RunData(make_run(tmp_path / "r", SCORES, groups=groups))
    examples = first_solves(run)
    assert [example.title for example in examples] == [
        "Step 1: 1 of 4 correct, gold answer 2",
        "Step 2: 1 of 4 correct, gold answer 2",
        "Step 2: 1 of 4 correct, gold answer 2",
    ]
    assert examples[2].prompt == "5?"
    what, text = examples[0].responses[0]
    assert what.startswith("correct, 2 tokens") and text == "answer 0"
    assert examples[0].responses[1] == ("wrong, 2 tokens, advantage +0.00", "answer 1")


def test_what_was_not_read_does_not_make_a_first_solve(tmp_path: Path) -> None:
    """The prompt was first solved at step 2, when it was easy; the budget leaves step 2 out."""
    groups = {1: [make_group(7, 0)], 2: [make_group(7, 3)], 3: [make_group(7, 1)]}
    run = RunData(make_run(tmp_path / "r", SCORES, groups=groups))
    budget = sum(file.stat().st_size for _, file in run.rollout_files) - 1
    assert [step for step, _ in run.groups(budget)] == [1, 3]
    assert first_solves(run) == first_solves(run, budget=budget) == []


def test_a_budget_limits_what_is_read(tmp_path: Path) -> None:
    groups = {step: [make_group(n, 1) for n in range(20)] for step in range(1, 11)}
    run = RunData(make_run(tmp_path / "r", SCORES, groups=groups))
    size = run.rollout_files[0][1].stat().st_size
    assert sorted({step for step, _ in run.groups(budget=3 * size + 300)}) == [1, 5, 10]
    assert 1 <= len(list(run.groups(budget=size // 2))) <= 10
    assert len(list(run.groups(budget=None))) == 200


def test_large_steps_do_not_exceed_the_budget(tmp_path: Path) -> None:
    groups = {step: [make_group(1, 1, text="x" * 10_000 if step in (1, 10) else "x")] for step in range(1, 11)}
    run = RunData(make_run(tmp_path / "r", SCORES, groups=groups))
    assert sum(len(group.prompt.text) for _, group in run.groups(budget=15_000)) < 15_000


def test_the_document(tmp_path: Path) -> None:
    run = RunData(make_run(tmp_path / "r", SCORES, groups={1: [make_group(1, 1)]}))
    document = run_document(run)
    assert document.title == "Run r" and "10 of 10 steps" in document.lead
    plots = {plot.slug: plot for plot in document.plots}
    assert {"validation", "accuracy", "entropy", "groups", "time", "logprob_gap", "mass"} <= set(plots)
    assert [one.label for one in plots["groups"].series] == ["kept", "too easy"]
    assert len(plots["gradient"].series[0].xs) == 9, "step 2 has no finite norm"
    facts = dict((row[0], row[1]) for row in document.sections[0].tables[1].rows)
    assert facts["groups kept / generated"] == "320 / 400 = 0.800"
    assert facts["response tokens generated"] == "10,000"
    (time,) = [table for section in document.sections for table in section.tables if table.heading[0] == "phase"]
    assert {row[2] for row in time.rows} == {"12.50"}


def test_a_run_that_was_cut_short_says_how_to_go_on(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", SCORES, status="interrupted")
    lines = run.metrics_file.read_text().splitlines(keepends=True)
    run.metrics_file.write_text("".join(lines[:5]))
    document = run_document(RunData(run))
    assert "interrupted, 4 of 10 steps" in document.lead
    assert document.sections[0].text == [], "there is no checkpoint"
    (run.checkpoints / "step_3").mkdir(parents=True)
    (run.checkpoints / "step_3/state.json").touch()
    assert "da3po train --resume --name r" in run_document(RunData(run)).sections[0].text[0]
    (tmp_path / "ablation.json").touch()
    assert f"da3po ablate --resume --name {tmp_path.name}" in run_document(RunData(run)).sections[0].text[0]


def test_numbers_that_are_missing_or_nothing_leave_the_plot(tmp_path: Path) -> None:
    """A phase without a value in one step counts as 0 there; a gap of exactly 0 has no place on a logarithmic axis."""
    run = make_run(tmp_path / "r", SCORES)
    records = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    del records[3]["timing/sync"]
    records[5]["train/rollout_gap"] = 0.0
    run.metrics_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    plots = {plot.slug: plot for plot in run_document(RunData(run)).plots}
    assert 5 not in plots["logprob_gap"].series[0].xs and len(plots["logprob_gap"].series[0].xs) == 9
    assert plots["time"].kind == "stack" and len({len(one.xs) for one in plots["time"].series}) == 2
    draw(plots["time"])


def test_cut_off_rollouts_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", SCORES, groups={1: [make_group(1, 1), make_group(2, 1)]})
    file = run.rollouts / "step_1.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    for read in (first_solves, count_groups):
        with pytest.raises(UsageError) as caught:
            read(RunData(run))
        assert caught.value.where == f"{file}:2"
