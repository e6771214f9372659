"""The rules of the `data` section, through the check that `da3po train` runs before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from da3po_cli.checks.rules import check, is_hub_data
from da3po_cli.config.load import load_config

ROWS = '{"problem": "1+1", "answer": "2"}\n'


def problems(*overrides: str) -> list[tuple[str | None, str, str]]:
    config = load_config(["demo"], ["reward.name=math", *overrides], env={}).config
    return [(found.where, found.message, found.hint or "") for found in check(config)]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl", "mine.jinja"):
        (tmp_path / name).write_text(ROWS)


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.train=a.jsonl"],
        ["data.train=a.jsonl*2, b.jsonl@[:1]*0.5", "data.validation=a.jsonl,b.jsonl"],
        ["data.train=a.jsonl, arith, org/name:main@[:100]"],
        ["data.train=a.jsonl", "data.template=mine.jinja", "data.thinking=true"],
        ["data.train=a.jsonl", "data.template=chat", "data.thinking=false", "data.stop_tokens=1,<eos>"],
    ],
)
def test_good_sections(overrides: list[str]) -> None:
    assert problems(*overrides) == []


@pytest.mark.parametrize(
    ("overrides", "key", "message", "hint"),
    [
        (["data.train=a.jsonl, c.jsonl"], "data.train", "data file not found: 'c.jsonl'", "--dataset"),
        (["data.train=a.jsonl*2, b.jsonl"], "data.train", "weights to 1 of 2", "b.jsonl*1"),
        (["data.train=a.jsonl@[1]"], "data.train", "cannot read the slice", "start:stop"),
        (["data.train=' , '"], "data.train", "is not set", "--dataset"),
        (["data.train=a.jsonl", "data.validation=a.jsonl*1"], "data.validation", "has weights", "leave them out"),
        (["data.train=a.jsonl", "data.template=bxoed"], "data.template", "no template called", "did you mean boxed?"),
        (["data.train=a.jsonl", "data.template=x.j2"], "data.template", "not found: 'x.j2'", "path"),
        (["data.train=a.jsonl", "data.thinking=true"], "data.thinking", "not of none", "data.template=chat"),
    ],
)
def test_wrong_sections(overrides: list[str], key: str, message: str, hint: str) -> None:
    ((where, found, fix),) = problems(*overrides)
    assert where == key and message in found and hint in fix


def test_a_spec_needs_the_hub_if_any_of_its_parts_does() -> None:
    assert is_hub_data("a.jsonl*1, org/name@[:5]*2")
    for spec in ("a.jsonl, arith", "a.jsonl@[1]", "", None):
        assert not is_hub_data(spec)
