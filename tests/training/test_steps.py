"""Whole steps of the real loop: what a stop in the middle keeps, what a metric counts, which weights sampled."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
from loop_runs import SCORE, SEED, STRIDE, Engine, Played, Trainer, config, play

from da3po_cli.algos import ALGORITHMS
from da3po_cli.algos.records import group_from_dict
from da3po_cli.algos.sampling import DynamicSampler, SamplingExhausted
from da3po_cli.data.formats import Dropped
from da3po_cli.data.prompts import Item, Part, PromptStream
from da3po_cli.errors import UsageError
from da3po_cli.protocols import Sampling
from da3po_cli.runs.checkpoints import read_state
from da3po_cli.runs.rollouts import read_rollouts, rollouts_file, write_rollouts
from da3po_cli.training.clock import Clock
from da3po_cli.training.collect import LiveRollouts

DAPO = replace(ALGORITHMS["dapo"].defaults, max_rounds=50)
CARRY = replace(DAPO, carry_surplus=True)


def state(root, step):
    return read_state(root / "checkpoints" / f"step_{step}")


def saved_groups(root, step):
    return [group_from_dict(record) for _, record in read_rollouts(rollouts_file(root / "rollouts", step))]


# ------------------------------------------------------------------------------------- a validation that is made up for


def test_a_validation_made_up_for_after_a_resume_counts_for_its_checkpoint(tmp_path):
    """Scores 0.5, 0.9 and 0.6, the second one after a signal: the second is the best, also for a later resume."""
    scores = {0: 0.1, 1: 0.5, 2: 0.9, 3: 0.6, 4: 0.7}
    made = config(DAPO, steps=4, validate=1, keep=1)
    assert play(tmp_path, made, scores=scores, stop_in=2).last == 2
    assert state(tmp_path, 2)["score"] is None and SCORE not in state(tmp_path, 2)["record"]
    before = state(tmp_path, 2)["record"]

    assert play(tmp_path, made, resume="", scores=scores, stop_in=4).last == 4
    assert state(tmp_path, 2)["score"] == 0.9
    assert state(tmp_path, 2)["record"] == before | {SCORE: 0.9}
    found = play(tmp_path, replace(made, run=replace(made.run, steps=5)), resume="", scores={**scores, 5: 0.8})
    assert found.steps() == [2, 5]
    assert [record[SCORE] for record in found.records] == [0.1, 0.5, 0.9, 0.6, 0.7, 0.8]


# ------------------------------------------------------------------------------------------- a stop at algo.max_rounds


def exhausted(root, made, **how) -> tuple[Played, SamplingExhausted]:
    """A run that must stop at algo.max_rounds: what it left, and why."""
    played: list[Played] = []
    with pytest.raises(SamplingExhausted) as caught:
        play(root, made, played=played, **how)
    return played[0], caught.value


@pytest.mark.parametrize("every", [1, 0], ids=["the step before is saved", "it is not"])
@pytest.mark.parametrize("algo", [DAPO, CARRY], ids=["dropped surplus", "carried surplus"])
@pytest.mark.parametrize("rows", [7, 40], ids=["many epochs", "few epochs"])
def test_a_run_that_stops_at_max_rounds_goes_on_in_the_middle_of_its_step(tmp_path, every, algo, rows):
    """It equals one that had a larger limit from the start: every record, rollout and checkpoint.

    Each time the limit is raised by one until the step is done, and set to 1 again for the next ones.
    """
    how = {"rate": 0.9, "rows": rows, "scores": {step: 0.5 + step / 100 for step in range(9)}}
    whole = play(tmp_path / "whole", config(algo, steps=8, prompts=6, validate=3), **how)
    made = config(algo, steps=8, prompts=6, validate=3, every=every, keep_best=False)
    root, limit, resume, until, rounds, stopped = tmp_path / "run", 1, None, None, 0, []
    while True:
        made = replace(made, algo=replace(algo, max_rounds=limit))
        played: list[Played] = []
        try:
            play(root, made, resume=resume, stop_in=until, played=played, **how)
        except SamplingExhausted as why:
            at = played[0].trainer.steps
            stopped.append(at)
            saved, expected = state(root, at), whole.records[at]
            assert without_times(saved["record"]) == expected
            assert saved["score"] == expected.get(SCORE)
            again, same = exhausted(root, made, resume="", **how)
            assert str(same) == str(why) and f"after {limit} round(s)" in str(why)
            assert (again.engine.rounds, again.trainer.saves) == (0, 0), "the same limit generates nothing"
            limit, until = limit + 1, at + 1
        else:
            limit, until = 1, None
        rounds, resume = rounds + played[0].engine.rounds, ""
        if played[0].trainer.steps == 8:
            break
    assert stopped == [r["step"] - 1 for r in whole.records[1:] for _ in range(r["sample/rounds"] - 1)]
    assert 0 in stopped and len(set(stopped)) > 2
    assert played[0].records == whole.records
    assert rounds == whole.engine.rounds
    for step in range(1, 9):
        assert saved_groups(root, step) == saved_groups(tmp_path / "whole", step)
    assert state(root, 8)["source"] == state(tmp_path / "whole", 8)["source"]


def without_times(record):
    return {name: value for name, value in record.items() if "timing/" not in name and not name.endswith("_per_s")}


def test_what_is_left_of_max_rounds_may_be_trained_on_instead(tmp_path):
    """algo.on_exhausted=short, as the message offers: the kept groups of the step that was stopped are its batch."""
    made = config(replace(DAPO, max_rounds=1), steps=3, prompts=6)
    found, why = exhausted(tmp_path, made, rate=0.85)
    assert "algo.on_exhausted=short" in why.hint and "--resume" in why.hint and "algo.max_rounds" in why.hint
    at = found.trainer.steps
    kept = int(re.match(r"kept (\d+) of 6", str(why))[1])
    assert 0 < kept < 6
    on = play(
        tmp_path, replace(made, algo=replace(made.algo, on_exhausted="short"), run=replace(made.run, steps=at + 1)),
        resume="", rate=0.85,
    )  # fmt: skip
    assert on.engine.rounds == 0
    assert on.records[-1]["sample/kept"] == kept


def lone(algo, rate=0.5, temperature=1.0, engine=None):
    """A live source without a run around it, with its engine."""
    engine = engine or Engine(Trainer(), rate)
    prompts = PromptStream(
        [Part([Item((1, 2), "", "", "data", row, str(row)) for row in range(7)], 1)], "train", 3, Dropped()
    )
    sampling = Sampling(4, 5, temperature=temperature, seed=SEED)
    return LiveRollouts(
        prompts, engine, lambda groups: None, DynamicSampler(algo, 6), sampling, lambda *_: None
    ), engine


class Ticking:
    """Time that passes in the engine only: five seconds a round."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_the_time_of_a_step_is_that_of_all_its_rounds_whenever_they_were(tmp_path):
    """Or a resume would divide the tokens of all rounds by the seconds of the last ones."""

    def timed(source, engine):
        ticking, generate = Ticking(), engine.generate

        def slowly(prompts, sampling):
            ticking.now += 5.0
            return generate(prompts, sampling)

        engine.generate = slowly
        return Clock(now=ticking)

    first, engine = lone(replace(DAPO, max_rounds=2), rate=0.97)
    clock = timed(first, engine)
    with pytest.raises(SamplingExhausted):
        first.collect(1, clock)
    second, engine = lone(DAPO, rate=0.97)
    second.load_state(json.loads(json.dumps(first.state())))
    clock = timed(second, engine)
    batch = second.collect(1, clock)
    assert batch.rounds == 2 + engine.rounds > 2
    assert clock.spent("rollout") == 5.0 * batch.rounds
    assert clock.lap()["timing/step"] == 5.0 * batch.rounds
    second.collect(2, clock)
    assert clock.spent("rollout") < 5.0 * batch.rounds, "and the next step has its own"


