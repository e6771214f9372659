"""Cases and data beside the project (absent elsewhere): other people's tests, evaluation sets and training files."""

import json
from pathlib import Path

import pytest

from da3po_cli.rewards import GradingPool, MathOptions

SHARED = Path(__file__).parents[3] / "shared"
CASES = SHARED / "grading" / "cases_dev.jsonl"
EMPTY = {"math_verl_500.parquet": 1}  # golds that can't verify themselves: one row has an empty answer


@pytest.mark.skipif(not CASES.is_file(), reason="no ../shared/grading")
def test_public_cases():
    """At least 99 % right, and no wrong answer called right; docs/grading.md lists the others."""
    rows = [json.loads(line) for line in CASES.read_text().splitlines()]
    clean = [row for row in rows if not row.get("contested") and not row.get("dup_of") and row.get("kind") != "mcq"]
    with GradingPool(options=MathOptions(fallback="bare")) as pool:
        grades = pool.grade([(row["pred"], "stop", row["gold"]) for row in clean])
    right = [(grade.verdict == "correct") == row["expected"] for grade, row in zip(grades, clean, strict=True)]
    assert sum(right) >= 0.99 * len(clean)
    assert [
        row for row, grade in zip(clean, grades, strict=True) if grade.verdict == "correct" and not row["expected"]
    ] == []


def golds(file: Path) -> list[str]:
    if file.suffix == ".parquet":
        import pyarrow.parquet

        rows = pyarrow.parquet.read_table(file).to_pylist()
    else:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    found = [row["reward_model"]["ground_truth"] if "reward_model" in row else row.get("answer") for row in rows]
    return sorted({str(gold) for gold in found if gold is not None})


FILES = sorted(
    [*SHARED.glob("bench/*.jsonl"), *SHARED.glob("train_data/*.parquet"), *SHARED.glob("train_data/*.jsonl")]
)


@pytest.mark.skipif(not FILES, reason="no ../shared/bench")
def test_every_gold_answer_verifies_itself():
    with GradingPool() as pool:
        failed = {file.name: sum(g.verdict != "correct" for g in pool.verify_golds(golds(file))) for file in FILES}
    assert {name: count for name, count in failed.items() if count} == EMPTY
