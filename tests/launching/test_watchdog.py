"""The watchdog with real processes: what a rank says of itself, who is behind, stacks of ranks that cannot move."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from da3po_cli.launching import watchdog
from da3po_cli.launching.watchdog import behind, stall_error, watch
from da3po_cli.runs import heartbeat
from da3po_cli.runs.heartbeat import Beat, read_beats

RANK = """
import sys, time
from pathlib import Path
from da3po_cli.launching.watchdog import watch
from da3po_cli.runs.heartbeat import beat, tick

def report(error, rank):
    sys.stdout.write(f"{rank}|{error.message}|{error.where}|{error.hint}")
    sys.stdout.flush()

rank, timeout, phases, then = int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
with watch(Path(sys.argv[1]), rank, timeout, report):
    for number in range(phases):
        beat("train", f"update {number}", step=2)
    def hang_here(pause):
        sys.stderr.write("ready\\n")
        sys.stderr.flush()
        time.sleep(pause)
    hang_here(60 if then == "hang" else 0)
    while then == "work":
        time.sleep(0.05)
        tick()
"""


def start(logs: Path, rank: int, *, timeout: float, phases: int, then: str) -> subprocess.Popen[str]:
    job = subprocess.Popen(
        [sys.executable, "-c", RANK, str(logs), str(rank), str(timeout), str(phases), then],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stderr is not None and job.stderr.readline() == "ready\n"
    return job


def test_a_rank_that_hangs_ends_with_its_stacks(tmp_path):
    begun = time.monotonic()
    job = start(tmp_path, 0, timeout=1, phases=3, then="hang")
    out, _ = job.communicate(timeout=60)
    assert job.returncode == 3
    assert 1 < time.monotonic() - begun < 30
    rank, message, where, hint = out.split("|")
    assert (rank, message) == ("0", "no progress for 1 s: in train (update 2) of step 2")
    assert where == f"stacks of all ranks in {tmp_path}/rank_*.stacks.txt"
    assert "--resume" in hint and "health.stall_timeout" in hint
    assert "in hang_here" in (tmp_path / "rank_0.stacks.txt").read_text()


def test_a_rank_stopped_by_a_signal_is_named_and_woken_for_its_stack(tmp_path):
    """Rank 0 waits in the same phase as rank 1, as in a collective; the phases do not tell who is behind."""
    late = start(tmp_path, 1, timeout=30, phases=3, then="hang")
    late.send_signal(signal.SIGSTOP)
    job = start(tmp_path, 0, timeout=1, phases=3, then="hang")
    out, _ = job.communicate(timeout=60)
    assert job.returncode == 3
    said = "1|no progress for 1 s: this rank is behind, in train (update 2) of step 2, and its process is stopped"
    assert out.startswith(f"{said} (SIGSTOP)|")
    for rank in (0, 1):
        assert "in hang_here" in (tmp_path / f"rank_{rank}.stacks.txt").read_text()
    late.kill()
    late.communicate()


def test_a_rank_that_cannot_write_its_stacks_itself_gets_a_signal(tmp_path):
    """Here it does not watch at all; else its watch may wait for the GIL."""
    late = start(tmp_path, 1, timeout=0, phases=2, then="hang")
    job = start(tmp_path, 0, timeout=1, phases=3, then="hang")
    out, _ = job.communicate(timeout=60)
    assert job.returncode == 3
    assert out.startswith("1|no progress for 1 s: this rank is behind, in train (update 1) of step 2|")
    assert "in hang_here" in (tmp_path / "rank_1.stacks.txt").read_text()
    assert late.poll() is None
    late.kill()
    late.communicate()


def test_as_long_as_one_rank_gets_on_nobody_ends(tmp_path):
    """The others wait for it in a collective, for as long as it takes."""
    busy = start(tmp_path, 1, timeout=0, phases=1, then="work")
    job = start(tmp_path, 0, timeout=1, phases=5, then="hang")
    with pytest.raises(subprocess.TimeoutExpired):
        job.wait(4)
    busy.kill()  # and now nobody does
    out, _ = job.communicate(timeout=60)
    assert job.returncode == 3
    assert out.startswith(
        "1|no progress for 1 s: this rank is behind, in train (update 0) of step 2, and its process is"
    )
    busy.communicate()


def test_before_the_first_step_there_is_more_time(tmp_path):
    """Imports and engines do not beat."""
    job = start(tmp_path, 0, timeout=0.5, phases=0, then="hang")
    with pytest.raises(subprocess.TimeoutExpired):
        job.wait(3)
    job.kill()
    job.communicate()


def test_a_pause_of_the_whole_job_is_no_stall(tmp_path):
    """As a scheduler pauses it: the time that a watch did not run counts for nobody."""
    job = start(tmp_path, 0, timeout=3, phases=1, then="work")
    job.send_signal(signal.SIGSTOP)
    time.sleep(5)
    job.send_signal(signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        job.wait(1.5)
    job.kill()
    job.communicate()


def test_a_rank_that_ends_well_leaves_its_last_beat_and_no_more(tmp_path):
    job = start(tmp_path, 0, timeout=100, phases=2, then="end")
    job.communicate(timeout=30)
    assert job.returncode == 0
    assert [file.name for file in tmp_path.iterdir()] == ["rank_0.beat"]
    (beat,) = read_beats(tmp_path)
    assert (beat.rank, beat.phase, beat.phases) == (0, heartbeat.DONE, 3)


def test_beats_are_written_in_place_and_the_file_keeps_its_size(tmp_path):
    """So that they go on when the disk is full."""
    with watch(tmp_path, 2, 0, lambda error, rank: None):
        file = tmp_path / "rank_2.beat"
        inode, size = file.stat().st_ino, file.stat().st_size
        heartbeat.beat("train", "x" * 1000, step=123456)
        assert (file.stat().st_ino, file.stat().st_size) == (inode, size) == (inode, heartbeat.SIZE)
        (beat,) = read_beats(tmp_path)
        assert (beat.rank, beat.step, beat.phase, beat.pid) == (2, 123456, "train", os.getpid())
        assert beat.born == heartbeat.process_state(os.getpid())[1] != ""
    heartbeat.beat("nobody listens")
    heartbeat.tick()


def test_who_is_behind():
    def one(rank, phases, phase="train"):
        return Beat(rank, 100 + rank, "here", phases=phases, phase=phase)

    same = [one(0, 5), one(1, 5), one(2, 5)]
    assert behind([one(0, 5), one(1, 4), one(2, 5)], {}, {0: 1.0, 1: 9.0, 2: 1.0}).rank == 1
    assert behind(same, {0: "S", 1: "S", 2: "T"}, {0: 1.0, 1: 2.0, 2: 3.0}).rank == 2
    assert behind(same, {0: "S", 1: "S", 2: "S"}, {0: 3.0, 1: 1.0, 2: 2.0}).rank == 1


def test_the_message_of_a_rank_elsewhere_claims_nothing_about_its_process(tmp_path):
    error = stall_error(Beat(9, 1, "far", step=4, phase="sync"), "?", 1800, tmp_path, alone=False)
    assert error.message == "no progress for 1800 s: this rank is behind, in sync of step 4"
    assert error.exit_code == 3


def test_a_signal_by_hand_writes_the_stacks_and_the_rank_goes_on(tmp_path):
    job = start(tmp_path, 0, timeout=0, phases=1, then="work")
    job.send_signal(watchdog.DUMP)
    deadline = time.monotonic() + 10
    file = tmp_path / "rank_0.stacks.txt"
    while not file.stat().st_size and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "most recent call first" in file.read_text()
    before = json.loads((tmp_path / "rank_0.beat").read_text())["ticks"]
    time.sleep(1.5)
    assert json.loads((tmp_path / "rank_0.beat").read_text())["ticks"] > before
    job.kill()
    job.communicate()
