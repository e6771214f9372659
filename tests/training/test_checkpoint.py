"""Checkpoints appear whole or not at all; the newest few and the best are kept; damage is named."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from loop_runs import One

from da3po_cli.config.schema import CheckpointConfig
from da3po_cli.errors import EnvironmentProblem, UsageError
from da3po_cli.runs.checkpoints import checkpoint_path, read_state, recover, saved_steps
from da3po_cli.training.checkpoint import CheckpointStore


class FileOnly:
    """Stands for the policy, whose own files test_resume_policy.py covers, and for a source with a cursor."""

    def __init__(self, fail=False):
        self.fail, self.cursor, self.loaded, self.pending = fail, 0, None, []

    def save(self, directory):
        (directory / "weights.distcp").write_text("w" * 100)
        (directory / ".metadata").write_text("m")
        if self.fail:
            raise OSError("disk full")

    def begin_save(self, directory):
        self.pending.append(Writing(directory, self))
        return self.pending[-1]

    def load(self, directory):
        self.loaded = directory

    def state(self):
        return {"cursor": self.cursor}

    def load_state(self, state):
        self.cursor = state["cursor"]


class Writing:
    """A background save whose end the test decides."""

    seconds = 0.5

    def __init__(self, directory, part):
        self.directory, self.part, self.written = directory, part, False

    def done(self):
        return self.written

    def finish(self):
        if self.part.fail:
            raise EnvironmentProblem("disk full")
        self.part.save(self.directory)


def store(path, fail=False, part=None, **config):
    part = part or FileOnly(fail)
    return CheckpointStore(path, CheckpointConfig(**config), part, part, One()), part


def names(path):
    return sorted(entry.name for entry in path.iterdir())


def test_the_newest_are_kept_in_numeric_order(tmp_path):
    checkpoints, _ = store(tmp_path)
    for step in (8, 9, 10, 100):
        checkpoints.save(step, {})
    assert saved_steps(tmp_path) == [10, 100]
    assert names(tmp_path) == ["step_10", "step_100"]


def validated(value):
    return {"train/loss": 9.0, "val/arith/avg@4": value, "val/arith/pass@4": 1 - value}


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({}, [2, 5]),  # the best by avg@4
        ({"best_metric": "val/arith/pass@4"}, [1, 5]),
        ({"keep_best": False}, [5]),
    ],
)
def test_the_best_is_kept(tmp_path, config, kept):
    checkpoints, _ = store(tmp_path, keep=1, **config)
    for step, value in enumerate((0.1, 0.9, 0.3), 1):
        checkpoints.save(step, validated(value))
    checkpoints.save(4, {})  # no validation at this step
    checkpoints.save(5, validated(0.2))
    assert saved_steps(tmp_path) == kept


def test_of_equally_good_checkpoints_the_newest_is_kept(tmp_path):
    checkpoints, _ = store(tmp_path, keep=1)
    for step, value in enumerate((0.5, 0.5, 0.5, 0.1, 0.1), 1):
        checkpoints.save(step, validated(value))
    assert saved_steps(tmp_path) == [3, 5]


def test_the_best_score_outlives_a_restart(tmp_path):
    checkpoints, _ = store(tmp_path, keep=1)
    for step, value in enumerate((0.1, 0.9, 0.3), 1):
        checkpoints.save(step, validated(value))
    again, _ = store(tmp_path, keep=1)
    assert again.load(None) == 3
    assert not again.score(validated(0.8))
    assert not again.score(validated(0.9))
    assert again.score(validated(0.91))
    assert not again.score(validated(float("nan")))
    again.save(4, validated(0.8))
    assert saved_steps(tmp_path) == [2, 4]
    again.save(5, validated(0.95))
    assert saved_steps(tmp_path) == [5]


def test_a_step_that_is_saved_again_keeps_its_score(tmp_path):
    """As where the data run out at the next step: there is no record of a validation then."""
    checkpoints, _ = store(tmp_path, keep=1)
    checkpoints.save(1, validated(0.9))
    checkpoints.save(1, {})
    assert not checkpoints.score(validated(0.8))
    again, _ = store(tmp_path, keep=1)
    assert again.load(None) == 1
    assert not again.score(validated(0.8)) and again.score(validated(0.95))


def test_a_metric_that_no_validation_has_is_named_at_once(tmp_path):
    checkpoints, _ = store(tmp_path, best_metric="val/arith/avg@8")
    with pytest.raises(UsageError, match="val/arith/avg@8 is not among") as caught:
        checkpoints.score(validated(0.5))
    assert "one of val/arith/avg@4, val/arith/pass@4" in caught.value.hint


def test_a_failed_save_leaves_the_previous_one_as_it_was(tmp_path):
    good, _ = store(tmp_path, keep=1)
    good.save(1, {})
    bad, _ = store(tmp_path, keep=1, fail=True)
    with pytest.raises(EnvironmentProblem, match="cannot write partial_2: disk full") as caught:
        bad.save(2, {})
    assert "--resume" in caught.value.hint
    assert names(tmp_path) == ["step_1"], "what was written of it makes room"
    good.save(2, {})
    assert names(tmp_path) == ["step_2"]


def test_load_restores_the_cursor_of_the_step_asked_for(tmp_path):
    checkpoints, part = store(tmp_path, keep=3)
    for step in (1, 2, 3):
        part.cursor = 10 * step
        checkpoints.save(step, {})
    assert checkpoints.load(None) == 3 and part.cursor == 30
    assert checkpoints.load(2) == 2 and part.cursor == 20
    assert part.loaded == tmp_path / "step_2" / "policy"


def test_going_back_gives_up_the_later_steps(tmp_path):
    """Or else they would be the latest, and the new ones be deleted as the oldest."""
    checkpoints, _ = store(tmp_path, keep=2)
    for step in (10, 20):
        checkpoints.save(step, {})
    checkpoints.load(10)
    assert saved_steps(tmp_path) == [10]
    checkpoints.save(15, {})
    assert saved_steps(tmp_path) == [10, 15]


def test_a_missing_step_lists_those_that_exist(tmp_path):
    checkpoints, _ = store(tmp_path, keep=3)
    with pytest.raises(UsageError, match=r"no whole checkpoint \(steps saved: none\)"):
        checkpoints.load(None)
    checkpoints.save(4, {})
    with pytest.raises(UsageError, match=r"no checkpoint of step 5 \(steps saved: 4\)"):
        checkpoints.load(5)


def test_a_directory_without_state_is_not_a_checkpoint(tmp_path):
    (tmp_path / "step_7" / "policy").mkdir(parents=True)
    for name in ("step_x", "partial_8", "replaced_9"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text(json.dumps({"step": 8}))
    assert saved_steps(tmp_path) == []


# ------------------------------------------------------------------------------------------------------------ damage


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


def flip(file):
    file.write_bytes(b"x" + file.read_bytes()[1:])


@pytest.mark.parametrize(
    ("name", "harm", "why"),
    [
        ("state.json", cut, "cut short"),
        ("state.json", lambda file: file.write_text(""), "cut short"),
        ("state.json", lambda file: file.write_text("[]"), "no state"),
        ("policy/.metadata", lambda file: file.write_text(""), "has 0 bytes and was written with 1"),
        ("policy/.metadata", flip, "not those that were written"),
        ("policy/.metadata", Path.unlink, "missing"),
        ("policy/weights.distcp", cut, "has 99 bytes and was written with 100"),
    ],
)
def test_a_damaged_file_is_named_and_the_step_before_offered(tmp_path, name, harm, why):
    checkpoints, _ = store(tmp_path, keep=3)
    for step in (5, 10, 15):
        checkpoints.save(step, {})
    harm(tmp_path / "step_15" / name)
    for call in (lambda: checkpoints.load(None), lambda: checkpoint_path(tmp_path, 15)):
        with pytest.raises(UsageError, match=f"step_15 is damaged: {name}.*{why}") as caught:
            call()
        assert "--resume 10" in caught.value.hint
        assert caught.value.where == str(tmp_path / "step_15" / name)
    assert checkpoints.load(10) == 10
    assert saved_steps(tmp_path) == [5, 10]


def test_a_checkpoint_of_replayed_rollouts_does_not_go_on_live(tmp_path):
    checkpoints, part = store(tmp_path)
    part.state = dict  # ReplayedRollouts has no position
    checkpoints.save(1, {})
    live, _ = store(tmp_path)
    with pytest.raises(UsageError, match="trained on replayed rollouts, so it has no cursor"):
        live.load(None)


# -------------------------------------------------------------------------------------------------- in the background


def test_a_background_save_is_whole_at_the_safe_point_after_its_last_byte(tmp_path):
    checkpoints, part = store(tmp_path, async_save=True)
    part.cursor = 1
    checkpoints.save(1, {})
    part.cursor = 2  # training goes on
    checkpoints.poll()
    assert saved_steps(tmp_path) == []
    part.pending[0].written = True
    assert saved_steps(tmp_path) == []
    checkpoints.poll()
    assert saved_steps(tmp_path) == [1]
    assert read_state(tmp_path / "step_1")["source"] == {"cursor": 1}
    assert 0.5 <= checkpoints.seconds < 5
    checkpoints.poll()  # nothing in flight
    checkpoints.wait()


def test_never_two_background_saves_at_a_time_and_the_end_waits(tmp_path):
    checkpoints, _ = store(tmp_path, async_save=True, keep=5)
    checkpoints.save(1, {})
    checkpoints.save(2, {})
    assert saved_steps(tmp_path) == [1]
    checkpoints.wait()
    assert saved_steps(tmp_path) == [1, 2]


@pytest.mark.parametrize("safe_point", ["poll", "wait", "save"])
def test_an_error_of_the_background_writer_surfaces(tmp_path, safe_point):
    checkpoints, part = store(tmp_path, async_save=True, fail=True)
    checkpoints.save(1, {})
    part.pending[0].written = True
    with pytest.raises(EnvironmentProblem, match="disk full"):
        getattr(checkpoints, safe_point)(*((2, {}) if safe_point == "save" else ()))
    assert saved_steps(tmp_path) == []


# ---------------------------------------------------------------------------------------------------------- kill -9


def killed_at(moment: int, directory: Path, body: Callable[[], None]) -> bool:
    """Run `body` in a child that is killed at its n-th file operation below `directory`; False when it has fewer."""
    child = os.fork()
    if child == 0:
        seen = 0

        def count(event: str, arguments: tuple) -> None:
            nonlocal seen
            touches = event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")
            if touches and any(str(directory) in str(argument) for argument in arguments):
                seen += 1
                if seen == moment:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            body()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize(("step", "found"), [(2, {1, 2}), (1, {1})], ids=["the next step", "the same step once more"])
def test_a_kill_at_any_file_operation_leaves_a_whole_checkpoint(tmp_path, step, found):
    """Every moment of a save that replaces the only other checkpoint, one after the other."""
    seen, moment = set(), 0
    while True:
        moment += 1
        directory = tmp_path / str(moment)
        checkpoints, part = store(directory, keep=1)
        part.cursor = 1
        checkpoints.save(1, {})
        part.cursor = 2
        if not killed_at(moment, directory, lambda checkpoints=checkpoints: checkpoints.save(step, {})):
            break
        again, source = store(directory, keep=1)
        again.open()
        last = again.load(None)
        seen.add(last)
        assert source.cursor in (1, 2) if step == 1 else source.cursor == last
        assert names(directory) in ([f"step_{last}"], ["step_1", "step_2"])
        again.save(3, {})
        assert names(directory) == ["step_3"]
    assert moment > 15
    assert seen == found


def test_a_kill_while_a_validation_is_added_leaves_the_checkpoint_with_it_or_without(tmp_path):
    seen, moment = set(), 0
    while True:
        moment += 1
        directory = tmp_path / str(moment)
        checkpoints, _ = store(directory)
        checkpoints.save(1, {"step": 1})
        checkpoints.load(1)
        killed = killed_at(moment, directory, lambda checkpoints=checkpoints: checkpoints.amend(1, validated(0.9)))
        again, _ = store(directory)
        again.open()
        assert again.load(None) == 1
        score = read_state(directory / "step_1")["score"]
        assert again.record == {"step": 1, **(validated(0.9) if score else {})}
        seen.add(score)
        again.amend(1, validated(0.9))  # once more
        assert read_state(directory / "step_1")["score"] == 0.9
        if not killed:
            break
    assert moment > 3
    assert seen == {None, 0.9}


def test_leftovers_of_a_crash_are_mended_before_anything_is_read(tmp_path):
    checkpoints, _ = store(tmp_path)
    checkpoints.save(4, {})
    (tmp_path / "step_4").rename(tmp_path / "replaced_4")
    (tmp_path / "partial_4").mkdir()
    (tmp_path / "partial_4" / "state.json").write_text("{")
    (tmp_path / "notes").mkdir()
    recover(tmp_path)
    assert names(tmp_path) == ["notes", "step_4"]
    assert read_state(tmp_path / "step_4")["step"] == 4
