"""Who runs when, on what share of the machine, and what is written down of it. The runs are stand-ins (stub.py)."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from da3po_cli.ablations import runner as running
from da3po_cli.ablations.directory import Ablation, AblationDir, RunState, find_ablation, newest_ablation
from da3po_cli.ablations.matrix import make_arms
from da3po_cli.ablations.overview import Quiet
from da3po_cli.ablations.plan import Planned, Slot, make_slots, plan_runs
from da3po_cli.ablations.runner import Runner
from da3po_cli.errors import ConfigErrors, Terminated, UsageError

STUB = (sys.executable, str(Path(__file__).with_name("stub.py")))


def planned_ablation(
    path: Path, values: str, *, seeds: Sequence[int] = (0,), overrides: Sequence[str] = ()
) -> tuple[AblationDir, Ablation, list[Planned]]:
    arms = make_arms(None, [f"lambda={values}"])
    ablation = Ablation("a", ["demo"], ["run.steps=3", *overrides], 1, arms, list(seeds), arms[0].label)
    planned = plan_runs(ablation, cuda=0, env={})
    ablation.runs = [RunState(one.name, one.arm.label, one.seed, one.hash) for one in planned]
    directory = AblationDir(path)
    path.mkdir(exist_ok=True)
    directory.write(ablation)
    return directory, ablation, planned


@pytest.fixture
def carry_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[AblationDir, Ablation]]:
    monkeypatch.setattr(running, "POLL", 0.02)

    def run(values: str, slots: Sequence[Slot] = (Slot(),), **more) -> tuple[AblationDir, Ablation]:
        directory, ablation, planned = planned_ablation(tmp_path / "a", values, **more)
        with directory.claim():
            Runner(directory, ablation, slots, Quiet(), STUB).run(planned)
        return directory, ablation

    return run


def calls(directory: AblationDir, name: str) -> list[dict]:
    return [json.loads(line) for line in (directory.path / name / "calls.jsonl").read_text().splitlines()]


def test_all_arms_of_a_seed_come_before_the_next_seed(carry_out) -> None:
    directory, ablation = carry_out("1.0,2.0", seeds=(3, 4))
    names = ["lambda-1.0-seed3", "lambda-2.0-seed3", "lambda-1.0-seed4", "lambda-2.0-seed4"]
    assert [run.name for run in ablation.runs] == names
    starts = [calls(directory, name)[0]["at"] for name in names]
    ends = [calls(directory, name)[1]["end"] for name in names]
    assert all(end < start for end, start in zip(ends[:-1], starts[1:], strict=True)), "one at a time, in order"
    assert [(run.status, run.exit_code) for run in directory.read().runs] == [("finished", 0)] * 4
    assert all(run.seconds > 0 for run in ablation.runs)
    arguments = calls(directory, names[1])[0]["arguments"]
    assert arguments[:4] == ["--config", "demo", "--name", "lambda-2.0-seed3"]
    assert arguments[4:] == [
        "checkpoint.keep=1",
        "checkpoint.keep_best=false",
        "run.steps=3",
        "lambda=2.0",
        "run.seed=3",
        "parallel.data=1",
    ]


def test_a_failing_run_is_noted_and_the_others_go_on(carry_out) -> None:
    directory, _ = carry_out("5,7,2.0")
    diverged, killed, fine = directory.read().runs
    assert (diverged.status, diverged.exit_code, diverged.error) == ("diverged", 5, "gradients were not finite")
    assert (killed.status, killed.exit_code, killed.error) == ("failed", 128 + signal.SIGKILL, None)
    assert fine.status == "finished"


def test_an_error_is_that_of_the_last_attempt(carry_out, tmp_path: Path) -> None:
    directory, _, planned = planned_ablation(tmp_path / "a", "7")
    log = directory.log(planned[0].name)
    log.parent.mkdir()
    log.write_text("error: disk full\n")
    carry_out("7")
    (killed,) = directory.read().runs
    assert (killed.exit_code, killed.error) == (128 + signal.SIGKILL, None)


def test_where_a_run_stops_by_itself_no_other_is_started(carry_out) -> None:
    """checkpoint.before is the end of the machine's time, for the runs after it too."""
    directory, ablation = carry_out("4,1.0")
    assert [(run.status, run.exit_code) for run in directory.read().runs] == [("interrupted", 0), ("pending", None)]
    with directory.claim():
        Runner(directory, ablation, [Slot()], Quiet(), STUB).run(plan_runs(ablation, cuda=0, env={}))
    assert [run.status for run in directory.read().runs] == ["finished", "finished"]


