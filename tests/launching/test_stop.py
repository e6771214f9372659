"""When a job stops before its last step: time limits in numbers; signals in tests/launching and test_resume.py."""

from __future__ import annotations

import os
import signal

import pytest

from da3po_cli.config.durations import seconds
from da3po_cli.errors import Terminated
from da3po_cli.launching.stop import BOUNCE, Listener, Stop, deadline


class One:
    """A job of one rank."""

    rank, world = 0, 1

    def broadcast(self, value):
        return value


class Watch:
    """A clock that the test sets."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    ("text", "expected"), [("00:01", 60), ("01:30", 5400), ("1:30:05", 5405), ("23:59:59", 86399), ("72:00", 259200)]
)
def test_hours_minutes_seconds(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["90", "1:60", "1:5", "00:00", "00:00:00", "-1:00", "1:30:5", "1h", "", "1:00:00:00"])
def test_what_is_no_time(text):
    with pytest.raises(ValueError, match="no time at all" if text.startswith("00:00") else "is not HH:MM"):
        seconds(text)


def test_the_limit_counts_from_the_start_of_the_job():
    attempt = {"started": "2026-03-01T12:00:00+0100"}
    noon = 1772362800.0  # 2026-03-01 11:00:00 UTC
    assert deadline(None, attempt, {}) is None
    assert deadline("01:30", attempt, {}) == noon + 5400
    assert deadline("01:30", attempt, {"SLURM_JOB_START_TIME": "1772000000"}) == 1772000000 + 5400


def stop_after(step_seconds, limit, save):
    """The step after which a run of such steps stops."""
    watch = Watch()
    stop = Stop(One(), None, lambda text: None, watch.now + limit, watch)
    for step, length in enumerate(step_seconds, 1):
        stop.begin(step)
        watch.now += length
        if stop.here(save):
            return step
        watch.now += save
    return None


@pytest.mark.parametrize(
    ("step_seconds", "limit", "save", "expected"),
    [
        ([10] * 9, 45, 0, 4),  # a fifth would end at 50
        ([10] * 9, 50, 0, 5),
        ([10, 25, 10, 10, 10], 80, 0, 5),  # step 4 ends at 55, and another of 25 at 80
        ([10, 25, 10, 10, 10], 79, 0, 4),
        ([10, 25, 10, 10, 10], 69, 0, 3),
        # With saves a lap is 11: after step 3, at 32, its own save, another lap and a save may take until 45.
        ([10] * 9, 45, 1, 4),
        ([10] * 9, 44, 1, 3),
        ([100], 5, 0, 1),  # one step is always done
        ([10] * 9, 1000, 0, None),
    ],
)
def test_no_step_begins_that_might_pass_the_limit(step_seconds, limit, save, expected):
    assert stop_after(step_seconds, limit, save) == expected


def test_without_a_limit_nothing_stops():
    stop = Stop(One(), None, lambda text: None, None)
    stop.begin(1)
    assert not stop.asked()
    assert not stop.here(0.0)


@pytest.fixture
def handlers():
    """Put this process's handlers back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_signal_waits_for_the_step_and_the_second_does_not(handlers):
    said = []
    listener = Listener(0, None)
    stop = Stop(One(), listener, said.append, None)
    with pytest.raises(Terminated):  # nothing to save yet
        os.kill(os.getpid(), signal.SIGTERM)
    listener.impatient()
    stop.begin(7)
    assert not stop.here(0.0)
    stop.begin(8)
    os.kill(os.getpid(), signal.SIGINT)
    assert said == ["stopping after step 8, which saves a checkpoint; Ctrl-C or SIGTERM again stops now"]
    os.kill(os.getpid(), signal.SIGINT)  # the same key press, by another way
    assert stop.asked() and stop.here(0.0)
    assert listener.asked is signal.SIGINT
    listener._when -= BOUNCE
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert len(said) == 1


def test_a_signal_after_the_last_question_is_for_the_next_step(handlers):
    said = []
    stop = Stop(One(), Listener(0, None), said.append, None)
    stop.begin(3)
    assert not stop.here(0.0)
    os.kill(os.getpid(), signal.SIGTERM)  # while step 3 is saved
    assert said[0].startswith("stopping after step 4,")
    stop.begin(4)
    assert stop.here(0.0)


def test_after_the_last_step_a_signal_ends_the_job_at_once(handlers):
    stop = Stop(One(), Listener(0, None), lambda text: None, None)
    stop.begin(1)
    stop.close()
    with pytest.raises(Terminated):
        os.kill(os.getpid(), signal.SIGTERM)
