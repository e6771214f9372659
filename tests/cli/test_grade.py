"""`da3po grade`: files in, verdicts and counts out, errors that name the line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from da3po_cli.algos.records import group_to_dict
from da3po_cli.algos.types import Group, Prompt, Response

REPOSITORY = Path(__file__).parents[2]
LINES = [
    {"gold": "1/2", "response": r"so \boxed{0.5}", "id": 7},
    {"gold": "3", "pred": "Answer: 4"},
    {"gold": "x+1", "response": r"\boxed{\int_0^1 x^x dx}"},
    {"gold": "5", "response": "5"},
    {"gold": 12, "response": r"\boxed{12}", "finish_reason": "stop"},
]


def da3po(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "da3po_cli", "grade", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in LINES) + "\n\n")
    return path


def test_lines_go_to_a_file_and_counts_to_stdout(answers: Path) -> None:
    done = da3po("answers.jsonl", "--out", "graded.jsonl", cwd=answers.parent)
    assert done.returncode == 0, done.stderr
    graded = [json.loads(line) for line in (answers.parent / "graded.jsonl").read_text().splitlines()]
    assert [line["verdict"] for line in graded] == ["correct", "wrong", "unknown", "wrong", "correct"]
    assert [{key: line[key] for key in original} for line, original in zip(graded, LINES, strict=True)] == LINES
    assert graded[0]["extracted"] == "0.5"
    assert graded[3]["extracted"] is None
    assert graded[3]["rule"] == "no answer"
    assert all(line["seconds"] >= 0 and line["rule"] for line in graded)
    assert "2 correct, 2 wrong, 1 unknown" in done.stdout
    assert "cannot read the formula" in done.stdout


def test_without_a_file_the_lines_are_the_output(answers: Path) -> None:
    done = da3po("answers.jsonl", "--bare", cwd=answers.parent)
    verdicts = [json.loads(line)["verdict"] for line in done.stdout.splitlines()]
    assert verdicts == ["correct", "wrong", "unknown", "correct", "correct"]
    assert "3 correct, 1 wrong, 1 unknown" in done.stderr


def test_texts_hold_other_separators_than_line_breaks_and_golds_are_lists_of_one(tmp_path: Path) -> None:
    texts = [{"gold": "2", "response": "above\u2028below \\boxed{2}"}, {"gold": '["3"]', "response": "\x85\\boxed{3}"}]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(one, ensure_ascii=False) + "\r\n" for one in texts))
    done = da3po("answers.jsonl", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    verdicts = [json.loads(line).get("verdict") for line in done.stdout.splitlines()]
    assert verdicts.count("correct") == 2 and "wrong" not in verdicts


def test_json_events(answers: Path) -> None:
    done = da3po("answers.jsonl", "--json", cwd=answers.parent)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["grade"] * 5 + ["summary"]
    assert events[-1]["counts"] == {"verdict": {"correct": 2, "wrong": 2, "unknown": 1}}
    assert events[-1]["unknown"] == {"cannot read the formula": 1}


def test_the_rollouts_of_a_run(tmp_path: Path) -> None:
    prompt = Prompt("0-3", (1, 2), "1+1=?", "2", "sums", 3)
    responses = [Response([5], [-0.5], text, "stop") for text in (r"\boxed{2}", r"\boxed{3}")]
    (tmp_path / "step_1.jsonl").write_text(json.dumps(group_to_dict(Group(prompt, responses))) + "\n")
    done = da3po("step_1.jsonl", cwd=tmp_path)
    graded = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["uid"], line["verdict"]) for line in graded] == [("0-3", "correct"), ("0-3", "wrong")]


def test_compare_puts_other_graders_beside(tmp_path: Path) -> None:
    """Three rows of which the behaviour of the other graders is known: each of them is wrong about some."""
    rows = [
        {"gold": "42", "response": "Answer: 42. So \\boxed{42}", "expected": True},
        {"gold": r"\frac{1}{2}", "response": r"Answer: 0.5, \boxed{0.5}", "expected": True},
        {"gold": "2516_8", "response": r"\boxed{2516}", "expected": False},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = da3po("rows.jsonl", "--compare", "--json", cwd=tmp_path)
    *graded, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["verdict"] for line in graded] == ["correct", "correct", "wrong"]
    assert [line["math_verify"] for line in graded] == ["correct", "correct", "correct"]  # it drops the base
    assert [line["dapo"] for line in graded] == ["wrong", "wrong", "wrong"]
    assert summary["disagreements"] == [1, 2, 3]
    assert summary["as_expected"] == {"verdict": 3, "math_verify": 2, "dapo": 1}
    assert "3: da3po wrong, math_verify correct, dapo wrong; gold '2516_8'" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nothing to grade"),
        ('{"gold": "1"}', "no response; found gold"),
        ('{"answer": "1", "response": "2"}', "no gold; found answer, response"),
        ('{"gold": "1", "response": "2"}\n{oops', "a.jsonl:2"),
        ('{"responses": [1], "prompt": {"answer": "1", "uid": "a"}}', "not a saved group"),
        ("[1]", "no gold and no response; found list"),
    ],
)
def test_a_file_that_is_wrong_is_an_error_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    done = da3po("a.jsonl", cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_errors_of_the_arguments(answers: Path) -> None:
    for arguments, words in [
        (["nofile.jsonl"], "file not found"),
        (["answers.jsonl", "--reward", "nothing"], "no reward named 'nothing'"),
        (["answers.jsonl", "--deadline", "0"], "must be above 0"),
        (["answers.jsonl", "--out", "missing/graded.jsonl"], "cannot write"),
    ]:
        done = da3po(*arguments, cwd=answers.parent)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