def test_what_has_a_result_is_not_run_again(carry_out, tmp_path: Path) -> None:
    directory, ablation = carry_out("1.0,5,7")
    planned = plan_runs(ablation, cuda=0, env={})
    with directory.claim():
        Runner(directory, ablation, [Slot()], Quiet(), STUB).run(planned)
    assert len(calls(directory, "lambda-1.0-seed0")) == 2, "one start and one end"
    assert len(calls(directory, "lambda-5-seed0")) == 1, "diverged, which the same seed would do again"
    again = calls(directory, "lambda-7-seed0")
    assert len(again) == 2 and again[1]["arguments"][-1] == "--overwrite", "failed, without a checkpoint"


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_stops_the_runs_and_they_go_on_later(
    carry_out, tmp_path: Path, number: int, kind: type[BaseException]
) -> None:
    def terminate(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    started = tmp_path / "a/lambda-9-seed0/metrics.jsonl"

    def send() -> None:
        while not started.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    try:
        thread.start()
        with pytest.raises(kind):
            carry_out("9,1.0")
    finally:
        thread.join()
        signal.signal(signal.SIGTERM, before)
    directory = AblationDir(tmp_path / "a")
    ablation = directory.read()
    assert [(run.status, run.exit_code) for run in ablation.runs] == [("interrupted", 128 + number), ("pending", None)]
    with directory.claim():
        Runner(directory, ablation, [Slot()], Quiet(), STUB).run(plan_runs(ablation, cuda=0, env={}))
    assert [run.status for run in directory.read().runs] == ["finished", "finished"]
    assert calls(directory, "lambda-9-seed0")[1]["arguments"] == ["--name", "lambda-9-seed0", "--resume"]


def test_two_at_a_time_share_the_cores(carry_out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_SLEEP", "2")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core")
    half = len(cores) // 2
    slots = make_slots(2, cuda=0)
    directory, _ = carry_out("1.0,2.0", slots)
    first, second = (calls(directory, f"lambda-{value}-seed0") for value in ("1.0", "2.0"))
    assert {tuple(first[0]["cores"]), tuple(second[0]["cores"])} == {tuple(cores[:half]), tuple(cores[half : 2 * half])}
    assert max(first[0]["at"], second[0]["at"]) < min(first[1]["end"], second[1]["end"]), "at the same time"
    assert sorted(os.sched_getaffinity(0)) == cores, "ours are what they were"


def test_devices_are_split(carry_out) -> None:
    slots = make_slots(2, cuda=5, env={"CUDA_VISIBLE_DEVICES": "4,2,7,1,0"})
    assert [slot.devices for slot in slots] == [("4", "2"), ("7", "1")], "the fifth is left idle"
    assert [slot.devices for slot in make_slots(1, cuda=2, env={})] == [("0", "1")]
    directory, _ = carry_out("1.0,2.0", slots)
    seen = {calls(directory, f"lambda-{value}-seed0")[0]["devices"] for value in ("1.0", "2.0")}
    assert seen == {"4,2", "7,1"}


def test_shares_that_there_are_not() -> None:
    with pytest.raises(UsageError, match="3 with 2 CUDA"):
        make_slots(3, cuda=2, env={})
    with pytest.raises(UsageError, match="at least 1"):
        make_slots(0, cuda=0)
    assert make_slots(3, cuda=0, cores=[0, 1]) == [Slot()] * 3, "more runs than cores take turns on all of them"
    assert [slot.cores for slot in make_slots(2, cuda=0, cores=[0, 1, 2, 3, 4])] == [(0, 1), (2, 3)]


def test_two_ablations_cannot_work_in_one_directory(tmp_path: Path) -> None:
    directory, _, _ = planned_ablation(tmp_path / "a", "1.0")
    with directory.claim(), pytest.raises(UsageError, match="is at work"), directory.claim():
        pass
    with directory.claim():
        pass


def test_the_plan_lists_every_problem_once() -> None:
    arms = make_arms(None, ["lambda=-1,2"])
    with pytest.raises(ConfigErrors) as caught:
        plan_runs(Ablation("a", ["demo"], ["foo=1"], 1, arms, [0, 1, 2], arms[0].label), cuda=0, env={})
    assert [problem.message for problem in caught.value.problems] == [
        "unknown config key 'foo'",
        "lambda=-1.0 must be above 0",
    ]


@pytest.mark.parametrize(
    ("algos", "params", "overrides", "words"),
    [
        (None, ["lambda=1,1.0"], [], "'lambda=1' and 'lambda=1.0' are the same settings"),
        (None, ["lambda=1,2"], ["algo.daa_lambda=3"], "algo.daa_lambda=3 would set for all arms"),
        ("dapo,grpo", [], ["algo.name=gspo"], "algo.name=gspo would set for all arms"),
    ],
)
def test_arms_that_are_not_what_they_are_called(algos, params, overrides, words: str) -> None:
    arms = make_arms(algos, params)
    with pytest.raises(UsageError, match=words):
        plan_runs(Ablation("a", ["demo"], overrides, 1, arms, [0], arms[0].label), cuda=0, env={})


def test_a_lambda_of_one_plans_what_dapo_is() -> None:
    """But for the name: the two arms that must give the same numbers have the same settings."""
    from da3po_cli.config.load import diff

    def config(algos: str | None, params: list[str]):
        arms = make_arms(algos, params)
        return plan_runs(Ablation("a", ["demo"], [], 1, arms, [0], arms[0].label), cuda=0, env={})[0].config

    changed = diff(config(None, ["lambda=1.0,2.0"]), config("dapo,grpo", []))
    assert [key for key, *_ in changed] == ["run.name", "algo.name"]


def test_finding_ablations(tmp_path: Path) -> None:
    env = {"DA3PO_RUNS": str(tmp_path)}
    assert newest_ablation(env) is None and find_ablation("a", env) is None
    for name, created in (("a", "2026-02"), ("b", "2026-01")):
        directory, ablation, _ = planned_ablation(tmp_path / name, "1.0")
        ablation.created = created
        directory.write(ablation)
    newest = newest_ablation(env)
    assert newest is not None and newest.path.name == "a"
    assert find_ablation(str(tmp_path / "b"), {}) == AblationDir(tmp_path / "b")
    (tmp_path / "b/ablation.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot read it"):
        AblationDir(tmp_path / "b").read()
    with pytest.raises(UsageError, match="cannot read it") as caught:
        newest_ablation(env)
    assert caught.value.where == str(tmp_path / "b/ablation.json")
