"""Dynamic sampling as a state machine: order, counts, caps, carry, and resuming in the middle."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from da3po_cli.algos import ALGORITHMS
from da3po_cli.algos.sampling import MAX_ROUND, DynamicSampler, SamplingExhausted, judge
from da3po_cli.algos.types import Group, Prompt, Response

DAPO = ALGORITHMS["dapo"].defaults
SIZE = 4


def group(uid, correct, failed=0, unknown=0):
    """A group of SIZE responses; `unknown` of the wrong ones are unjudged."""
    responses = [
        Response([1], [0.0], "", "stop", "correct" if i < correct else "wrong", int(i < correct)) for i in range(SIZE)
    ]
    for response in responses[SIZE - unknown :]:
        response.verdict = "unknown"
    for response in responses[:failed]:
        response.finish_reason = "failed"
    return Group(Prompt(str(uid), (1,), "", "", "s", 0), responses)


KEPT = st.integers(1, SIZE - 1)
ANY = st.integers(0, SIZE)


class Stream:
    """An endless source of groups whose correct counts repeat a pattern; `uid` is the position."""

    def __init__(self, pattern, at=0):
        self.pattern, self.at = pattern, at

    def draw(self, count):
        self.at += count
        return [group(uid, self.pattern[uid % len(self.pattern)]) for uid in range(self.at - count, self.at)]


def run_step(sampler, stream):
    sampler.start()
    asked = []
    while not sampler.full:
        asked.append(sampler.next_round())
        sampler.add(stream.draw(asked[-1]))
    assert sampler.next_round() == 0
    return sampler.finish(), asked


def uids(groups):
    return [int(item.prompt.uid) for item in groups]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (group(0, 0), "too_hard"),
        (group(0, SIZE), "too_easy"),
        (group(0, 1), None),
        (group(0, SIZE - 1), None),
        (group(0, 2, failed=1), "failed"),
        (group(0, 0, failed=SIZE), "failed"),
        (group(0, 2, unknown=2), "too_easy"),  # both judged responses are correct: no contrast
        (group(0, 0, unknown=1), "too_hard"),
        (group(0, 1, unknown=1), None),
        (group(0, 0, unknown=SIZE), "failed"),
        (Group(Prompt("0", (1,), "", "", "s", 0), []), "failed"),
    ],
)
def test_judge(made, reason):
    assert judge(made) == reason


@settings(deadline=None)
@given(st.lists(ANY, min_size=1, max_size=40).filter(lambda p: any(0 < k < SIZE for k in p)), st.integers(1, 40))
def test_a_step_keeps_the_first_in_prompt_order_and_counts_the_rest(pattern, needed):
    sampler = DynamicSampler(replace(DAPO, max_rounds=10**6), needed)
    stream = Stream(pattern)
    for _ in range(3):
        first = stream.at
        batch, asked = run_step(sampler, stream)
        drawn = range(first, stream.at)
        mixed = [uid for uid in drawn if 0 < pattern[uid % len(pattern)] < SIZE]
        assert uids(batch.kept) == mixed[:needed]
        assert uids(batch.generated) == list(drawn) and len(drawn) == sum(asked)
        assert batch.rounds == len(asked)
        assert all(0 < count <= MAX_ROUND * needed for count in asked)
        assert sorted(uids(batch.kept) + uids(batch.dropped)) == list(drawn)
        expected = Counter({0: "too_hard", SIZE: "too_easy"}.get(pattern[u % len(pattern)], "surplus") for u in drawn)
        expected["surplus"] -= needed
        assert Counter(item.drop_reason for item in batch.dropped) == +expected
        assert all(item.drop_reason is None for item in batch.kept)


@settings(deadline=None)
@given(st.lists(KEPT | ANY, min_size=1, max_size=20).filter(lambda p: any(0 < k < SIZE for k in p)), st.integers(1, 12))
def test_carried_surplus_comes_first_and_nothing_is_lost(pattern, needed):
    sampler = DynamicSampler(replace(DAPO, max_rounds=10**6, carry_surplus=True), needed)
    stream = Stream(pattern)
    trained, dropped, waiting = [], [], 0
    for _ in range(4):
        first = stream.at
        batch, _ = run_step(sampler, stream)
        assert uids(batch.generated) == list(range(first, stream.at))
        assert len(batch.kept) == needed
        trained += uids(batch.kept)
        dropped += uids(batch.dropped)
        assert "surplus" not in {item.drop_reason for item in batch.dropped}
        waiting = batch.carried
    mixed = [uid for uid in range(stream.at) if 0 < pattern[uid % len(pattern)] < SIZE]
    assert trained == mixed[: 4 * needed]
    assert waiting == len(mixed) - 4 * needed
    assert len(trained) + len(dropped) + waiting == stream.at


def test_a_step_may_be_filled_by_carried_groups_alone():
    sampler = DynamicSampler(replace(DAPO, carry_surplus=True), 2)
    sampler.start()
    sampler.add([group(uid, 1) for uid in range(5)])
    assert (uids(sampler.finish().kept), sampler.state()["generated"]) == ([0, 1], 0)
    sampler.start()
    assert sampler.full
    batch = sampler.finish()
    assert (uids(batch.kept), batch.generated, batch.rounds, batch.carried) == ([2, 3], [], 0, 1)


@settings(deadline=None)
@given(st.lists(ANY, min_size=1, max_size=20).filter(lambda p: any(0 < k < SIZE for k in p)), st.data())
def test_resuming_anywhere_equals_going_on(pattern, data):
    algo = replace(DAPO, max_rounds=10**6, carry_surplus=data.draw(st.booleans()))
    needed, stop = data.draw(st.integers(1, 8)), data.draw(st.integers(0, 12))

    def play(stop_at):
        """Three steps; after `stop_at` calls, sampler and stream are rebuilt from their JSON state, as a resume does:
        it begins its step once more, which changes nothing where that is in progress.
        """
        sampler, stream, calls, seen = DynamicSampler(algo, needed), Stream(pattern), 0, []

        def breakpoint_():
            nonlocal sampler, stream, calls
            calls += 1
            if calls == stop_at:
                state, at = json.loads(json.dumps(sampler.state())), stream.at
                sampler, stream = DynamicSampler(algo, needed), Stream(pattern, at)
                sampler.load_state(state)
                if state["started"]:
                    sampler.start()

        for _ in range(3):
            sampler.start()
            breakpoint_()
            while not sampler.full:
                count = sampler.next_round()
                sampler.add(stream.draw(count))
                seen.append(count)
                breakpoint_()
            batch = sampler.finish()
            seen.append((uids(batch.kept), uids(batch.dropped), uids(batch.generated), batch.rounds, batch.carried))
            breakpoint_()
        return seen

    assert play(stop) == play(None)


@pytest.mark.parametrize("policy", ["short", "unfiltered", "error"])
def test_at_the_cap(policy):
    sampler = DynamicSampler(replace(DAPO, max_rounds=2, on_exhausted=policy), 4)
    sampler.start()
    rounds = 0
    while not sampler.full:
        uid = 10 * rounds
        sampler.add(
            [group(uid, 0), group(uid + 1, 2, failed=1), group(uid + 2, 0), group(uid + 3, 1 if rounds else SIZE)]
        )
        rounds += 1
    assert rounds == 2
    if policy == "error":
        with pytest.raises(SamplingExhausted) as caught:
            sampler.finish()
        message = str(caught.value)
        assert "kept 1 of 4 groups after 2 round(s)" in message
        assert "acceptance rate 0.125 of 8 groups (2 failed, 1 too_easy, 4 too_hard)" in message
        assert "mean accuracy 0.281" in message  # (4 + 1 + 2 * 2) / 32
        assert "algo.on_exhausted=short" in caught.value.hint
        assert caught.value.exit_code == 5
        assert sampler.state()["groups"]  # nothing is lost before the caller has saved
        return
    batch = sampler.finish()
    # unfiltered fills up with unanimous groups, earliest first, never with failed ones
    assert uids(batch.kept) == {"short": [13], "unfiltered": [0, 2, 3, 13]}[policy]
    assert all(item.drop_reason is None for item in batch.kept)
    assert all(item.drop_reason for item in batch.dropped)
    assert len(batch.kept) + len(batch.dropped) == len(batch.generated) == 8


@pytest.mark.parametrize("policy", ["short", "unfiltered", "error"])
@pytest.mark.parametrize("dynamic", [True, False])
def test_nothing_to_train_on_is_an_error_whatever_the_policy(policy, dynamic):
    sampler = DynamicSampler(replace(DAPO, max_rounds=1, on_exhausted=policy, dynamic_sampling=dynamic), 2)
    sampler.start()
    sampler.add([group(0, 1, failed=1), group(1, 1, failed=1)])
    with pytest.raises(SamplingExhausted, match=r"kept 0 of 2 .*2 failed"):
        sampler.finish()


def test_without_dynamic_sampling_one_round_keeps_all_but_failed_groups():
    sampler = DynamicSampler(ALGORITHMS["grpo"].defaults, 5)
    sampler.start()
    assert sampler.next_round() == 5
    sampler.add([group(0, 0), group(1, SIZE), group(2, 2, failed=2), group(3, 2), group(4, 2, unknown=2)])
    assert sampler.full
    assert sampler.next_round() == 0
    batch = sampler.finish()
    assert uids(batch.kept) == [0, 1, 3, 4]
    assert [(item.prompt.uid, item.drop_reason) for item in batch.dropped] == [("2", "failed")]


@pytest.mark.parametrize(("kept_of_four", "rate"), [(1, 0.25), (2, 0.5), (3, 0.75)])
def test_rounds_follow_the_measured_keep_rate(kept_of_four, rate):
    sampler = DynamicSampler(DAPO, 60)
    stream = Stream([1] * kept_of_four + [0] * (4 - kept_of_four))
    for _ in range(8):
        _, asked = run_step(sampler, stream)
    assert sampler.keep_rate == pytest.approx(rate, abs=0.05)
    # the expected number kept, less one standard deviation, covers what is needed, and not by much more
    assert 60 <= asked[0] * rate <= 60 + 2 * (60 / rate * rate * (1 - rate)) ** 0.5 + 4
    assert len(asked) == 1


def test_first_round_goes_by_three_in_four():
    # the smallest n with 0.75 n - sqrt(0.1875 n) >= 32
    expected = next(n for n in range(1, 200) if 0.75 * n - (0.1875 * n) ** 0.5 >= 32)
    sampler = DynamicSampler(DAPO, 32)
    sampler.start()
    assert sampler.next_round() == expected == 47
    assert sampler.progress == "kept 0/32"


def test_hopeless_data_does_not_ask_for_ever_more():
    sampler = DynamicSampler(replace(DAPO, on_exhausted="short"), 8)
    sampler.start()
    stream, asked = Stream([0]), []
    while not sampler.full:
        asked.append(sampler.next_round())
        sampler.add(stream.draw(asked[-1]))
    assert len(asked) == DAPO.max_rounds
    assert max(asked) == MAX_ROUND * 8


def test_the_keep_rate_follows_a_policy_that_moves():
    sampler = DynamicSampler(DAPO, 60)
    for _ in range(10):
        run_step(sampler, Stream([1, 1, 1, 0]))
    for _ in range(4):
        run_step(sampler, Stream([1, 0, 0, 0]))
    # half of the evidence is forgotten at each step; all of it together would say more than 0.4
    assert sampler.keep_rate == pytest.approx(0.25, abs=0.05)
