"""The shipped benchmarks, the user's own, and what is said about a wrong entry."""

from pathlib import Path

import pytest

from da3po_cli.errors import UsageError
from da3po_cli.evals.registry import choose, load_registry
from da3po_cli.rewards import make_reward

PAPER = {
    "aime24": ("AIME24", 30, 32),
    "aime25": ("AIME25", 30, 32),
    "aime26": ("AIME26", 30, 32),
    "amc": ("AMC", 83, 32),
    "minerva": ("Minerva", 272, 8),
    "olympiad": ("Olympiad", 675, 8),
    "math500": ("MATH", 500, 8),
}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_all_is_the_papers_seven_in_its_order():
    chosen = choose("all", load_registry())
    assert {bench.name: (bench.title, bench.problems, bench.k) for bench in chosen} == PAPER
    assert [bench.name for bench in chosen] == list(PAPER)
    assert {(bench.temperature, bench.top_p) for bench in chosen} == {(1.0, 0.7)}


@pytest.mark.parametrize("name", load_registry())
def test_every_grader_of_the_registry_can_be_made(name):
    bench = load_registry()[name]
    assert bench.reward is not None
    make_reward(bench.reward, bench.options)


def test_names_are_taken_once_and_data_files_may_stand_among_them():
    chosen = choose("aime25, math500,aime25,some/problems.jsonl", load_registry())
    assert [bench.name for bench in chosen] == ["aime25", "math500", "problems"]
    assert (chosen[2].path, chosen[2].reward, chosen[2].k) == ("some/problems.jsonl", None, None)


@pytest.mark.parametrize(
    "text", ["a/test.jsonl,b/test.jsonl", "a/test.jsonl,a/test.parquet", "math500,my/math500.jsonl"]
)
def test_two_benchmarks_of_one_name_are_refused(text):
    """The later one took the place of the first one without a word."""
    with pytest.raises(UsageError, match=r"two benchmarks are called '(test|math500)'"):
        choose(text, load_registry())
    assert len(choose("a/test.jsonl,a/test.jsonl", load_registry())) == 1


@pytest.mark.parametrize(
    ("name", "guess"), [("aime2024", "aime24"), ("olympiadbench", "olympiad"), ("Minerva", "minerva")]
)
def test_an_unknown_name_gets_a_guess(name, guess):
    with pytest.raises(UsageError, match="no benchmark called") as caught:
        choose(name, load_registry())
    assert f"did you mean {guess}?" in str(caught.value.hint)


def test_no_name():
    with pytest.raises(UsageError) as caught:
        choose(" , ", load_registry())
    assert "aime24" in str(caught.value.hint)


def test_a_file_adds_and_replaces(tmp_path):
    file = write(
        tmp_path / "mine.yaml",
        "defaults: {k: 4}\nbenchmarks:\n  mine: {path: mine.jsonl, reward: arith, metrics: maj}\n"
        "  aime24: {file: [other], k: 16, template: mine.jinja}\n",
    )
    found = load_registry([file])
    assert (found["mine"].path, found["mine"].k, found["mine"].title) == (str(tmp_path / "mine.jsonl"), 4, "mine")
    assert found["mine"].metrics == ("maj",)
    assert (found["aime24"].k, found["aime24"].hub, found["aime24"].template) == (
        16,
        None,
        str(tmp_path / "mine.jinja"),
    )
    assert found["aime25"].k == 32


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{path: a.jsonl, kk: 3}", "unknown key 'kk'"),
        ("{path: a.jsonl, k: 0}", "k=0 must be"),
        ("{path: a.jsonl, temperature: -1}", "temperature=-1"),
        ("{path: a.jsonl, top_p: 1.5}", "top_p=1.5"),
        ("{path: a.jsonl, metrics: [best]}", "best"),
        ("{path: a.jsonl, template: nice}", "template='nice'"),
        ("{path: a.jsonl, instruction: loud}", "instruction='loud'"),
        ("{k: 3}", "neither a path"),
    ],
)
def test_wrong_entries(tmp_path, entry, message):
    with pytest.raises(UsageError) as caught:
        load_registry([write(tmp_path / "mine.yaml", f"benchmarks:\n  mine: {entry}\n")])
    assert message in caught.value.message
    assert "mine.yaml, mine" in str(caught.value.where)


@pytest.mark.parametrize("text", ["", "benchmarks: {}", "a: [", "- 1"])
def test_files_without_benchmarks(tmp_path, text):
    with pytest.raises(UsageError):
        load_registry([write(tmp_path / "mine.yaml", text)])
