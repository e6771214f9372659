"""The metrics of a batch: counted by hand, and the measured alphas against the theorem's closed form."""

import itertools
from dataclasses import replace

import pytest

from da3po_cli.algos.advantages import assign_advantages
from da3po_cli.algos.diagnostics import SolvedPrompts, batch_metrics, measured_alphas
from da3po_cli.algos.sampling import Batch, judge
from da3po_cli.algos.table import ALGORITHMS
from da3po_cli.algos.types import Group, Prompt, Response


def group(accs, drop_reason=None, index=0):
    responses = [
        Response([1] * (place + 1), [-0.5] * (place + 1), "", "stop", "correct" if acc else "wrong", acc, 2.0 * acc - 1)
        for place, acc in enumerate(accs)
    ]
    return Group(Prompt(f"0-{index}", (1,), "", "", "data", index), responses, drop_reason)


def test_batch_metrics():
    hard, easy, dropped = group([1, 0, 0, 0]), group([1, 1, 1, 0]), group([0, 0, 0, 0], "too_hard")
    hard.responses[0].daa_weight = 2.0
    dropped.responses[3] = replace(dropped.responses[3], finish_reason="length")
    groups = [hard, easy, dropped]
    metrics = batch_metrics(Batch([hard, easy], [dropped], groups, rounds=1), tau=0.5, rollout_seconds=2.0)
    assert metrics["train/acc"] == 4 / 12
    assert metrics["train/acc_kept"] == 4 / 8
    assert metrics["sample/hard_share"] == 1 / 2
    assert metrics["daa/amplified"] == 1 / 8
    assert metrics["sample/drop_too_hard"] == 1
    assert metrics["sample/drop_too_easy"] == 0
    assert metrics["rollout/length"] == (1 + 2 + 3 + 4) / 4
    assert metrics["rollout/truncated"] == 1 / 12
    assert metrics["rollout/tokens_per_s"] == 30 / 2
    assert metrics["filter/alpha_plus"] == 1.0  # 4 correct responses, all in mixed groups
    assert metrics["filter/alpha_minus"] == 8 / 4


def test_accuracy_is_that_of_judged_responses_and_a_failed_one_is_none():
    """Of 8 responses one failed in the engine and one could not be judged: 6 are judged, 7 are there."""
    failed, unknown = group([1, 0, 0, 0], "failed"), group([1, 1, 0, 0])
    failed.responses[3] = Response([], [], "", "failed", "unknown")
    unknown.responses[3] = replace(unknown.responses[3], verdict="unknown")
    metrics = batch_metrics(Batch([unknown], [failed], [failed, unknown]), tau=0.5, rollout_seconds=0)
    assert metrics["train/acc"] == 3 / 6
    assert metrics["train/acc_kept"] == 2 / 3
    assert metrics["grade/unknown"] == 1 / 7
    assert metrics["rollout/length"] == (1 + 2 + 3 + 1 + 2 + 3 + 4) / 7


def test_groups_of_another_step_count_in_that_one():
    """One group came from the step before, one is carried on to the next."""
    before, now, carried = group([1, 1, 1, 0]), group([1, 0, 0, 0]), group([1, 1, 0, 0])
    metrics = batch_metrics(Batch([before, now], [], [now, carried], rounds=1, carried=1), tau=0.5, rollout_seconds=2.0)
    assert metrics["sample/generated"] == 2 and metrics["rollout/tokens"] == 20
    assert metrics["train/acc"] == 3 / 8 and metrics["train/acc_kept"] == 4 / 8
    assert metrics["rollout/tokens_per_s"] == 10
    nothing = batch_metrics(Batch([before, now], [], []), tau=0.5, rollout_seconds=1e-4)
    assert nothing["sample/generated"] == nothing["rollout/tokens"] == nothing["sample/first_solves"] == 0
    rates = {"train/acc", "rollout/length", "rollout/truncated", "rollout/tokens_per_s", "grade/unknown"}
    assert not rates & set(nothing) and not any(name.startswith("filter/") for name in nothing)
    assert nothing["train/acc_kept"] == 4 / 8


def test_advantage_mass_is_balanced_until_it_is_amplified():
    for name, factor in (("dapo", 1.0), ("da3po", 2.0)):
        one = group([1, 0, 0, 0])
        assign_advantages(one, ALGORITHMS[name].defaults)
        metrics = batch_metrics(Batch([one], [], [one]), tau=0.5, rollout_seconds=0)
        assert metrics["adv/mass_correct"] == pytest.approx(factor * metrics["adv/mass_wrong"], rel=1e-12)
        # ddof 1, k = 1 of 4: three wrong responses of |A| = 1/2 each
        assert metrics["adv/mass_wrong"] == pytest.approx(1.5 / 4, rel=1e-5)


@pytest.mark.parametrize(("size", "rate"), [(2, 0.5), (3, 0.25), (4, 0.125), (4, 0.75)])
def test_measured_alphas_are_the_theorems_over_all_outcomes(size, rate):
    """Every outcome of a group as often as a binomial of `rate` (in eighths) says: 1 / (1 - p^(G-1)), and mirrored."""
    groups = []
    for accs in itertools.product([0, 1], repeat=size):
        times = round((8 * rate) ** sum(accs) * (8 - 8 * rate) ** (size - sum(accs)))
        groups += [group(accs)] * times
    for one in groups:
        one.drop_reason = judge(one)
    measured = measured_alphas(groups)
    assert measured["filter/alpha_plus"] == pytest.approx(1 / (1 - rate ** (size - 1)), rel=1e-12)
    assert measured["filter/alpha_minus"] == pytest.approx(1 / (1 - (1 - rate) ** (size - 1)), rel=1e-12)


def test_nothing_mixed_measures_nothing():
    assert measured_alphas([group([1, 1]), group([0, 0])]) == {}


def test_a_prompt_is_solved_for_the_first_time_once():
    solved = SolvedPrompts()
    first = [group([0, 1], index=3), group([0, 0], index=4), group([1, 1], index=5)]
    solved.mark(first)
    assert [one.first_solve for one in first] == [True, False, True]
    later = [group([1, 0], index=3), group([1, 0], index=4), group([1, 1], index=4)]
    solved.mark(later)
    assert [one.first_solve for one in later] == [False, True, False]
    again = SolvedPrompts()
    again.load_state(solved.state())
    again.mark([*first, *later])
    assert not any(one.first_solve for one in [*first, *later])
