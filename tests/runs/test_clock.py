"""The parts of a step add up to its wall time, whatever nests in what."""

import pytest

from da3po_cli.training.clock import PHASES, Clock


class Hand:
    """A clock that is moved by hand."""

    def __init__(self):
        self.time = 100.0

    def __call__(self):
        return self.time


def test_every_second_is_charged_to_exactly_one_phase():
    hand = Hand()
    clock = Clock(now=hand)
    hand.time += 1  # other
    with clock.phase("rollout"):
        hand.time += 2
        with clock.phase("grade"):
            hand.time += 4
        hand.time += 8
    hand.time += 16  # other
    assert clock.spent("rollout") == 10
    lap = clock.lap()
    assert lap == {f"timing/{name}": 0.0 for name in PHASES} | {
        "timing/rollout": 10.0,
        "timing/grade": 4.0,
        "timing/other": 17.0,
        "timing/step": 31.0,
    }
    hand.time += 3
    assert clock.lap()["timing/step"] == 3, "nothing is lost between two laps"


def test_what_an_earlier_attempt_spent_is_part_of_the_lap_and_of_no_other():
    hand = Hand()
    clock = Clock(now=hand)
    hand.time += 1
    clock.credit({"rollout": 20.0, "grade": 5.0})
    with clock.phase("rollout"):
        hand.time += 2
    lap = clock.lap()
    assert (lap["timing/rollout"], lap["timing/grade"], lap["timing/other"], lap["timing/step"]) == (22, 5, 1, 28)
    hand.time += 3
    assert clock.lap()["timing/step"] == 3


def test_a_phase_ends_when_its_body_raises():
    hand = Hand()
    clock = Clock(now=hand)
    with pytest.raises(RuntimeError), clock.phase("train"):
        hand.time += 5
        raise RuntimeError
    hand.time += 7
    assert clock.lap()["timing/other"] == 7


def test_unknown_phase():
    with pytest.raises(KeyError), Clock().phase("lunch"):
        pass
