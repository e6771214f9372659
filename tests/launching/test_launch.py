"""Real processes: one rank, two ranks over gloo, failures, signals, and an outer torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from da3po_cli.launching.launch import SHUTDOWN_SECONDS, first_failure, note_error, outer_launcher
from da3po_cli.output import error_lines
from da3po_cli.runs.directory import RunDir

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent


def _environment(**more: str) -> dict[str, str]:
    ours = ("DA3PO_", "SLURM_", "TORCHELASTIC_", "RANK", "OMP_NUM_THREADS")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = os.pathsep.join([str(REPOSITORY), str(HERE), os.environ.get("PYTHONPATH", "")])
    return clean | {"PYTHONPATH": path} | more


def _job(run: Path, ranks: int, worker: str, hangup: signal.Handlers = signal.SIG_DFL) -> subprocess.Popen[str]:
    """`hangup`: what the shell, or nohup, does with SIGHUP."""
    return subprocess.Popen(
        [sys.executable, str(HERE / "job.py"), str(run), str(ranks), worker],
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup),
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(job: subprocess.Popen[str], seconds: float = 180) -> tuple[int, str, str]:
    try:
        out, err = job.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        job.kill()
        raise
    return job.returncode, out, err


def _seen(run: Path, rank: int) -> dict[str, object]:
    return json.loads((run / f"seen_{rank}.json").read_text())


def _gone(pid: int) -> bool:
    """True when there is no such process, or only its entry is left for a parent to collect."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_one_rank_runs_in_the_launching_process(tmp_path: Path) -> None:
    job = _job(tmp_path / "run", 1, "report")
    code, out, err = _finish(job)
    assert code == 0, err
    seen = _seen(tmp_path / "run", 0)
    assert seen["pid"] == job.pid  # no second interpreter, so torch is imported once
    assert seen["sum"] == 1.0
    assert seen["threads"] == str(len(os.sched_getaffinity(0)))
    assert "talk of rank 0" in out
    assert RunDir(tmp_path / "run").read()["status"] == "finished"


@pytest.mark.slow
def test_two_ranks_meet_and_only_rank_0_talks(tmp_path: Path) -> None:
    code, out, err = _finish(_job(tmp_path / "run", 2, "report"))
    assert code == 0, err
    assert [_seen(tmp_path / "run", rank)["sum"] for rank in (0, 1)] == [3.0, 3.0]
    assert _seen(tmp_path / "run", 1)["local_rank"] == "1"
    assert _seen(tmp_path / "run", 0)["threads"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert out == "talk of rank 0\n"
    assert err == ""
    assert "talk of rank 1" in (tmp_path / "run/logs/attempt_1/rank_1.log").read_text()


@pytest.mark.slow
def test_the_first_failing_rank_is_named_and_its_exit_code_kept(tmp_path: Path) -> None:
    code, out, err = _finish(_job(tmp_path / "run", 2, "diverge_on_rank_1"))
    assert code == 5
    assert err.splitlines() == [
        "error: rank 1: loss is nan at step 3",
        "  at: step 3",
        "  fix: train.lr=1e-6",
    ]
    assert out == ""
    assert RunDir(tmp_path / "run").read()["status"] == "failed"
    assert "DivergedError" in (tmp_path / "run/logs/attempt_1/rank_1.log").read_text()


def test_a_bug_in_a_rank_names_its_log_and_keeps_the_traceback(tmp_path: Path) -> None:
    try:
        raise ZeroDivisionError("seven by zero")
    except ZeroDivisionError as bug:
        note_error(bug, tmp_path, 1)
    error = first_failure(tmp_path, {1: 1})
    lines = error_lines(error)
    assert error.exit_code == 1
    assert "rank 1 failed: ZeroDivisionError: seven by zero" in lines[0]
    assert "rank_1.log" in lines[1]
    assert len(lines) <= 4
    assert "test_a_bug" in json.loads((tmp_path / "rank_1.error.json").read_text())["traceback"]


@pytest.mark.slow
def test_a_rank_killed_from_outside_is_named(tmp_path: Path) -> None:
    code, _, err = _finish(_job(tmp_path / "run", 2, "killed_on_rank_1"))
    assert code == 128 + 9
    assert "rank 1 was ended by SIGKILL" in err
    assert len(err.splitlines()) <= 4


def _when_ready(job: subprocess.Popen[str], run: Path) -> None:
    deadline = time.monotonic() + 120
    while not (run / "ready").exists() and time.monotonic() < deadline and job.poll() is None:
        time.sleep(0.05)
    assert (run / "ready").exists()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_before_the_first_step_a_signal_ends_all_ranks_at_once(
    tmp_path: Path, ranks: int, number: signal.Signals, expected: int
) -> None:
    run = tmp_path / "run"
    job = _job(run, ranks, "wait")
    _when_ready(job, run)
    job.send_signal(number)
    code, _, err = _finish(job, 60)
    assert code == expected, err
    assert err == ""
    assert (run / "unwound").exists()  # rank 0 had the time to close its display and files
    assert RunDir(run).read()["status"] == "interrupted"
    assert all(_gone(int((run / f"pid_{rank}").read_text())) for rank in range(ranks))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "number", "expected"),
    [
        (1, signal.SIGINT, 130),
        (1, signal.SIGTERM, 143),
        (1, signal.SIGHUP, 143),
        (2, signal.SIGINT, 130),
        (2, signal.SIGHUP, 143),
    ],
)
def test_the_first_signal_stops_all_ranks_after_the_same_step(
    tmp_path: Path, ranks: int, number: signal.Signals, expected: int
) -> None:
    run = tmp_path / "run"
    job = _job(run, ranks, "short_steps")
    _when_ready(job, run)
    job.send_signal(number)
    code, _, err = _finish(job, 60)
    assert code == expected, err
    (step,) = {(run / f"stopped_{rank}").read_text() for rank in range(ranks)}
    assert err == f"stopping after step {step}, which saves a checkpoint; Ctrl-C or SIGTERM again stops now\n"
    record = RunDir(run).read()
    assert record["status"] == "interrupted"
    assert record["attempts"][0]["step"] == int(step)
    assert not list(run.glob("logs/attempt_1/*.error.json"))
    assert not list(run.glob("logs/attempt_1/*.pid"))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_under_nohup_a_hangup_is_nothing(tmp_path: Path, ranks: int) -> None:
    run = tmp_path / "run"
    job = _job(run, ranks, "short_steps", signal.SIG_IGN)
    _when_ready(job, run)
    job.send_signal(signal.SIGHUP)
    time.sleep(1)
    assert job.poll() is None and not list(run.glob("stopped_*"))
    job.send_signal(signal.SIGTERM)
    code, _, err = _finish(job, 60)
    assert code == 143 and err.startswith("stopping after step "), err


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_second_signal_ends_a_step_of_minutes_at_once(tmp_path: Path, ranks: int) -> None:
    run = tmp_path / "run"
    job = _job(run, ranks, "long_step")
    _when_ready(job, run)
    job.send_signal(signal.SIGTERM)
    time.sleep(SHUTDOWN_SECONDS + 2 if ranks > 1 else 1)  # nothing kills the ranks that finish their step
    assert job.poll() is None
    job.send_signal(signal.SIGINT)
    begun = time.monotonic()
    code, _, err = _finish(job, 60)
    assert time.monotonic() - begun < SHUTDOWN_SECONDS + 5
    assert code == 130, err
    assert err.startswith("stopping after step 1,")
    assert RunDir(run).read()["status"] == "interrupted"
    assert "step" not in RunDir(run).read()["attempts"][0]
    assert all(_gone(int((run / f"pid_{rank}").read_text())) for rank in range(ranks))


