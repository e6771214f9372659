"""Ranks that die or stop in the middle of training: what is said, what is left, and that the run goes on exactly."""

from __future__ import annotations

import os
import signal
import time

import pytest
from demo_runs import finish, metrics, start, train
from fault_runs import logs, make_rollouts, when

from da3po_cli.runs.directory import RunDir

pytestmark = [pytest.mark.slow, pytest.mark.faults]

STEPS = 5
TWO = ["parallel.data=2"]
STALL = 10  # seconds; a beat comes several times a second


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def arguments(root):
    return [*make_rollouts(root / "rollouts", STEPS), *TWO]


def test_a_rank_killed_in_training(root, arguments):
    job = start(root, "train", *arguments, "--name=killed")
    beat = when(job, logs(root / "killed", 1), 1, "train", 3)
    os.kill(beat.pid, signal.SIGKILL)
    _, said = finish(job, 128 + signal.SIGKILL)
    run = RunDir(root / "killed")
    assert "error: rank 1 was ended by SIGKILL; the machine may have run out of memory\n" in said
    assert f"  at: rank 1, log in {run.path}/logs/attempt_1/rank_1.log\n" in said
    assert run.read()["status"] == "failed"
    assert run.saved_steps() == [beat.step - 2, beat.step - 1]
    assert [record["step"] for record in metrics(run.path)] == list(range(1, beat.step))


def test_a_rank_killed_in_a_save(root, arguments):
    """It goes on from the test before; the step it dies in has no checkpoint yet."""
    job = start(root, "train", "--resume", "--name=killed", arguments[-2])
    beat = when(job, logs(root / "killed", 2), 0, "checkpoint", 4)
    os.kill(beat.pid, signal.SIGKILL)
    _, said = finish(job, 128 + signal.SIGKILL)
    run = RunDir(root / "killed")
    assert "error: rank 0 was ended by SIGKILL" in said
    assert run.saved_steps()[-1] in (beat.step - 1, beat.step)  # the rename is the last thing of a save
    for step in run.saved_steps():
        run.check_free(resume=str(step), overwrite=False)  # whole


def test_a_stopped_rank_ends_the_job_with_the_stacks_of_all(root, arguments):
    job = start(root, "train", *arguments, "--name=stalled", f"health.stall_timeout={STALL}")
    folder = logs(root / "stalled", 1)
    beat = when(job, folder, 1, "train", 3)
    os.kill(beat.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    _, said = finish(job, 3, timeout=120)
    took = time.monotonic() - stopped
    assert took < STALL + 30, "the timeout, twice the watch's period, the dumps and the end of the ranks"
    assert f"error: rank 1: no progress for {STALL} s: this rank is behind, in {beat.phase}" in said
    assert f" of step {beat.step}, and its process is stopped (SIGSTOP)\n" in said
    assert f"  at: stacks of all ranks in {folder}/rank_*.stacks.txt\n" in said
    assert "--resume" in said and "health.stall_timeout" in said
    for rank in (0, 1):
        stacks = (folder / f"rank_{rank}.stacks.txt").read_text()
        assert "most recent call first" in stacks
        assert "in learn" in stacks, "the main thread was in the training phase"
    run = RunDir(root / "stalled")
    assert run.read()["status"] == "failed"
    assert run.saved_steps()[-1] >= beat.step - 1  # woken for its stack, it may finish the step


@pytest.mark.parametrize("name", ["killed", "stalled"])
def test_the_run_goes_on_as_if_nothing_had_happened(root, arguments, unbroken, name):
    train(root, "--resume", f"--name={name}", arguments[-2], "health.stall_timeout=1800")
    assert metrics(root / name) == unbroken(2)[:STEPS]
    assert not list((root / name / "checkpoints").glob("partial_*"))