def test_groups_that_wait_in_a_checkpoint_do_not_mix_with_another_temperature():
    """Their log-probs are those of another distribution, which nothing would correct."""
    first, _ = lone(replace(DAPO, max_rounds=1), rate=0.85)
    with pytest.raises(SamplingExhausted):
        first.collect(1, Clock())
    other, _ = lone(DAPO, rate=0.85, temperature=0.6)
    with pytest.raises(UsageError, match=r"rollout.temperature=0.6.*at 1") as caught:
        other.load_state(json.loads(json.dumps(first.state())))
    assert caught.value.where == "rollout.temperature"
    fresh, _ = lone(DAPO, rate=0.85)
    other.load_state(json.loads(json.dumps(fresh.state())))


def test_a_step_whose_groups_all_failed_begins_anew_after_a_resume():
    """Without dynamic sampling a step has one round: to stay in its middle would be to fail for ever."""
    algo = ALGORITHMS["grpo"].defaults
    source, engine = lone(algo)
    engine.failing = 1.0
    with pytest.raises(SamplingExhausted, match=r"kept 0 of 6 groups .*6 failed") as caught:
        source.collect(1, Clock())
    assert "max_rounds" not in caught.value.hint
    before = {group.prompt.uid for group in engine.made[1]}
    again, _ = lone(algo)
    again.load_state(json.loads(json.dumps(source.state())))
    batch = again.collect(1, Clock())
    assert len(batch.kept) == 6 and not before & {group.prompt.uid for group in batch.kept}


