"""What a run's numbers mean for it: skipped updates, and limits that are passed several steps in a row."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from da3po_cli.algos.types import Group, MicroBatch, Prompt, Response, Trajectory
from da3po_cli.checks.rules import check
from da3po_cli.config.load import resolve
from da3po_cli.config.schema import HealthConfig
from da3po_cli.errors import DivergedError
from da3po_cli.protocols import Update
from da3po_cli.training.health import MAX_KEPT, Health, not_finite
from da3po_cli.training.loop import update_metrics
from da3po_cli.training.skipped import skipped_batch


def update(loss=1.0, norm=2.0, skipped=False, **sums):
    return Update(loss=loss, grad_norm=norm, lr=1e-3, skipped=skipped, sums={"tokens": 4.0, **sums})


BAD = update(loss=math.nan, norm=math.nan, skipped=True, logp_sum=math.nan, entropy_sum=math.nan)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (update(), ""),
        (BAD, "loss nan, log-probs nan, gradient norm nan"),
        (update(norm=math.inf), "gradient norm inf"),
        (update(logp_sum=-math.inf, kl_sum=math.inf), "log-probs -inf"),
        (update(ref_kl_sum=math.inf), "ref_kl_sum inf"),
    ],
)
def test_what_is_not_finite_is_named(found, expected):
    assert not_finite(found) == expected


def test_updates_skipped_in_a_row_stop_the_run_and_one_that_is_not_begins_anew():
    health = Health(HealthConfig(max_skipped=3), max_tokens=100)
    for number, one in enumerate([BAD, BAD, update(), BAD, BAD], 1):
        health.count(one)
        health.check_updates(7, number, one)
    assert health.skipped == 4
    health.count(BAD)
    with pytest.raises(DivergedError, match=r"3 updates in a row were skipped.*: loss nan, log-probs nan") as caught:
        health.check_updates(7, 6, BAD)
    assert (caught.value.exit_code, caught.value.where) == (5, "step 7, update 6")


def test_only_the_first_batches_are_kept():
    health = Health(HealthConfig(), max_tokens=100)
    kept = []
    for _ in range(2 * MAX_KEPT):
        health.count(BAD)
        kept.append(health.keeps_batch)
    assert kept == [True] * MAX_KEPT + [False] * MAX_KEPT


def test_a_skipped_update_does_not_colour_the_means_of_the_others():
    found = update_metrics([update(loss=1.0, logp_sum=-8.0), BAD, update(loss=3.0, logp_sum=-4.0)])
    assert found["train/loss"] == 2.0
    assert found["train/logp"] == -12.0 / 8
    assert (found["train/updates"], found["train/skipped"]) == (3, 1)
    nothing = update_metrics([BAD])
    assert math.isnan(nothing["train/loss"]) and math.isnan(nothing["train/entropy"])  # there, but no number


GOOD = {
    "train/entropy": 0.5,
    "rollout/truncated": 0.1,
    "rollout/length": 50.0,
    "train/acc": 0.5,
    "sample/generated": 8,
}
BEYOND = {
    "entropy": ({"train/entropy": 0.001}, "train/entropy 0.001 is below health.min_entropy=0.005"),
    "truncated": ({"rollout/truncated": 0.75}, "rollout/truncated 0.75 is above health.max_truncated=0.5"),
    "length": ({"rollout/length": 95.0}, "rollout/length 95 is above health.max_length=0.9 of rollout.max_tokens"),
    "wrong": ({"train/acc": 0.0}, "all answers are wrong"),
    "right": ({"train/acc": 1.0}, "all answers are right"),
}


@pytest.mark.parametrize(("change", "words"), BEYOND.values(), ids=BEYOND)
def test_a_limit_is_said_after_that_many_steps_in_a_row_and_as_often_again(change, words):
    health = Health(HealthConfig(patience=3), max_tokens=100)
    said = {}
    for step in range(1, 12):
        record = {"step": step, **GOOD, **({} if step == 3 else change)}  # one good step in between
        if warnings := health.check_step(record):
            (said[step],) = warnings
    assert sorted(said) == [6, 9]  # 4, 5, 6 and 7, 8, 9
    assert words in said[6] and said[6].startswith("step 6: ") and "for 3 step(s) in a row" in said[6]
    assert "for 6 step(s) in a row" in said[9]


@pytest.mark.parametrize(
    ("setting", "change"),
    [("on_entropy", BEYOND["entropy"][0]), ("on_length", BEYOND["length"][0]), ("on_uniform", BEYOND["wrong"][0])],
)
def test_a_limit_may_stop_the_run_or_be_off(setting, change):
    record = {"step": 4, **GOOD, **change}
    stop = Health(replace(HealthConfig(patience=1), **{setting: "stop"}), max_tokens=100)
    with pytest.raises(DivergedError) as caught:
        stop.check_step(record)
    assert caught.value.exit_code == 5
    assert caught.value.where == f"step 4, health.{setting}=stop"
    assert caught.value.hint
    assert Health(replace(HealthConfig(patience=1), **{setting: "off"}), max_tokens=100).check_step(record) == []


def test_a_step_without_updates_or_rollouts_is_no_collapse():
    health = Health(HealthConfig(patience=1), max_tokens=100)
    record = {name: value for name, value in GOOD.items() if name != "train/entropy"}
    assert health.check_step({"step": 1, **record, "train/acc": 0.0, "sample/generated": 0}) == []


def test_a_step_that_generated_nothing_says_nothing_and_breaks_no_row():
    """With algo.carry_surplus a step may be all carried groups: it has no rates (`batch_metrics`)."""
    health = Health(HealthConfig(patience=2), max_tokens=100)
    bad = {**GOOD, "rollout/truncated": 0.75, "train/acc": 0.0}
    nothing = {"train/entropy": 0.5, "sample/generated": 0}
    assert health.check_step({"step": 1, **bad}) == []
    assert health.check_step({"step": 2, **nothing}) == []
    assert len(health.check_step({"step": 3, **bad})) == 2
    unjudged = {name: value for name, value in GOOD.items() if name != "train/acc"}
    assert Health(HealthConfig(patience=1), max_tokens=100).check_step({"step": 1, **unjudged}) == []


@pytest.mark.parametrize(
    "setting",
    ["max_skipped=0", "patience=0", "min_entropy=-1", "max_truncated=1.5", "max_length=-0.1", "stall_timeout=-1"],
)
def test_settings_out_of_range_are_refused(setting):
    loaded = resolve(["demo"], [f"health.{setting}"], {}, {})
    (found,) = check(loaded.config)
    assert found.where == f"health.{setting.partition('=')[0]}"
    assert found.hint


class Policy:
    """Log-probs by hand: -1 for every token, and not a number for token 13."""

    def logprobs(self, batches: list[MicroBatch]):
        import torch

        nan = torch.tensor(math.nan)
        return [torch.where(one.mask, torch.where(one.targets == 13, nan, torch.tensor(-1.0)), 0.0) for one in batches]


def test_the_batch_of_a_skipped_update_tells_its_responses_apart():
    def response(tokens, advantage):
        return Response(tokens, [-0.5] * len(tokens), "text", "stop", advantage=advantage)

    groups = [
        Group(Prompt("0-1", (1, 2), "", "", "a", 0), [response([3], 1.0), response([4, 13, 5], -1.0)]),
        Group(Prompt("0-2", (1, 2, 3), "", "", "a", 1), [response([13, 6], 0.5), response([7, 8, 9, 10], -0.5)]),
    ]
    trajectories = [
        Trajectory(group.prompt.token_ids, one.token_ids, one.logprobs, one.advantage)
        for group in groups
        for one in group.responses
    ]
    rows = skipped_batch(groups, trajectories, [1, 2, 3], Policy(), micro_batch_tokens=8)  # type: ignore[arg-type]
    assert [(row["uid"], row["sample"], row["advantage"]) for row in rows] == [
        ("0-1", 1, -1.0),
        ("0-2", 0, 0.5),
        ("0-2", 1, -0.5),
    ]
    assert [row["response_ids"] for row in rows] == [[4, 13, 5], [13, 6], [7, 8, 9, 10]]
    assert [row["logprobs"] for row in rows] == [[-1.0, "nan", -1.0], ["nan", -1.0], [-1.0] * 4]
    assert rows[0]["prompt_ids"] == [1, 2] and rows[0]["rollout_logprobs"] == [-0.5] * 3
