"""The loop in order: what happens in a run, when it is saved and validated, and how it ends.

Source, policy and engine only note that they were called; checkpoints and health are the real ones.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from da3po_cli.algos.sampling import Batch, SamplingExhausted
from da3po_cli.algos.types import Group, Prompt, Response
from da3po_cli.config.schema import (
    CheckpointConfig,
    Config,
    HealthConfig,
    RolloutConfig,
    RunConfig,
    TrainConfig,
    ValidationConfig,
)
from da3po_cli.errors import DivergedError
from da3po_cli.protocols import SyncReport, Update, Validation
from da3po_cli.runs.checkpoints import saved_steps
from da3po_cli.training.checkpoint import CheckpointStore
from da3po_cli.training.health import Health
from da3po_cli.training.loop import Parts, train


class Job:
    """All that the loop acts on; `said` is what it did, in order.

    Args:
        scores: of the validations, one after the other.
        stop_after: the step after which the job is asked to stop.
        rows: steps that the data last for.
        skipped: no update is finite.
        carried: the step whose first group was sampled in the step before.
    """

    rank = data_rank = 0
    world = data_size = 1
    seconds = 0.0

    def __init__(self, scores=(), stop_after=None, rows=99, skipped=False, carried=None):
        self.said, self.records, self.warned = [], {}, []
        self.scores, self.stop_after, self.rows, self.skips = list(scores), stop_after, rows, skipped
        self.step, self.carried = 0, carried

    # Comm
    def broadcast(self, value):
        return value

    def barrier(self): ...

    # WeightSync, Validate
    def push(self):
        self.said.append("push")
        return SyncReport(seconds=1.0, gigabytes=1.0)

    def check(self, sums, batches, where):
        self.said.append(f"check {where}")

    def validate(self):
        self.said.append("validate")
        return Validation({"val/sums/avg@2": self.scores.pop(0)}, {})

    # RolloutSource: two mixed groups
    def collect(self, step, clock):
        if step > self.rows:
            raise SamplingExhausted("no more")
        self.said.append(f"collect {step}")
        groups = [Group(Prompt(f"{step}-{n}", (1, 2), "", "", "s", n), [one(1), one(0)], step=step) for n in range(2)]
        if step == self.carried:
            groups[0].step -= 1
        return Batch(groups, [], generated=groups, rounds=1)

    def state(self):
        return {"step": self.step}

    def load_state(self, state): ...

    # Policy
    def logprobs(self, batches, *, reference=False):
        return [batch.rollout_logprobs for batch in batches]

    def update(self, batches, loss, check=None):
        if check is not None:
            check({})
        self.said.append("update")
        value = float("nan") if self.skips else 0.5
        return Update(loss=value, grad_norm=1.0, lr=0.1, skipped=self.skips, sums={"tokens": 2.0})

    def advance_schedule(self):
        self.said.append("advance")

    def save(self, directory):
        self.said.append("save")
        (directory / "weights").write_text("w")

    def begin_save(self, directory):
        return Writing(self, directory)

    def load(self, directory): ...

    # Stops
    def asked(self):
        return self.step == self.stop_after

    def here(self, save):
        return False

    # Observer, and the beginning of a step for Stops
    def begin(self, step):
        self.step = step

    def phase(self, name, detail=""): ...
    def rollouts(self, step, batch): ...
    def validated(self, step, found): ...

    def warn(self, text):
        self.warned.append(text)

    def skipped(self, step, update, why, batch):
        self.warned.append(f"step {step}, update {update}: {why}")

    def record(self, record):
        self.records[record["step"]] = record

    def amend(self, step, found):
        self.said.append(f"amend {step}")


class Writing:
    """A background save that is not through before somebody waits for it."""

    seconds = 0.0

    def __init__(self, job, directory):
        self.job, self.directory = job, directory

    def done(self):
        return False

    def finish(self):
        self.job.save(self.directory)


def one(acc):
    return Response([3, 4], [-1.0, -1.0], "", "stop", "correct" if acc else "wrong", acc, 2.0 * acc - 1)


def run(job, path, *, steps, first_step=1, validation_due=False, validation=0, **checkpoint):
    """Train with two mini-batches a step; the last step done."""
    config = Config(
        run=RunConfig(steps=steps),
        rollout=RolloutConfig(prompts=2, group_size=2, max_tokens=8),
        train=TrainConfig(mini_batch_prompts=1),
        validation=ValidationConfig(every=validation),
        checkpoint=replace(CheckpointConfig(every=0, keep=9), **checkpoint),
        health=HealthConfig(max_skipped=3),
    )
    checkpoints = CheckpointStore(path, config.checkpoint, job, job, job)
    parts = Parts(
        comm=job,
        policy=job,
        source=job,
        sync=job,
        validate=job.validate if validation else None,
        observer=job,
        checkpoints=checkpoints,
        stop=job,
        health=Health(config.health, config.rollout.max_tokens),
    )
    return train(config, parts, first_step=first_step, validation_due=validation_due)


def done(step):
    """What the loop does after a step's groups are there: trainer and engine are compared before each update."""
    checked = [said for number in (1, 2) for said in (f"check step {step}, update {number}", "update")]
    return [*checked, "advance", "push"]