# ------------------------------------------------------------------------------ what a metric of the step is about


def judged(groups):
    return [one for group in groups for one in group.responses if one.verdict != "unknown"]


def answers(groups):
    return [one for group in groups for one in group.responses if one.finish_reason != "failed"]


def test_every_generated_group_is_counted_in_the_step_that_generated_it(tmp_path, capsys):
    """Metrics of a run with carried surplus, against what its engine gave in each step. Some steps generate nothing."""
    made = config(CARRY, steps=8, prompts=3)
    found = play(tmp_path, made, rate=0.75, rows=40, unjudged=0.1, failing=0.03)
    silent, solved = 0, set()
    for record in found.records[1 if found.records[0]["step"] == 0 else 0 :]:
        groups = found.engine.made.get(record["step"], [])
        silent += not groups
        assert record["sample/generated"] == len(groups)
        assert record["rollout/tokens"] == sum(len(one.token_ids) for one in answers(groups))
        rows = {group.prompt.index for group in groups if any(one.acc for one in group.responses)} - solved
        solved |= rows
        assert record["sample/first_solves"] == len(rows)
        drops = {name: record[f"sample/drop_{name}"] for name in ("too_easy", "too_hard", "failed", "surplus")}
        assert drops["surplus"] == 0
        assert drops["failed"] == sum(any(one.finish_reason == "failed" for one in group.responses) for group in groups)
        if not groups:
            gone = ("train/acc", "rollout/length", "rollout/truncated", "rollout/tokens_per_s", "grade/unknown")
            assert not any(name in record or name.startswith("filter/") for name in gone)
            assert not any(name.startswith("filter/") for name in record)
            continue
        known, real = judged(groups), answers(groups)
        assert record["train/acc"] == sum(one.acc for one in known) / len(known)
        assert record["grade/unknown"] == sum(one.verdict == "unknown" for one in real) / len(real)
        assert record["rollout/length"] == sum(len(one.token_ids) for one in real) / len(real)
        assert record["rollout/truncated"] == sum(one.finish_reason == "length" for one in real) / len(real)
        right = [one for one in known if one.acc]
        mixed = [g for g in groups if len({one.acc for one in judged([g])}) == 2]
        if any(one.acc for one in judged(mixed)):
            assert record["filter/alpha_plus"] == len(right) / sum(one.acc for one in judged(mixed))
    assert silent, "or this says less than it seems to"
    assert "acc=-" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- rows, and old weights


