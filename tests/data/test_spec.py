"""The one line that names training data."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from da3po_cli.data.spec import Source, parse_spec, spec_label
from da3po_cli.errors import UsageError


@pytest.mark.parametrize(
    ("spec", "sources"),
    [
        ("a.parquet", [Source("a.parquet")]),
        ("a.jsonl@[2:]", [Source("a.jsonl", 2, None)]),
        ("a.jsonl@[:-5]", [Source("a.jsonl", None, -5)]),
        ("dir/a b.jsonl@[:]", [Source("dir/a b.jsonl")]),
        ("a.parquet*2, b.parquet@[0:10]*0.5", [
            Source("a.parquet", weight=Fraction(2)),
            Source("b.parquet", 0, 10, Fraction(1, 2)),
        ]),
        ("org/name:main@[:9]", [Source("org/name:main", None, 9)]),
        (" arith ,\n b.json ,", [Source("arith"), Source("b.json")]),
        ("user@host.jsonl", [Source("user@host.jsonl")]),
        ("", []),
    ],
)  # fmt: skip
def test_forms(spec: str, sources: list[Source]) -> None:
    assert list(parse_spec(spec)) == sources


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("a.jsonl@[5]", "slice of 'a.jsonl@\\[5\\]'", "start:stop"),
        ("a.jsonl@[a:b]", "slice", "start:stop"),
        ("a.jsonl@[0:9:2]", "slice", "start:stop"),
        ("a.jsonl*0", "weight", "above 0"),
        ("a.jsonl*0.0", "weight", "above 0"),
        ("a.jsonl*two", "weight", "above 0"),
        ("a.jsonl*-1", "weight", "above 0"),
        ("a.jsonl*2@[:5]", "weight", "above 0"),
        ("a.jsonl*2, b.jsonl", "weights to 1 of 2", "b.jsonl*1"),
    ],
)
def test_malformed_parts_are_named(spec: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_spec(spec)
    assert hint in (caught.value.hint or "")


def test_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here/too").mkdir(parents=True)
    kinds = {name: (parse_spec(name)[0].is_file, parse_spec(name)[0].is_hub) for name in (
        "a.jsonl", "org/a.jsonl", "org/name", "org/name:main", "arith", "name", "here/too", "/x/y/z"
    )}  # fmt: skip
    assert kinds == {
        "a.jsonl": (True, False),
        "org/a.jsonl": (True, False),
        "org/name": (False, True),
        "org/name:main": (False, True),
        "arith": (False, False),
        "name": (False, False),
        "here/too": (False, False),
        "/x/y/z": (False, False),
    }


def test_labels() -> None:
    assert spec_label("data/aime24.parquet") == "aime24"
    assert spec_label("x/aime24.parquet@[:3], x/math.jsonl, x/aime24.parquet@[5:]") == "aime24+math"
    assert spec_label("arith") == "arith"
    assert spec_label("org/name") == "org/name"
