"""Rows in verl's schema and in plain columns, and what is dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from da3po_cli.data.formats import load_rows
from da3po_cli.errors import EnvironmentProblem, UsageError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "train_data"
VERL = {
    "data_source": "math_dapo",
    "prompt": [{"role": "user", "content": "What is 1+1?"}],
    "ability": "math",
    "reward_model": {"ground_truth": "2", "style": "rule"},
    "extra_info": {"index": 7},
}


def write(path: Path, *rows: dict[str, Any]) -> str:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_verl_schema(tmp_path: Path, suffix: str) -> None:
    loaded = load_rows(write(tmp_path / f"rows{suffix}", VERL), "train")
    (row,) = loaded.rows
    assert row.messages == ({"role": "user", "content": "What is 1+1?"},)
    assert (row.answer, row.source, row.index) == ("2", "math_dapo", 0)


@pytest.mark.parametrize("prompt", ["prompt", "question", "problem"])
def test_plain_columns(tmp_path: Path, prompt: str) -> None:
    (row,) = load_rows(write(tmp_path / "plain.jsonl", {prompt: "1+1?", "answer": "2"}), "train").rows
    assert row.messages == ({"role": "user", "content": "1+1?"},)
    assert (row.answer, row.source) == ("2", "plain")


def test_named_columns_win(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"problem": "x", "answer": "1", "task": "1+1?", "gold": "2"})
    (row,) = load_rows(path, "train", prompt_key="task", answer_key="gold").rows
    assert (row.messages[0]["content"], row.answer) == ("1+1?", "2")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('"105263157894736842"', "105263157894736842"),
        ("105263157894736842", "105263157894736842"),
        ("0.10", "0.10"),
        ("-7", "-7"),
        ('"\\\\frac{1}{2}"', "\\frac{1}{2}"),
        ('["12"]', "12"),
        ('"She has 2 + 3 = 5.\\n#### 5"', "5"),
    ],
)
def test_golds_stay_text(tmp_path: Path, written: str, expected: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"problem": "p", "answer": {written}}}\n')
    assert [row.answer for row in load_rows(str(path), "train").rows] == [expected]


def test_drops_are_counted_by_reason(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rows.jsonl",
        {"problem": "a", "answer": "1"},
        {"problem": "b", "answer": "2"},
        {"problem": "a", "answer": "1"},  # duplicate
        {"problem": "c", "answer": "3"},  # conflict
        {"problem": "c", "answer": "4"},  # conflict
        {"problem": "", "answer": "5"},  # empty
        {"problem": "d", "answer": None},  # empty
    )
    loaded = load_rows(path, "train")
    assert [(row.messages[0]["content"], row.index) for row in loaded.rows] == [("a", 0), ("b", 1)]
    assert loaded.dropped == {"empty": 2, "duplicate": 1, "conflict": 2}


@pytest.mark.parametrize(
    ("row", "message", "hint"),
    [
        ({"text": "x", "answer": "1"}, r"no prompt column .*found: text, answer", "data.prompt_key=COLUMN"),
        ({"problem": "x", "result": "1"}, r"no answer column .*found: problem, result", "data.answer_key=COLUMN"),
    ],
)
def test_missing_columns_name_what_is_there(tmp_path: Path, row: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_rows(write(tmp_path / "rows.jsonl", row), "train")
    assert hint in (caught.value.hint or "")


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such data file"):
        load_rows(str(tmp_path / "none.parquet"), "train")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"problem": "a", "answer": "1"}\n{"problem":\n')
    with pytest.raises(UsageError, match="not valid JSON") as caught:
        load_rows(str(broken), "train")
    assert caught.value.where == f"{broken}:2"
    table = tmp_path / "rows.csv"
    table.write_text("a,b\n")
    with pytest.raises(UsageError, match=r"unknown data format \.csv"):
        load_rows(str(table), "train")
    with pytest.raises(UsageError, match="a gold must be one answer"):
        load_rows(write(tmp_path / "two.jsonl", {"problem": "a", "answer": ["1", "2"]}), "train")


def test_a_hub_id_needs_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(EnvironmentProblem, match="needs the package `datasets`"):
        load_rows("someone/some-problems", "train")


# Rows in the file, from its table of sources; how many differ was counted on the raw text.
PUBLIC = {
    "asdiv_400.jsonl": 400,
    "dapo_aime-2024_x32.parquet": 960,
    "dapo_math_17k_svs.parquet": 17917,
    "dapo_verl_400.jsonl": 400,
    "dapo_verl_400.parquet": 400,
    "deepscaler_aime_upto2023_300.jsonl": 300,
    "gsm8k_verl_500.parquet": 500,
    "math_verl_500.jsonl": 100,
    "math_verl_500.parquet": 500,
    "omni_rule_200.jsonl": 200,
}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public training rows are not beside this checkout")
@pytest.mark.parametrize("name", PUBLIC)
def test_public_files_load(name: str) -> None:
    loaded = load_rows(str(SHARED / name), "train")
    assert len(loaded.rows) + sum(loaded.dropped.values()) == PUBLIC[name]
    assert all(row.answer and row.messages[0]["content"] for row in loaded.rows)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public training rows are not beside this checkout")
def test_known_duplicates_of_public_files() -> None:
    aime = load_rows(str(SHARED / "dapo_aime-2024_x32.parquet"), "train")
    assert len(aime.rows) == 30 and aime.dropped["duplicate"] == 930
    dapo = load_rows(str(SHARED / "dapo_math_17k_svs.parquet"), "train")
    prompts = pq.read_table(SHARED / "dapo_math_17k_svs.parquet").column("prompt").to_pylist()
    golds: dict[str, set[str]] = {}
    for messages, reward in zip(
        prompts, pq.read_table(SHARED / "dapo_math_17k_svs.parquet").column("reward_model").to_pylist(), strict=True
    ):
        golds.setdefault(messages[0]["content"], set()).add(reward["ground_truth"])
    assert len(dapo.rows) == sum(len(answers) == 1 for answers in golds.values())
