"""Who may work in a directory, and when a claim is over: real processes, killed ones, other machines by their files."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from da3po_cli.errors import EnvironmentProblem, UsageError
from da3po_cli.runs import claim as claims
from da3po_cli.runs.claim import FILE, claim, owner_at_work
from da3po_cli.runs.directory import RunDir, latest_run

REPOSITORY = Path(__file__).parents[2]
HOLD = """
import sys, time
from pathlib import Path
from da3po_cli.errors import UsageError
from da3po_cli.runs.claim import claim
try:
    with claim(Path(sys.argv[1]), "test"):
        print("mine", flush=True)
        time.sleep(float(sys.argv[2]))
except UsageError as error:
    print(error.message, flush=True)
"""


def hold(directory: Path, seconds: float = 600) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(directory), str(seconds)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}
    )


def line(job: subprocess.Popen[str]) -> str:
    assert job.stdout is not None
    return job.stdout.readline().strip()


def test_a_claim_is_refused_to_others_until_its_process_has_ended(tmp_path: Path) -> None:
    job = hold(tmp_path / "run")
    try:
        assert line(job) == "mine"
        with pytest.raises(UsageError, match=f"at work in .*: process {job.pid} on "), claim(tmp_path / "run", "--x"):
            pass
        job.send_signal(signal.SIGSTOP)  # it is no less its own
        assert owner_at_work(tmp_path / "run") is not None
        job.kill()
        job.wait()
        assert owner_at_work(tmp_path / "run") is None
        with claim(tmp_path / "run", "--x"):
            owner = owner_at_work(tmp_path / "run")
            assert owner is not None and owner.pid == os.getpid()
    finally:
        job.kill()


def test_nothing_is_left_of_a_claim_but_what_was_made_under_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), claim(tmp_path / "nothing", "--x"):
        raise ZeroDivisionError
    assert not (tmp_path / "nothing").exists()
    with claim(tmp_path / "some", "--x"):
        (tmp_path / "some/file").touch()
    assert [one.name for one in (tmp_path / "some").iterdir()] == ["file"]


def test_of_many_that_find_a_dead_claim_one_gets_the_directory(tmp_path: Path) -> None:
    first = hold(tmp_path / "run")
    assert line(first) == "mine"
    first.kill()
    first.wait()
    jobs = [hold(tmp_path / "run", 5) for _ in range(6)]
    said = [line(job) for job in jobs]
    assert said.count("mine") == 1, said
    (owner,) = [job.pid for job, words in zip(jobs, said, strict=True) if words == "mine"]
    assert all(f"process {owner} on" in words for words in said if words != "mine")
    for job in jobs:
        job.wait()
    assert not (tmp_path / "run").exists()


def written(directory: Path, **changes: Any) -> Path:
    """A claim of this process, changed and left behind."""
    with claim(directory, "--x"):
        content = json.loads((directory / FILE).read_text())
    directory.mkdir(exist_ok=True)
    (directory / FILE).write_text(json.dumps(content | changes))
    return directory / FILE


def test_a_process_id_that_was_given_out_again_is_another_process(tmp_path: Path) -> None:
    written(tmp_path, born="1")
    assert owner_at_work(tmp_path) is None


def test_the_claim_of_another_machine_counts_while_it_is_touched(tmp_path: Path) -> None:
    file = written(tmp_path, host="elsewhere", machine="elsewhere 1", pid=1)
    with pytest.raises(UsageError, match="process 1 on elsewhere"), claim(tmp_path, "--x"):
        pass
    past = time.time() - claims.STALE_SECONDS - 5
    os.utime(file, (past, past))
    with claim(tmp_path, "--x"):
        pass


def test_an_owner_touches_its_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "TOUCH_SECONDS", 0.05)
    with claim(tmp_path, "--x"):
        os.utime(tmp_path / FILE, (0, 0))
        deadline = time.monotonic() + 20
        while (tmp_path / FILE).stat().st_mtime == 0:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize(("restarts", "refused"), [("0", True), ("1", False)])
def test_a_job_that_is_started_again_elsewhere_takes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: str, refused: bool
) -> None:
    written(tmp_path, host="elsewhere", machine="elsewhere 1", job="77", restarts=0)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    if refused:
        with pytest.raises(UsageError, match="at work"), claim(tmp_path, "--x"):
            pass
    else:
        with claim(tmp_path, "--x"):
            pass


def test_half_a_claim_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"host": "a')
    past = time.time() - claims.STALE_SECONDS - 5
    os.utime(tmp_path / FILE, (past, past))
    with claim(tmp_path, "--x"):
        pass


def test_a_run_whose_process_is_dead_has_died(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with claim(run.path, "--x"):
        run.create("", "hash", ["da3po", "train"])
        assert run.status() == "running"
    assert run.status() == "died"
    run.finish("failed")
    assert run.status() == "failed"


def test_overwriting_keeps_the_claim_and_nothing_else(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create("", "hash", ["da3po", "train"])
    (run.path / "old").touch()
    with claim(run.path, "--x"):
        run.create("", "hash", ["da3po", "train"], overwrite=True)
        assert (run.path / FILE).is_file() and not (run.path / "old").exists()


def test_a_file_system_without_symbolic_links_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "symlink", refused)
    monkeypatch.setenv("DA3PO_RUNS", str(tmp_path))
    for name in ("one", "two"):
        RunDir(tmp_path / name).create("", "hash", ["da3po", "train"])
    RunDir(tmp_path / "one").update(created="2000-01-01T00:00:00+0000")
    found = latest_run()
    assert found is not None and found.name == "two"


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match="cannot write"), claim(tmp_path / "file/run", "--x"):
        pass
