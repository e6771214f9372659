"""Groups survive JSON exactly, and foreign records are refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from da3po_cli.algos.records import group_from_dict, group_to_dict
from da3po_cli.algos.types import Group, Prompt, Response
from da3po_cli.errors import UsageError

NUMBERS = st.floats(allow_nan=False, width=64)
RESPONSES = st.builds(
    Response,
    token_ids=st.lists(st.integers(0, 10**6)),
    logprobs=st.lists(NUMBERS),
    text=st.text(),
    finish_reason=st.sampled_from(["stop", "length", "failed"]),
    verdict=st.sampled_from(["correct", "wrong", "unknown"]),
    acc=st.integers(0, 1),
    reward=NUMBERS,
    advantage=NUMBERS,
    daa_weight=NUMBERS,
)
PROMPTS = st.builds(
    Prompt,
    uid=st.text(),
    token_ids=st.lists(st.integers(0, 10**6)).map(tuple),
    text=st.text(),
    answer=st.text(),
    source=st.text(),
    index=st.integers(),
)
GROUPS = st.builds(
    Group,
    PROMPTS,
    st.lists(RESPONSES),
    st.sampled_from([None, "too_easy", "too_hard", "failed", "surplus"]),
    st.booleans(),
    st.integers(0, 10**6),
)


@given(GROUPS)
def test_round_trip(group):
    assert group_from_dict(json.loads(json.dumps(group_to_dict(group)))) == group


def record():
    return group_to_dict(Group(Prompt("u", (1,), "t", "a", "s", 0), [Response([1], [0.0], "x", "stop")]))


@pytest.mark.parametrize("missing", ["prompt", "responses", "drop_reason", "first_solve", "step"])
def test_missing_part(missing):
    broken = {key: value for key, value in record().items() if key != missing}
    with pytest.raises(UsageError, match=missing):
        group_from_dict(broken)


def test_missing_and_unknown_response_fields():
    broken = record()
    del broken["responses"][0]["text"]
    with pytest.raises(UsageError, match="text"):
        group_from_dict(broken)
    broken = record()
    broken["responses"][0]["score"] = 1
    with pytest.raises(UsageError, match="score"):
        group_from_dict(broken)
