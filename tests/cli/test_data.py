"""`da3po data check` as a user meets it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from da3po_cli import main
from da3po_cli.config.schema import DataConfig, RewardConfig
from da3po_cli.data.report import check_data, measure

ROWS: list[dict[str, Any]] = [
    {"problem": "1+1=?", "answer": "2", "data_source": "easy"},
    {"problem": "1+1=?", "answer": "2", "data_source": "easy"},  # duplicate
    {"problem": "2+2=?", "answer": "4", "data_source": "easy"},  # conflict
    {"problem": "2+2=?", "answer": "5", "data_source": "easy"},  # conflict
    {"problem": "What is 12 plus 30?", "answer": 42, "data_source": "words"},  # overlong
    {"problem": "3+3=?", "answer": None, "data_source": "easy"},  # empty
    {"problem": "4+4=?", "answer": "$$", "data_source": "easy"},  # unverifiable
    {"problem": "5+½=?", "answer": "5.5", "data_source": "easy"},  # unknown_token
    {"problem": "6+6=?", "answer": "12", "level": 3},
]
DROPPED = {"empty": 1, "duplicate": 1, "conflict": 2, "unverifiable": 1, "overlong": 1, "unknown_token": 1}


class Cli:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = main.execute(["data", "check", *arguments])
        captured = self.capsys.readouterr()
        return code, captured.out, captured.err


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in ("FORCE_COLOR", "DA3PO_DATA__TEMPLATE"):
        monkeypatch.delenv(name, raising=False)
    return Cli(capsys)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return str(path)


def test_everything_is_counted(cli: Cli, rows: str) -> None:
    code, stdout, _ = cli(rows, "--model=demo", "data.max_prompt_tokens=10", "--json")
    found = json.loads(stdout)
    assert code == 0
    assert (found["event"], found["rows"], found["usable"]) == ("data_check", 9, 2)
    assert found["dropped"] == DROPPED
    assert sum(DROPPED.values()) + found["usable"] == found["rows"]
    assert found["examples"]["conflict"] == ["rows row 2: golds 4 and 5"]
    assert found["examples"]["unverifiable"][0].startswith("rows row 6: gold '$$' is ")
    assert found["data_sources"] == {"easy": 1, "rows": 1}
    (file,) = found["files"]
    assert (file["prompt_from"], file["answer_from"]) == ({"problem": 9}, {"answer": 8})
    assert {column["name"]: column["missing"] for column in file["columns"]} == {
        "problem": 0,
        "answer": 1,
        "data_source": 1,
        "level": 8,
    }
    # the demo's tokens are characters: of the five rows with a good gold, one is longer than the others
    assert found["lengths"] == {
        "minimum": 5,
        "median": 5,
        "p95": 19,
        "p99": 19,
        "maximum": 19,
        "histogram": [[length, length, {5: 3, 19: 1}.get(length, 0)] for length in range(5, 20)],
    }


def test_text_is_plain_where_it_is_piped(cli: Cli, rows: str) -> None:
    code, stdout, stderr = cli(rows, "--model=demo", "data.max_prompt_tokens=10")
    assert code == 0
    assert stdout.isascii() or "½" in stdout
    lines = stdout.splitlines()
    assert lines[0].split() == ["rows", "9", "read,", "2", "usable"]
    assert any(line.endswith("over the limit") for line in lines)
    assert "\x1b" not in stdout and "█" not in stdout
    assert f"next: da3po train --dataset '{rows}'" in stderr
    assert "data.template=none" in stderr


def test_without_a_tokenizer_there_are_no_lengths(cli: Cli, rows: str) -> None:
    code, stdout, stderr = cli(rows)
    assert code == 0
    assert "prompt length" not in stdout and "no --model" in stderr


def test_data_sources_and_their_rewards(cli: Cli, rows: str) -> None:
    code, stdout, _ = cli(rows, "reward.by_source=easy=math,eazy=dapo", "--json")
    found = json.loads(stdout)
    assert code == 0
    assert found["rewards"] == {"easy": "math", "words": "math", "rows": "math"}
    assert sorted(found["unknown_sources"]) == ["rows", "words"]
    assert found["unused_sources"] == ["eazy"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.jsonl"], "no such data file: none.jsonl"),
        (["rows", "data.prompt_key=nothing"], "no prompt column (nothing); found: problem, answer, data_source, level"),
        (["rows", "--model=nowhere"], "model directory not found: 'nowhere'"),
        (["rows", "--model=demo", "data.template=chat"], "the tokenizer has no chat template"),
        (["rows", "--model=demo", "data.template=chart"], "no such template"),
    ],
)
def test_errors_name_what_is_wrong(cli: Cli, rows: str, arguments: list[str], message: str) -> None:
    code, stdout, stderr = cli(*[rows if argument == "rows" else argument for argument in arguments])
    assert (code, stdout) == (2, "")
    assert message in stderr


def test_data_of_which_nothing_can_be_used_are_shown_too(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "", "answer": "1"}\n')
    code, stdout, stderr = cli(str(path), "--model=demo")
    assert code == 0
    assert "1 empty" in stdout and "warning: no row can be used" in stderr


def test_quantiles_and_bins() -> None:
    lengths = measure(range(1, 101))
    assert (lengths.minimum, lengths.median, lengths.p95, lengths.p99, lengths.maximum) == (1, 50, 95, 99, 100)
    assert lengths.histogram[0] == (0, 9, 9) and lengths.histogram[-1] == (100, 109, 1)
    assert sum(count for _, _, count in lengths.histogram) == 100
    assert measure([7]).histogram == [(7, 7, 1)]
    for high in (3, 19, 20, 21, 199, 1540, 99_999):
        assert len(measure([1, high]).histogram) <= 20


def test_a_check_reads_what_training_reads(rows: str) -> None:
    """Slices and weights are no obstacle, and pools of graders are closed again."""
    report = check_data(DataConfig(train=f"{rows}@[:1]*2, {rows}@[4:5]*1"), RewardConfig(), None)
    assert (report.rows, report.usable) == (2, 2)
    assert [(file.rows, file.prompt_from) for file in report.files] == [(1, {"problem": 1}), (1, {"problem": 1})]


def test_help_needs_nothing_heavy(cli: Cli) -> None:
    before = set(sys.modules)
    code, stdout, _ = cli("--help")
    assert code == 0 and "--model" in stdout
    assert not {"torch", "transformers", "sympy"} & (set(sys.modules) - before)
