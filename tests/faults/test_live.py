"""The same with the rollout engine, on two ranks: killed in a rollout, in resharding, in a save, and stopped.

One run meets all of it, one after the other, and in the end has the numbers of a run that met nothing.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from demo_runs import SMALL, finish, metrics, start, train
from fault_runs import logs, when

from da3po_cli.runs.directory import RunDir

pytestmark = [pytest.mark.slow, pytest.mark.faults]

STEPS = 6
LIVE = [*SMALL, "validation.every=0", "run.tensorboard=false", "checkpoint.keep=2", f"--steps={STEPS}"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


FAULTS = {  # by the attempt of the run: rank, phase, step at the earliest
    "rollout": (1, 1, "rollout", 2),
    "resharding": (2, 0, "sync", 3),
    "save": (3, 1, "checkpoint", 4),
}


@pytest.mark.long
@pytest.mark.parametrize(("attempt", "rank", "phase", "step"), FAULTS.values(), ids=FAULTS)
def test_a_rank_is_killed(root, attempt, rank, phase, step):
    first = ["--name=run", *LIVE, "parallel.data=2"]
    job = start(root, "train", *(first if attempt == 1 else ["--resume", "--name=run"]))
    run = RunDir(root / "run")
    beat = when(job, logs(run.path, attempt), rank, phase, step)
    os.kill(beat.pid, signal.SIGKILL)
    _, said = finish(job, 128 + signal.SIGKILL)
    assert f"error: rank {rank} was ended by SIGKILL" in said
    assert run.read()["status"] == "failed"
    assert run.saved_steps()[-1] in (beat.step - 1, beat.step)
    run.check_free(resume="latest", overwrite=False)  # whole
    steps = [record["step"] for record in metrics(run.path)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= beat.step - 1


@pytest.mark.long
def test_a_rank_is_stopped_in_a_rollout(root):
    job = start(root, "train", "--resume", "--name=run", "health.stall_timeout=20")
    run = RunDir(root / "run")
    folder = logs(run.path, 4)
    beat = when(job, folder, 1, "rollout", 5)
    os.kill(beat.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    _, said = finish(job, 3)
    assert time.monotonic() - stopped < 60
    assert "error: rank 1: no progress for 20 s: this rank is behind, in " in said
    assert ", and its process is stopped (SIGSTOP)\n" in said
    assert all("most recent call first" in (folder / f"rank_{rank}.stacks.txt").read_text() for rank in (0, 1))


@pytest.mark.long
def test_it_goes_on_as_if_nothing_had_happened(root):
    train(root, "--resume", "--name=run", "health.stall_timeout=1800")
    train(root, "--name=reference", *LIVE, "parallel.data=2")
    assert metrics(root / "run") == metrics(root / "reference")
    for step in range(1, STEPS + 1):
        saved = [(root / name / "rollouts" / f"step_{step}.jsonl").read_text() for name in ("run", "reference")]
        assert saved[0] == saved[1]


def graders(parent: int) -> list[int]:
    """Process ids of the grading workers of a rank."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            of = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if of == parent and b"da3po_cli.rewards.pool.worker" in words:
            found.append(int(folder.name))
    return found


def test_grading_workers_are_killed(root):
    """All of them, while training goes on: others take their place, and no answer is lost."""
    job = start(root, "train", "--name=graders", *LIVE, "parallel.data=1", "--steps=3")
    beat = when(job, logs(root / "graders", 1), 0, "train", 1)
    killed = graders(beat.pid)
    assert killed
    for worker in killed:
        os.kill(worker, signal.SIGKILL)
    finish(job)
    records = metrics(root / "graders")
    assert [record["step"] for record in records] == [1, 2, 3]
    assert all(record["grade/unknown"] == 0 for record in records)
