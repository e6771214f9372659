"""Where problems come from, and what is said when they do not."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from da3po_cli.errors import EnvironmentProblem, UsageError
from da3po_cli.evals.problems import find_file, load_problems
from da3po_cli.evals.registry import Benchmark, load_registry

SHARED = Path(__file__).parents[3] / "shared" / "bench"
TOY = Benchmark("toy", title="Toy", problems=2, hub="someone/toy", file=("toys",), k=4)
ROWS = [{"problem": "1+1?", "answer": "2"}, {"problem": "2+2?", "answer": "4"}]


def jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/bench")
@pytest.mark.parametrize("name", [name for name, bench in load_registry().items() if bench.path is None])
def test_the_public_files_have_the_counts_of_the_registry(name):
    bench = load_registry()[name]
    found = load_problems(bench, SHARED)
    assert len(found.problems) == found.total == bench.problems
    assert found.warnings == ()
    assert len({problem.id for problem in found.problems}) == bench.problems


def test_jsonl_and_parquet_are_the_same_problems(tmp_path):
    jsonl(tmp_path / "toys.jsonl", ROWS)
    one = load_problems(TOY, tmp_path)
    (tmp_path / "toys.jsonl").unlink()
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "toy.parquet")
    other = load_problems(TOY, tmp_path)
    assert one.problems[0].answer == "2"
    assert one.fingerprint == other.fingerprint
    assert [problem.id for problem in one.problems] == [problem.id for problem in other.problems]


def test_the_fingerprint_follows_the_answers(tmp_path):
    before = load_problems(TOY, jsonl(tmp_path / "toys.jsonl", ROWS).parent).fingerprint
    jsonl(tmp_path / "toys.jsonl", [ROWS[0], {"problem": "2+2?", "answer": "5"}])
    assert load_problems(TOY, tmp_path).fingerprint != before


def test_another_count_is_a_warning(tmp_path):
    jsonl(tmp_path / "toys.jsonl", [*ROWS, {"problem": "3+3?", "answer": "6"}, ROWS[0]])
    found = load_problems(TOY, tmp_path, limit=2)
    assert (len(found.problems), found.total) == (2, 3)
    assert "3 problems" in found.warnings[0] and "Toy has 2" in found.warnings[0]
    assert "1 duplicate" in found.warnings[1]


def test_a_missing_file_says_what_to_download_and_where_to_put_it(tmp_path):
    with pytest.raises(UsageError) as caught:
        load_problems(TOY, tmp_path)
    hint = str(caught.value.hint)
    assert all(part in hint for part in ("someone/toy", "2 rows", "problem and answer", str(tmp_path / "toys.jsonl")))


def test_the_environment_names_the_directory(tmp_path):
    jsonl(tmp_path / "toys.jsonl", ROWS)
    assert find_file(TOY, env={"DA3PO_BENCH_DIR": str(tmp_path)}) == str(tmp_path / "toys.jsonl")


def test_without_a_directory_the_hub_or_an_explanation(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)  # as where it is not installed
    with pytest.raises(EnvironmentProblem) as caught:
        find_file(TOY, env={"DA3PO_HOME": str(tmp_path)})
    hint = str(caught.value.hint)
    assert all(part in hint for part in ("pip install datasets", "someone/toy", "--bench-dir DIR", "DA3PO_BENCH_DIR"))
    with pytest.raises(UsageError, match="not on the hub"):
        find_file(replace(TOY, hub=None), env={"DA3PO_HOME": str(tmp_path)})


def test_what_the_hub_gave_is_kept(tmp_path):
    cached = tmp_path / "benchmarks" / "someone--toy-test-main.parquet"
    cached.parent.mkdir()
    parquet.write_table(pa.Table.from_pylist(ROWS), cached)
    assert find_file(TOY, env={"DA3PO_HOME": str(tmp_path)}) == str(cached)


def test_the_demos_problems():
    found = load_problems(load_registry()["arith"], limit=3)
    assert (len(found.problems), found.total, found.place) == (3, 256, "arith")


def test_a_benchmark_is_one_file(tmp_path):
    """Rows of two files would have the same numbers, and so the same seeds and places in the result."""
    one, other = jsonl(tmp_path / "a.jsonl", ROWS[:1]), jsonl(tmp_path / "b.jsonl", ROWS[1:])
    with pytest.raises(UsageError, match="toy is in 2 files"):
        load_problems(replace(TOY, path=f"{one}, {other}"))