@pytest.mark.parametrize(("saved", "configured"), [(4, 2), (2, 4)])
def test_a_replay_trains_on_whole_groups_whatever_group_size_is_configured(tmp_path, saved, configured):
    live = play(tmp_path / "live", config(DAPO, steps=2, size=saved))
    again = play(tmp_path / "again", config(DAPO, steps=2, size=configured), replay=tmp_path / "live")
    assert again.trainer.rows == live.trainer.rows
    assert [sorted(rows) for rows in again.trainer.rows[:2]] == [
        list(range(2 * saved)),
        list(range(2 * saved, 4 * saved)),
    ]
    for name in ("train/loss", "train/logp", "adv/mass_correct"):
        assert [r[name] for r in again.records] == [r[name] for r in live.records]


def test_groups_of_several_sizes_train_together_and_a_skipped_batch_names_the_right_responses(tmp_path):
    """A run whose group size was raised at a resume has both in one step."""
    live = play(tmp_path / "live", config(DAPO, steps=1, prompts=4, size=4))
    groups = [group for group in saved_groups(tmp_path / "live", 1) if group.drop_reason is None]
    folder = tmp_path / "mixed"
    folder.mkdir()
    for group, size in zip(groups, (4, 2, 3, 4), strict=True):
        del group.responses[size:]
    write_rollouts(folder, 1, groups)
    root = tmp_path / "run"
    found = play(root, config(DAPO, steps=1, prompts=4, size=4), replay=folder, bad=[2])
    assert found.trainer.rows == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11, 12]]
    lines = [json.loads(line) for line in (root / "health/step_1_update_2.jsonl").read_text().splitlines()]
    expected = [
        (group.prompt.uid, number, one.token_ids) for group in groups[2:] for number, one in enumerate(group.responses)
    ]
    assert [(row["uid"], row["sample"], row["response_ids"]) for row in lines] == expected
    assert live.last == 1


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("tis", ["auto", "on", "off"])
def test_groups_sampled_from_older_weights_are_corrected(tmp_path, tis, epochs):
    """In float32 `auto` is on in the steps that train on a carried group, and only there; a replay decides alike.

    With pi_old / mu = exp(w_mu - w_old) of the trainer of one number, the mean weight has a closed form.
    """
    made = config(replace(CARRY, tis=tis, tis_cap=0.9), steps=6, prompts=3, epochs=epochs)
    found = play(tmp_path / "live", made, rows=40)
    decided = []
    for record in found.records:
        groups = [g for g in saved_groups(tmp_path / "live", record["step"]) if g.drop_reason is None]
        sampled = [[-value for value in one.logprobs] for group in groups for one in group.responses]
        old = 1.0 + STRIDE * 2 * epochs * (record["step"] - 1)  # two updates an epoch
        stale = any(value != old for line in sampled for value in line)
        weights = [min(math.exp(value - old), 0.9) for line in sampled for value in line]
        on = tis == "on" or (tis == "auto" and stale)
        decided.append(on)
        assert ("train/tis" in record) == on
        if on:
            assert record["train/tis"] == pytest.approx(sum(weights) / len(weights), rel=1e-6)
        gap = [abs(value - old) for line in sampled for value in line]
        assert record["train/rollout_gap"] == pytest.approx(sum(gap) / len(gap), abs=1e-6)
        if epochs == 1:
            first = [math.exp(-STRIDE * update) for update in range(2)]  # the ratio of each update to the old policy
            assert min(first) - 1e-6 <= record["train/ratio"] <= 1.0
        assert stale == any(group.step < record["step"] for group in groups)
    if tis == "auto":
        assert {True, False} == set(decided)
    again = play(tmp_path / "again", made, replay=tmp_path / "live")
    for one, other in zip(found.records, again.records, strict=True):
        assert {k: v for k, v in one.items() if k.startswith("train/") and k != "train/acc"} == {
            k: v for k, v in other.items() if k.startswith("train/") and k != "train/acc"
        }


def test_a_resume_knows_from_which_step_a_carried_group_is(tmp_path):
    made = config(CARRY, steps=6, prompts=3)
    whole = play(tmp_path / "whole", made, rows=40)
    play(tmp_path / "halves", made, rows=40, stop_in=3)
    carried = state(tmp_path / "halves", 3)["source"]["sampler"]["carried"]
    assert carried and all(1 <= group["step"] <= 3 for group in carried)
    assert play(tmp_path / "halves", made, rows=40, resume="").records == whole.records
