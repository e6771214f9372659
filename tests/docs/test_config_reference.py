"""docs/config.md is what scripts/config_reference.py makes of the dataclasses, and its ranges are what is checked."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from docs_pages import ROOT, read

from da3po_cli.checks.rules import check
from da3po_cli.config.keys import key_types, sections
from da3po_cli.config.load import load_config
from da3po_cli.config.schema import Config

BASE = load_config(["demo"], ["parallel.pipeline=2", "parallel.data=1"], env={}).config


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("config_reference", ROOT / "scripts" / "config_reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = _script()
DOCS = {f"{name}.{field}": text for name, kind in sections().items() for field, text in SCRIPT.field_docs(kind).items()}
RANGES = {key: limits for key, text in DOCS.items() if (limits := SCRIPT.split_range(text)[1])}


def test_the_page_is_in_step() -> None:
    page = ROOT / "docs" / "config.md"
    assert read(page) == SCRIPT.render(), f"docs/config.md is out of step with the config: run {SCRIPT.COMMAND}"


def test_every_key_is_described() -> None:
    assert set(DOCS) == set(key_types())
    assert [key for key, text in DOCS.items() if not text] == [], "write a text under these fields"


def with_value(config: Config, key: str, value: Any) -> Config:
    section, _, name = key.partition(".")
    return replace(config, **{section: replace(getattr(config, section), **{name: value})})


def refused(key: str, value: Any) -> bool:
    """Whether the checks complain about this value of this key, whatever else they say."""
    return any(problem.where == key for problem in check(with_value(BASE, key, value)))


def bounds(limits: str, step: float) -> tuple[list[float], list[float]]:
    """(values inside the range, values outside of it), at its ends or one step from them."""
    if found := re.fullmatch(r"At least (-?[\d.]+)", limits):
        return [float(found[1])], [float(found[1]) - 1]
    if found := re.fullmatch(r"Above (-?[\d.]+)", limits):
        return [float(found[1]) + step], [float(found[1])]
    if found := re.fullmatch(r"(\d+) or (\d+)", limits):
        return [int(found[1]), int(found[2])], [-1, 2]
    if found := re.fullmatch(r"Only (\d+)", limits):
        return [int(found[1])], [int(found[1]) + 1]
    found = re.fullmatch(r"In ([(\[])(-?[\d.]+), (-?[\d.]+)([)\]])", limits)
    assert found, f"{limits!r} is no range that a test can read"
    low, high = float(found[2]), float(found[3])
    inside = [low + step, high - step] + ([low] if found[1] == "[" else []) + ([high] if found[4] == "]" else [])
    outside = [low - step, high + step] + ([low] if found[1] == "(" else []) + ([high] if found[4] == ")" else [])
    return inside, outside


@pytest.mark.parametrize("key", RANGES)
def test_stated_ranges_are_the_checked_ones(key: str) -> None:
    kind = key_types()[key][0][0]
    inside, outside = bounds(RANGES[key], 1 if kind is int else 1e-9)
    assert [value for value in outside if not refused(key, kind(value))] == []
    assert [value for value in inside if refused(key, kind(value))] == []


def test_checked_numbers_state_their_range() -> None:
    numbers = [key for key, (accepted, _) in key_types().items() if accepted[0] in (int, float)]
    silent = [key for key in numbers if key not in RANGES and any(refused(key, value) for value in (-1, 0))]
    assert silent == ["reward.correct"], "end the text under the field with its range, such as: At least 1."


@pytest.mark.parametrize(
    ("text", "meaning", "limits"),
    [
        ("Longest response. At least 1.", "Longest response.", "At least 1"),
        ("Share, null is off. In (0, 1].", "Share, null is off.", "In (0, 1]"),
        ("Nats. Above 0.5.", "Nats.", "Above 0.5"),
        ("Degrees: 1 (verl) or 0. 0 or 1.", "Degrees: 1 (verl) or 0.", "0 or 1"),
        ("At the cap: stop.", "At the cap: stop.", ""),
        ("In the same way.", "In the same way.", ""),
    ],
)
def test_ranges_are_told_from_sentences(text: str, meaning: str, limits: str) -> None:
    assert SCRIPT.split_range(text) == (meaning, limits)