def test_a_run_in_order(tmp_path):
    """The engine gets the weights before it samples, and the new ones before anything is asked of it again."""
    job = Job(scores=[0.3, 0.2])
    assert run(job, tmp_path, steps=2, validation=2) == 2
    assert job.said == ["push", "validate", "collect 1", *done(1), "collect 2", *done(2), "validate", "save"]
    assert sorted(job.records) == [0, 1, 2]
    assert job.records[0]["val/sums/avg@2"] == 0.3 and job.records[2]["val/sums/avg@2"] == 0.2


def test_a_resumed_run_in_order(tmp_path):
    """From the step after the checkpoint, whose validation is made up for where it was left out."""
    run(Job(), tmp_path, steps=3)
    job = Job(scores=[0.3, 0.4])
    assert run(job, tmp_path, steps=4, first_step=4, validation_due=True, validation=3) == 4
    assert job.said == ["push", "validate", "amend 3", "collect 4", *done(4), "validate", "save"]
    job = Job(scores=[0.4])
    run(job, tmp_path, steps=4, first_step=4, validation=3)
    assert job.said == ["push", "collect 4", *done(4), "validate", "save"]
    assert sorted(job.records) == [4]


def test_a_run_that_is_asked_to_stop_saves_and_ends(tmp_path):
    """Soon: a validation that is due is left out."""
    job = Job(scores=[0.1, 0.2], stop_after=2)
    assert run(job, tmp_path, steps=5, validation=2) == 2
    assert job.said[-len(done(2)) - 2 :] == ["collect 2", *done(2), "save"]
    assert saved_steps(tmp_path) == [2]
    assert sorted(job.records) == [0, 1, 2], "the step that was done is on record"


@pytest.mark.parametrize(("every", "saved"), [(100, [1, 3, 4]), (0, [4])])
def test_a_validation_that_is_best_is_saved(tmp_path, every, saved):
    """Of 0.2, 0.1 and 0.5 the first and the last; with checkpoint.every=0 only the end is."""
    job = Job(scores=[0.0, 0.2, 0.1, 0.5, 0.4])
    run(job, tmp_path, steps=4, validation=1, every=every)
    assert saved_steps(tmp_path) == saved


def test_the_last_background_save_is_whole_at_the_end(tmp_path):
    job = Job()
    run(job, tmp_path, steps=2, async_save=True)
    assert saved_steps(tmp_path) == [2]


@pytest.mark.parametrize("background", [False, True])
def test_data_that_run_out_leave_a_checkpoint(tmp_path, background):
    """Of the last step that was done."""
    with pytest.raises(SamplingExhausted):
        run(Job(rows=3), tmp_path, steps=9, async_save=background)
    assert saved_steps(tmp_path) == [3]


def test_updates_skipped_in_a_row_end_the_run(tmp_path):
    """The third one is the first of step 2."""
    job = Job(skipped=True)
    with pytest.raises(DivergedError, match="3 updates in a row were skipped") as caught:
        run(job, tmp_path, steps=9)
    assert caught.value.where == "step 2, update 1"
    assert job.warned == [f"step {step}, update {number}: loss nan" for step, number in ((1, 1), (1, 2), (2, 1))]
    assert job.records[1]["train/skipped"] == job.records[1]["health/skipped_updates"] == 2


def test_an_update_with_tokens_of_older_weights_is_not_compared(tmp_path):
    """They are allowed to differ; the step's other update is compared."""
    job = Job(carried=2)
    run(job, tmp_path, steps=2)
    assert [said for said in job.said if said.startswith("check")] == [
        "check step 1, update 1", "check step 1, update 2", "check step 2, update 2",
    ]  # fmt: skip