@pytest.mark.slow
def test_ranks_end_with_a_launcher_that_was_killed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = _job(run, 2, "wait")
    deadline = time.monotonic() + 120
    while not (run / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    job.kill()
    job.wait(10)
    pids = [int((run / f"pid_{rank}").read_text()) for rank in (0, 1)]
    deadline = time.monotonic() + 10
    while not all(map(_gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(map(_gone, pids))


@pytest.mark.slow
def test_under_torchrun_each_process_is_one_rank(tmp_path: Path) -> None:
    run = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job = subprocess.run(
        [*torchrun, str(HERE / "job.py"), str(run), "2", "report"],
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert job.returncode == 0, job.stderr
    assert [_seen(run, rank)["sum"] for rank in (0, 1)] == [3.0, 3.0]
    assert RunDir(run).read()["status"] == "finished"


@pytest.mark.slow
def test_a_signal_under_torchrun_stops_all_ranks_after_the_same_step(tmp_path: Path) -> None:
    run = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job = subprocess.Popen(
        [*torchrun, str(HERE / "job.py"), str(run), "2", "short_steps"],
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _when_ready(job, run)
    job.send_signal(signal.SIGTERM)  # torchrun passes it on to its ranks, and gives them half a minute
    _, _, err = _finish(job, 60)
    assert "stopping after step" in err
    assert (run / "stopped_0").read_text() == (run / "stopped_1").read_text()
    assert RunDir(run).read()["attempts"][0]["signal"] == "SIGTERM"


def test_places_under_outer_launchers() -> None:
    assert outer_launcher({}) is None
    assert outer_launcher({"SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}) is None  # a batch script, not a step of srun
    torchrun = outer_launcher({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert torchrun is not None
    assert (torchrun.rank, torchrun.local_rank, torchrun.world, torchrun.local_world) == (3, 1, 4, 2)
    srun = outer_launcher(
        {
            "SLURM_PROCID": "9",
            "SLURM_LOCALID": "1",
            "SLURM_STEP_NUM_TASKS": "16",
            "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
            "SLURM_JOB_ID": "7",
        }
    )
    assert srun is not None
    assert (srun.rank, srun.local_rank, srun.world, srun.local_world, srun.job) == (9, 1, 16, 8, "7")


def test_the_earliest_error_wins_over_the_lowest_rank(tmp_path: Path) -> None:
    for rank, when in ((0, 20.0), (2, 10.0)):
        record = {
            "rank": rank,
            "time": when,
            "type": "EnvironmentProblem",
            "message": f"message of {rank}",
            "hint": None,
            "where": None,
            "exit_code": 3,
            "known": True,
        }
        (tmp_path / f"rank_{rank}.error.json").write_text(json.dumps(record))
    error = first_failure(tmp_path, {0: 3, 2: 3})
    assert (error.message, error.exit_code, error.kind) == ("rank 2: message of 2", 3, "environment")
