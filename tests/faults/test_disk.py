"""A full disk, on a small tmpfs: the run ends with the reason, the checkpoint before is whole, and it goes on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import here
import pytest
from demo_runs import finish, metrics, start
from fault_runs import MOST_STEPS, group, logs, make_rollouts, when

from da3po_cli.algos.sampling import Batch
from da3po_cli.errors import EnvironmentProblem
from da3po_cli.runs.directory import RunDir
from da3po_cli.runs.display import Silent
from da3po_cli.runs.log import RunLog
from da3po_cli.runs.metrics import MetricsWriter, read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.faults]


@pytest.fixture
def disk(tmp_path):
    """A file system of 64 MB; a checkpoint of the demo takes 10."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if not mounted or mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip() if mounted else 'there is no mount'}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, *, leave: int = 0) -> Path:
    """Take all room but `leave` bytes. Returns the file that does."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"\0" * (64 << 10)):
            pass
    while shutil.disk_usage(disk).free < leave:
        os.truncate(ballast, ballast.stat().st_size - 4096)
    return ballast


def test_rollouts_and_metrics_that_do_not_fit_leave_no_half_of_a_file(disk):
    writer = MetricsWriter(disk, wandb_project=None)
    log = RunLog(disk, Silent(), writer, save_rollouts=True)
    log.record({"step": 1})
    fill(disk)
    with pytest.raises(EnvironmentProblem, match=r"cannot write step_2\.jsonl: No space left on device \(0.0 MB free"):
        log.rollouts(2, Batch(kept=[group("0-2-0")] * 64, dropped=[], generated=[], rounds=1))
    assert list((disk / "rollouts").iterdir()) == []
    with pytest.raises(EnvironmentProblem, match=r"cannot write metrics\.jsonl: No space left on device") as caught:
        for step in range(2, 1000):
            log.record({"step": step, "text": "x" * 97})
    assert "make room on the disk, then go on from the last whole checkpoint with --resume" in caught.value.hint
    assert caught.value.exit_code == 3
    log.close()
    found = read_metrics(disk / "metrics.jsonl")
    assert [record["step"] for record in found] == list(range(1, len(found) + 1))
    assert (disk / "metrics.jsonl").read_text().endswith("\n")


@pytest.mark.parametrize(
    ("leave", "every", "what"),
    [
        (400_000, 1, "the checkpoint could not be written ("),
        pytest.param(0, 1, "the checkpoint could not be written (common.pt); ", marks=pytest.mark.long),
        (0, 4, "cannot write metrics.jsonl: "),
    ],
    ids=["checkpoint", "no room at all", "metrics"],
)
def test_a_run_ends_and_goes_on_when_there_is_room(disk, tmp_path, unbroken, leave, every, what):
    arguments = [*make_rollouts(tmp_path / "rollouts", MOST_STEPS), "parallel.data=1", f"checkpoint.every={every}"]
    job = start(disk, "train", *arguments, "--name=run")
    run = RunDir(disk / "run")
    when(job, logs(run.path, 1), 0, "train", 5)
    ballast = fill(disk, leave=leave)
    _, said = finish(job, 3)
    assert f"error: {what}" in said
    assert re.search(r"No space left on device|; 0\.\d MB are free on its disk\n", said)
    assert "  fix: make room on the disk" in said and "--resume" in said
    assert "Traceback" not in said
    assert run.saved_steps()[-1] == 4
    run.check_free(resume="latest", overwrite=False)  # whole
    assert not list((run.path / "checkpoints").glob("partial_*"))
    steps = [record["step"] for record in metrics(run.path)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 4
    ballast.unlink()
    here.train(disk, "--resume", "--name=run", arguments[-3])
    assert metrics(run.path) == unbroken(1)
    assert run.read()["status"] == "finished"
