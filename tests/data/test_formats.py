"""Rows in verl's schema and in plain columns, and what is dropped."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from da3po_cli.data.formats import gold_text, load_rows, plain
from da3po_cli.data.spec import Split
from da3po_cli.data.wraps import DAPO_PREFIX, DAPO_SUFFIX
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
        ("7.0", "7.0"),
        ("1" + "0" * 5000, "1" + "0" * 5000),
        ('"The sum is \\\\boxed{3}, so \\\\boxed{\\\\frac{1}{2}}."', "\\frac{1}{2}"),
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
    assert loaded.read == 7
    assert loaded.dropped.counts == {"empty": 2, "duplicate": 1, "conflict": 2}
    assert loaded.dropped.examples == {
        "empty": ["rows row 5: no prompt", "rows row 6: no gold"],
        "duplicate": ["rows row 0: 2 times"],
        "conflict": ["rows row 3: golds 3 and 4"],
    }


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


def test_a_row_without_an_optional_column_is_no_error(tmp_path: Path) -> None:
    """Columns are looked up row by row: rows of several origins are often written into one file."""
    path = write(
        tmp_path / "rows.jsonl",
        {"question": "a", "solution": "so \\boxed{1}"},
        {"problem": "b", "answer": "2", "data_source": None},
        {"problem": "c", "answer": None, "solution": "it is \\boxed{3}", "data_source": "three"},
        {"prompt": None, "problem": "d", "answer": "4"},
        {"problem": "e"},
        {"answer": "6"},
    )
    loaded = load_rows(path, "train")
    assert [(row.messages[0]["content"], row.answer, row.source) for row in loaded.rows] == [
        ("a", "1", "rows"),
        ("b", "2", "rows"),
        ("c", "3", "three"),
        ("d", "4", "rows"),
    ]
    assert loaded.dropped.counts == {"empty": 2}
    assert loaded.columns[0].used == {"prompt": {"question": 1, "problem": 4}, "answer": {"solution": 2, "answer": 3}}


@pytest.mark.parametrize(
    ("solution", "gold"),
    [
        ("First 1, then \\boxed{2}.", "2"),
        ("$$\\boxed{\\frac{3}{4}}$$", "\\frac{3}{4}"),
        ("2 + 3 = <<2+3=5>>5\n#### 5", "5"),
        ("Either \\boxed{2} or \\boxed{3}.", "2, 3"),
        ("a proof, without an answer", None),
        ("cut off: \\boxed{2", None),
    ],
)
def test_the_answer_of_a_worked_solution_is_in_its_box(tmp_path: Path, solution: str, gold: str | None) -> None:
    path = write(tmp_path / "rows.jsonl", {"problem": "p", "solution": solution, "answer": ""})
    assert [row.answer for row in load_rows(path, "train").rows] == ([] if gold is None else [gold])


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_messages_and_ground_truth(tmp_path: Path, suffix: str) -> None:
    messages = [
        {"role": "system", "content": "Be brief.", "name": None},
        {"role": "user", "content": "1+1?", "name": None},
        {"role": "assistant", "content": "2", "name": None},
    ]
    (row,) = load_rows(write(tmp_path / f"rows{suffix}", {"messages": messages, "ground_truth": "2"}), "train").rows
    assert row.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"})
    assert row.answer == "2"


def test_text_parts_are_one_text(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]
    path = write(tmp_path / "rows.jsonl", {"prompt": [{"role": "user", "content": parts}], "answer": "2"})
    assert load_rows(path, "train").rows[0].messages[0]["content"] == "1+1?"
    image = [{"type": "image_url", "image_url": "x"}]
    path = write(tmp_path / "image.jsonl", {"prompt": [{"role": "user", "content": image}], "answer": "2"})
    with pytest.raises(UsageError, match="the content of a message must be text"):
        load_rows(path, "train")


def test_fields_of_structs_can_be_named(tmp_path: Path) -> None:
    record = {"file": "x", "row": {"task": [{"role": "user", "content": "1+1?"}], "info": {"gold": 2}}}
    for suffix in (".parquet", ".jsonl"):
        path = write(tmp_path / f"rows{suffix}", record)
        (row,) = load_rows(path, "train", prompt_key="row.task", answer_key="row.info.gold").rows
        assert (row.messages[0]["content"], row.answer) == ("1+1?", "2")
        with pytest.raises(UsageError, match=r"no prompt column .*found: file, row"):
            load_rows(path, "train")


def test_what_pandas_makes_of_missing_values(tmp_path: Path) -> None:
    """A column of whole numbers with a gap becomes float64 with NaN there."""
    table = {
        "problem": ["a", "b", None, "d", "e"],
        "answer": pa.array([1.0, float("nan"), 3.0, 0.5, 2.0**60], pa.float64()),
        "data_source": ["s", None, "s", None, "s"],
        "extra_info": pa.array([None] * 5, pa.null()),
    }
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    loaded = load_rows(str(tmp_path / "rows.parquet"), "train")
    assert [(row.messages[0]["content"], row.answer, row.source) for row in loaded.rows] == [
        ("a", "1", "s"),
        ("d", "0.5", "rows"),
        ("e", str(2.0**60), "s"),
    ]
    assert loaded.dropped.counts == {"empty": 2}


def test_arrays_and_scalars_of_numpy_are_plain_values() -> None:
    messages = np.array([{"role": "user", "content": "1+1?"}], dtype=object)
    assert plain(messages) == [{"role": "user", "content": "1+1?"}]
    assert (
        gold_text(np.array(["5"]), "here") == gold_text(np.int64(5), "here") == gold_text(np.float64(5), "here") == "5"
    )
    assert gold_text(np.array([]), "here") == gold_text(float("nan"), "here") == gold_text(None, "here") == ""
    assert gold_text(True, "here") == "True"


def test_the_same_problem_in_two_dresses_is_one(tmp_path: Path) -> None:
    bare = "How many  primes\nare below 10?"
    dressed = DAPO_PREFIX + "How many primes are below 10?" + DAPO_SUFFIX
    first = write(tmp_path / "first.jsonl", {"problem": bare, "answer": "4"})
    second = write(
        tmp_path / "second.jsonl",
        {"prompt": [{"role": "user", "content": dressed}], "answer": "4"},
        {"prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": dressed}], "answer": "4"},
    )
    loaded = load_rows(f"{first}, {second}", "train")
    assert [(row.file, row.index) for row in loaded.rows] == [(0, 0), (1, 1)]
    assert loaded.dropped.counts == {"duplicate": 1}


@pytest.mark.parametrize(
    "window", ["[:]", "[2:]", "[:3]", "[2:5]", "[-3:]", "[:-2]", "[-4:-1]", "[5:2]", "[3:100]", "[-100:2]", "[1:-1]"]
)
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".json"])
def test_slices_are_those_of_python_over_the_rows_of_the_file(tmp_path: Path, window: str, suffix: str) -> None:
    rows = [{"problem": f"p{n}", "answer": str(n)} for n in range(8)]
    path = tmp_path / f"rows{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        write(path, *rows)
    start, stop = (int(number) if number else None for number in window.strip("[]").split(":"))
    expected = list(range(8))[start:stop]
    loaded = load_rows(f"{path}@{window}", "train")
    assert [row.index for row in loaded.rows] == expected
    assert [row.answer for row in loaded.rows] == [str(n) for n in expected]


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
    table.with_suffix(".parquet").write_text("no Parquet")
    with pytest.raises(UsageError, match="not a readable Parquet file"):
        load_rows(str(table.with_suffix(".parquet")), "train")
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"problem": "\xe9", "answer": "1"}\n'.encode("latin-1"))
    with pytest.raises(UsageError, match="not UTF-8"):
        load_rows(str(latin), "train")
    latin.write_text("[1, 2]\n")
    with pytest.raises(UsageError, match="a row is list, not an object"):
        load_rows(str(latin), "train")
    latin.write_text('{"problem": "a",\n"answer": "1"}\n')
    with pytest.raises(UsageError, match="not a list of rows"):
        load_rows(str(latin.rename(tmp_path / "one.json")), "train")
    with pytest.raises(UsageError, match="a gold must be one answer"):
        load_rows(write(tmp_path / "two.jsonl", {"problem": "a", "answer": ["1", "2"]}), "train")


def test_a_hub_id_needs_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(EnvironmentProblem, match="needs the package `datasets`"):
        load_rows("someone/some-problems", "train")


class Hub:
    """Stands in for the package `datasets`, whose hub no test can reach: named splits with batches of rows."""

    def __init__(self, *splits: str) -> None:
        self.splits, self.asked = splits, list[tuple[str, str | None]]()

    def load_dataset(self, name: str, configuration: str | None) -> dict[str, Any]:
        self.asked.append((name, configuration))
        if not self.splits:
            raise ConnectionError("no route to the hub\nand more")
        return {split: Dataset(pa.table({"question": [split], "answer": ["1"], "noise": [0]})) for split in self.splits}


class Dataset:
    def __init__(self, table: pa.Table) -> None:
        self.table, self.features = table, type("Features", (), {"arrow_schema": table.schema})

    def with_format(self, form: str) -> Dataset:
        assert form == "arrow"
        return self

    def select_columns(self, names: list[str]) -> Dataset:
        return Dataset(self.table.select(names))

    def iter(self, batch_size: int) -> Any:
        return iter(self.table.to_batches(batch_size))


@pytest.mark.parametrize(
    ("splits", "split", "taken"),
    [
        (("train", "test"), "train", "train"),
        (("train", "test"), "validation", "test"),
        (("train", "validation"), "validation", "validation"),
        (("train",), "validation", "train"),
        (("aime24",), "train", "aime24"),
        (("easy", "hard"), "train", None),
        (("train", "hard"), "validation", None),
    ],
)
def test_the_split_of_a_hub_data_set(
    monkeypatch: pytest.MonkeyPatch, splits: tuple[str, ...], split: Split, taken: str | None
) -> None:
    hub = Hub(*splits)
    monkeypatch.setitem(sys.modules, "datasets", hub)  # pyright: ignore[reportArgumentType]
    if taken is None:
        with pytest.raises(UsageError, match=f"no split for {split}; it has {', '.join(splits)}"):
            load_rows("someone/problems:main", split)
        return
    (row,) = load_rows("someone/problems:main", split).rows
    assert (row.messages[0]["content"], row.answer, row.source) == (taken, "1", "someone/problems:main")
    assert hub.asked == [("someone/problems", "main")]


def test_a_hub_without_network_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", Hub())  # pyright: ignore[reportArgumentType]
    with pytest.raises(EnvironmentProblem, match=r"cannot load 'a/b' from the Hugging Face hub: no route to the hub$"):
        load_rows("a/b", "train")


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
    assert loaded.read == len(loaded.rows) + sum(loaded.dropped.counts.values()) == PUBLIC[name]
    assert all(row.answer and row.messages[0]["content"] for row in loaded.rows)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public training rows are not beside this checkout")
def test_known_duplicates_of_public_files() -> None:
    aime = load_rows(str(SHARED / "dapo_aime-2024_x32.parquet"), "train")
    assert len(aime.rows) == 30 and aime.dropped.counts == {"duplicate": 930}
    dapo = load_rows(str(SHARED / "dapo_math_17k_svs.parquet"), "train")
    table = pq.read_table(SHARED / "dapo_math_17k_svs.parquet")
    golds: dict[str, set[str]] = {}
    for messages, reward in zip(table["prompt"].to_pylist(), table["reward_model"].to_pylist(), strict=True):
        golds.setdefault(" ".join(messages[0]["content"].split()), set()).add(reward["ground_truth"])
    assert len(dapo.rows) == sum(len(answers) == 1 for answers in golds.values())
    # rebuilt from rows of the large file, with DAPO's instruction around them: together they hold nothing new
    both = load_rows(f"{SHARED / 'dapo_math_17k_svs.parquet'}, {SHARED / 'dapo_verl_400.jsonl'}", "train")
    assert {row.file for row in both.rows} == {0}
    assert len(both.rows) == len(dapo.rows)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public training rows are not beside this checkout")
def test_rows_inside_another_record_need_their_columns_named() -> None:
    path = str(SHARED / "raw_rows_as_stored.jsonl")
    with pytest.raises(UsageError, match="found: file, row") as caught:
        load_rows(path, "train")
    assert caught.value.hint == "set data.prompt_key=COLUMN"
    loaded = load_rows(path, "train", prompt_key="row.prompt", answer_key="row.reward_model.ground_truth")
    assert loaded.read == 29 and len(loaded.rows) > 20
