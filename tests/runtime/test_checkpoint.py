"""Checkpoints appear whole or not at all, and the newest few are kept."""

import json

import pytest

from da3po_cli.errors import UsageError
from da3po_cli.runtime.checkpoint import CheckpointStore, saved_steps


class One:
    """A job of one rank."""

    rank, world = 0, 1

    def barrier(self): ...


class FileOnly:
    """Stands for the policy, whose own files tests/bridge covers, and for a source with a cursor."""

    def __init__(self, fail=False):
        self.fail, self.cursor, self.loaded = fail, 0, None

    def save(self, directory):
        (directory / "weights").write_text("w")
        if self.fail:
            raise OSError("disk full")

    def load(self, directory):
        self.loaded = directory

    def state(self):
        return {"cursor": self.cursor}

    def load_state(self, state):
        self.cursor = state["cursor"]


def store(path, keep=2, fail=False):
    part = FileOnly(fail)
    return CheckpointStore(path, keep, part, part, One()), part


def test_the_newest_are_kept_in_numeric_order(tmp_path):
    checkpoints, _ = store(tmp_path)
    for step in (8, 9, 10, 100):
        checkpoints.save(step)
    assert saved_steps(tmp_path) == [10, 100]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_10", "step_100"]


def test_a_failed_save_leaves_the_previous_one_as_it_was(tmp_path):
    good, _ = store(tmp_path, keep=1)
    good.save(1)
    bad, _ = store(tmp_path, keep=1, fail=True)
    with pytest.raises(OSError, match="disk full"):
        bad.save(2)
    assert saved_steps(tmp_path) == [1]
    good.save(2)
    assert saved_steps(tmp_path) == [2]
    assert not (tmp_path / "partial_2").exists()


def test_load_restores_the_cursor_of_the_step_asked_for(tmp_path):
    checkpoints, part = store(tmp_path, keep=3)
    for step in (1, 2, 3):
        part.cursor = 10 * step
        checkpoints.save(step)
    assert checkpoints.load(None) == 3 and part.cursor == 30
    assert checkpoints.load(2) == 2 and part.cursor == 20
    assert part.loaded == tmp_path / "step_2" / "policy"


def test_a_missing_step_lists_those_that_exist(tmp_path):
    checkpoints, _ = store(tmp_path, keep=3)
    with pytest.raises(UsageError, match=r"no whole checkpoint \(steps saved: none\)"):
        checkpoints.load(None)
    checkpoints.save(4)
    with pytest.raises(UsageError, match=r"no checkpoint of step 5 \(steps saved: 4\)"):
        checkpoints.load(5)


def test_a_directory_without_state_is_not_a_checkpoint(tmp_path):
    (tmp_path / "step_7" / "policy").mkdir(parents=True)
    (tmp_path / "step_x").mkdir()
    (tmp_path / "step_x" / "state.json").write_text(json.dumps({}))
    assert saved_steps(tmp_path) == []
