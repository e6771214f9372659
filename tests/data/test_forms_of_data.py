"""Forms in which people have their data: folders, patterns, saved data sets, lines under a .json name, odd rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from da3po_cli.data.formats import gold_text, load_rows
from da3po_cli.data.spec import parse_spec, spec_label
from da3po_cli.data.templates import make_renderer
from da3po_cli.errors import UsageError

PEARS = [{"problem": f"{number} pears and one more?", "answer": str(number + 1)} for number in range(6)]


def asked(spec: str | Path, split: Any = "train") -> list[str]:
    return [row.messages[-1]["content"] for row in load_rows(str(spec), split).rows]


def lines(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def shards(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for number, name in ((0, "train-00000-of-00002"), (1, "train-00001-of-00002"), (2, "test-00000-of-00001")):
        parquet.write_table(pa.Table.from_pylist(PEARS[2 * number : 2 * number + 2]), folder / f"{name}.parquet")
    return folder


def problems(rows: list[dict[str, str]]) -> list[str]:
    return [row["problem"] for row in rows]


def test_a_folder_of_shards_is_one_data_set_by_split(tmp_path: Path) -> None:
    folder = shards(tmp_path / "pears/data").parent
    assert asked(folder) == problems(PEARS[:4])
    assert asked(folder, "validation") == problems(PEARS[4:])
    assert asked(f"{folder}@[1:3]") == problems(PEARS[1:3])
    assert spec_label(str(folder)) == "pears"


def test_a_pattern_is_the_files_that_it_finds(tmp_path: Path) -> None:
    folder = shards(tmp_path / "pears")
    assert asked(folder / "train-*.parquet") == problems(PEARS[:4])
    assert asked(folder / "*") == problems(PEARS[4:] + PEARS[:4])
    assert asked(f"{folder}/*.parquet@[:2]*3") == problems(PEARS[4:])
    (source,) = parse_spec(f"{folder}/*.parquet*3")
    assert (source.name, source.weight) == (f"{folder}/*.parquet", 3)
    assert spec_label(f"{folder}/*.parquet") == "pears"
    with pytest.raises(UsageError, match=r"no data file is named like .*valid-\*"):
        asked(folder / "valid-*.parquet")


@pytest.mark.parametrize("text", ["rows.parquet*", "rows.parquet*x", "rows*many"])
def test_a_weight_that_is_none_is_no_pattern(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read the weight"):
        parse_spec(text)


def test_what_datasets_saved_is_read(tmp_path: Path) -> None:
    """`save_to_disk` writes Arrow streams beside state.json; a dataset_dict.json where there are several splits."""
    for split, rows in (("train", PEARS[:4]), ("test", PEARS[4:])):
        folder = tmp_path / "saved" / split
        folder.mkdir(parents=True)
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as stream:
            stream.write_table(table)
        (folder / "state.json").write_text("{}")
        (folder / "dataset_info.json").write_text("{}")
    (tmp_path / "saved/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert asked(tmp_path / "saved/train") == problems(PEARS[:4])
    assert asked(tmp_path / "saved/test") == problems(PEARS[4:])
    assert asked(tmp_path / "saved") == problems(PEARS[:4])
    assert asked(tmp_path / "saved", "validation") == problems(PEARS[4:])


def test_a_folder_without_data_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no data file in the folder .*empty"):
        asked(tmp_path / "empty")
    lines(tmp_path / "mixed/a.jsonl", PEARS)
    parquet.write_table(pa.Table.from_pylist(PEARS), tmp_path / "mixed/b.parquet")
    with pytest.raises(UsageError, match="different columns"):
        asked(tmp_path / "mixed")


@pytest.mark.parametrize("start", ["", "\ufeff", "\n"])
def test_json_lines_under_a_json_name(tmp_path: Path, start: str) -> None:
    (tmp_path / "rows.json").write_text(start + "".join(json.dumps(row) + "\n" for row in PEARS), encoding="utf-8")
    assert asked(tmp_path / "rows.json") == problems(PEARS)


def test_a_json_file_that_is_neither_list_nor_lines(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps({"rows": PEARS}, indent=1))
    with pytest.raises(UsageError, match="holds dict, not a list of rows"):
        asked(tmp_path / "rows.json")
    (tmp_path / "rows.json").write_text("[1, 2")
    with pytest.raises(UsageError, match="not valid JSON") as caught:
        asked(tmp_path / "rows.json")
    assert caught.value.hint == "a list of rows"


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"problem": "?", "answer": ["5", "five"]}, "a gold must be one answer"),
        ({"problem": {"a": 1}, "answer": "5"}, "a prompt must be text or a list"),
        ({"problem": [{"role": "user", "content": {"a": 1}}], "answer": "5"}, "the content of a message must be text"),
        ({"problem": "half \ud83d", "answer": "5"}, r"character 5 is \\ud83d, half of a pair"),
        ({"problem": "half", "answer": "\udc00"}, r"character 0 is \\udc00, half of a pair"),
        ({"problem": "two", "answer": '["10", "12"]'}, "a gold must be one answer"),
    ],
)
def test_an_odd_row_is_counted_and_the_others_kept(tmp_path: Path, odd: dict[str, Any], why: str) -> None:
    file = lines(tmp_path / "rows.jsonl", [PEARS[0], odd, PEARS[1]])
    found = load_rows(str(file), "train")
    assert [row.answer for row in found.rows] == ["1", "2"]
    assert found.dropped.counts == {"malformed": 1} and found.read == 3
    (example,) = found.dropped.examples["malformed"]
    assert example.startswith("rows row 1: ") and why.replace("\\\\", "\\") in example
    example.encode()


def test_only_odd_rows_are_an_error(tmp_path: Path) -> None:
    file = lines(tmp_path / "rows.jsonl", [{"problem": {"a": 1}, "answer": "5"}] * 3)
    with pytest.raises(UsageError, match="a prompt must be text") as caught:
        load_rows(str(file), "train")
    assert caught.value.where == "rows row 0"


@pytest.mark.parametrize(
    ("written", "gold"),
    [
        ('["42"]', "42"),
        (" ['4.5'] ", "4.5"),
        ('["\\\\frac{3}{4}"]', r"\frac{3}{4}"),
        ("[1, 2]", "[1, 2]"),  # an interval, or a list that is the answer
        ("[42]", "[42]"),
        ('["42"', '["42"'),
    ],
)
def test_a_gold_that_is_the_text_of_a_list(written: str, gold: str) -> None:
    assert gold_text(written, "here") == gold


class Jinja:
    """What a tokenizer does with a template."""

    def apply_chat_template(self, messages: Any, *, chat_template: str, **given: Any) -> str:
        from jinja2 import Environment

        names = {key: value for key, value in given.items() if key != "tokenize"}
        return Environment().from_string(chat_template).render(messages=messages, bos_token="<s>", **names)


def test_a_template_that_leaves_the_problem_out_is_an_error(tmp_path: Path) -> None:
    conversation = [{"role": "user", "content": "One pear and one more?"}]
    file = tmp_path / "mine.jinja"
    file.write_text("{{ bos_token }}Solve: {{ question }}\nAnswer:")
    with pytest.raises(UsageError, match="a prompt without its problem: '<s>Solve: ") as caught:
        make_renderer(str(file), Jinja())(conversation)
    assert caught.value.hint == "the template gets messages and problem; question is unknown"
    for sound in ("Q: {{ problem }}", "{% for m in messages %}{{ m.content | trim }}{% endfor %}", "{{ problem }}\n"):
        file.write_text(sound)
        assert "One pear and one more?" in make_renderer(str(file), Jinja())(conversation)
