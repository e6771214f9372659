"""Results as JSON and as tables, and the comparison of two of them."""

import csv
import io
import json

import pytest
from eval_helpers import make_job, make_task, records, result_of

from da3po_cli.errors import UsageError
from da3po_cli.evals.compare import compare, difference_table
from da3po_cli.evals.result import make_result, read_results, scores_of, warnings_of, write_results
from da3po_cli.evals.tables import Table, csv_text, detail_table, markdown, score_tables, settings_lines, text

ONE = {"big": [2, 1, 0, 0], "small": [2, 2]}


def test_the_numbers_of_a_result():
    result = result_of(ONE)
    assert result["benches"]["big"]["scores"]["avg@2"]["mean"] == 3 / 8
    assert result["benches"]["big"]["scores"]["pass"]["2"]["mean"] == 1 / 2
    assert result["average"]["avg"]["mean"] == (3 / 8 + 1) / 2
    assert result["average"]["pass"]["mean"] == (1 / 2 + 1) / 2
    assert result["benches"]["big"]["scores"]["truncated"] == 1 / 2
    assert result["benches"]["big"]["scores"]["length"]["mean"] == 10.5


def test_a_result_survives_its_file(tmp_path):
    result = result_of({"one": [1]})  # a single problem has no standard error, for which JSON has no number
    write_results([result], tmp_path / "sub" / "a.json")
    text_ = (tmp_path / "sub" / "a.json").read_text()
    assert json.loads(text_, parse_constant=lambda name: pytest.fail(name))
    assert read_results(tmp_path / "sub" / "a.json") == [result]
    assert scores_of(result["benches"]["one"]).avg.mean == 0.5


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"format": "other"}'])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UsageError):
        read_results(tmp_path / "a.json")
    with pytest.raises(UsageError, match="no such file"):
        read_results(tmp_path / "b.json")


def test_a_result_says_what_could_not_be_judged():
    task = make_task()
    samples = records(task, [2, 2, 2, 2])
    samples[0] |= {"verdict": "unknown"}
    samples[1] |= {"verdict": "unknown", "finish_reason": "failed"}
    result = make_result(make_job(task), samples, {})
    assert result["benches"]["toy"]["scores"]["avg@2"]["mean"] == 6 / 8
    assert [line.split()[1] for line in warnings_of([result, result])] == ["12.50%", "12.50%"]


def test_the_table_has_models_as_rows_and_a_plain_mean():
    tables = score_tables([result_of(ONE), result_of({"big": [2, 2, 2, 2]}, name="other")])
    assert [table.title for table in tables] == ["avg@k, %", "pass@k, %"]
    assert tables[0].heading == ("model", "BIG", "SMALL", "AVG")
    assert tables[0].rows == (
        ("model", "37.50", "100.00", "68.75"),
        ("other", "100.00", "-", "-"),
        ("problems x samples", "4 x 2", "2 x 2", ""),
    )


def test_one_benchmark_has_no_average():
    assert score_tables([result_of({"big": [1, 1]})])[0].heading == ("model", "BIG")


def test_details_and_settings():
    result = result_of(ONE)
    assert len(detail_table([result]).rows) == 2
    (line,) = settings_lines([result])
    assert line.startswith(
        "BIG, SMALL: temperature 1, top-p 1, at most 20480 tokens, template dapo, reward math, seed 1"
    )
    result["ran"]["max_tokens"]["big"] = [2296, 3900]
    assert "at most 2296 to 3900 tokens" in settings_lines([result])[0]


def test_text_and_markdown():
    table = Table("T", ("model", "A|B"), (("a long name", "1.00"), ("b", "22.00")))
    assert text(table) == "T\nmodel          A|B\na long name   1.00\nb            22.00"
    assert markdown(table).splitlines()[2:] == [
        "| model | A\\|B |",
        "| --- | ---: |",
        "| a long name | 1.00 |",
        "| b | 22.00 |",
    ]


def test_csv_is_read_back():
    rows = list(csv.DictReader(io.StringIO(csv_text([result_of(ONE)]))))
    assert [row["benchmark"] for row in rows] == ["big", "small", "AVERAGE"]
    assert float(rows[0]["avg"]) == 3 / 8 and float(rows[2]["avg"]) == (3 / 8 + 1) / 2
    assert float(rows[0]["avg_low"]) < 3 / 8 < float(rows[0]["avg_high"])


def test_differences_are_paired_by_problem():
    a, b = result_of({"big": [0, 1, 2, 0]}), result_of({"big": [1, 2, 2, 0]}, name="b")
    (found,) = compare(a, b, "avg")
    assert (found.problems, found.a, found.b, found.difference.mean) == (4, 3 / 8, 5 / 8, 1 / 4)
    # the differences 1/2, 1/2, 0, 0: sd 0.2887 (ddof 1), t of 3 degrees 3.1824
    assert found.difference.high - 1 / 4 == pytest.approx(3.182446 * 0.2886751 / 2, rel=1e-5)
    assert found.p_value == 0.5  # two differences: the four patterns sum to 1, 0, 0, -1
    (solved,) = compare(a, b, "pass")
    assert (solved.a, solved.b, solved.difference.mean) == (2 / 4, 3 / 4, 1 / 4)


def test_the_average_of_differences_is_plain_too():
    a, b = result_of({"big": [0, 0, 0, 0], "one": [0, 0]}), result_of({"big": [0, 0, 0, 2], "one": [2, 2]})
    found = compare(a, b, "avg")
    assert [one.bench for one in found] == ["BIG", "ONE", "AVG"]
    assert found[2].difference.mean == (1 / 4 + 1) / 2
    # weights 1/4, 1/2, 1/2 of the three differences: all plus or all minus are the extremes, 2 of 8 patterns
    assert found[2].p_value == 2 / 8
    table = difference_table(a, b, found)
    assert table.rows[2] == ("AVG", "6", "0.00", "62.50", "+62.50", table.rows[2][5], "0.2500")


def test_only_shared_problems_are_compared():
    found = compare(result_of({"big": [2, 2, 2, 2]}), result_of({"big": [0, 0]}), "avg")
    assert found[0].problems == 2
    with pytest.raises(UsageError, match="no problem in common"):
        compare(result_of({"big": [1]}), result_of({"other": [1]}), "avg")
    with pytest.raises(UsageError, match="pass@2 and pass@4"):
        compare(result_of({"big": [1]}), result_of({"big": [1]}, k=4), "pass")


def with_ids(result, *ids):
    for one, name in zip(result["benches"]["big"]["per_problem"], ids, strict=True):
        one["id"] = name
    return result


def test_problems_with_the_same_text_are_paired_in_order():
    a = with_ids(result_of({"big": [0, 1, 2, 0]}), "same", "same", "x", "y")
    b = with_ids(result_of({"big": [1, 2, 2, 0]}, name="b"), "same", "same", "x", "y")
    (found,) = compare(a, b, "avg")
    assert (found.problems, found.a, found.b, found.difference.mean) == (4, 3 / 8, 5 / 8, 1 / 4)
    # both differences of the twins are 1/2: with one of them paired twice the interval would be another one
    assert found.difference.high - 1 / 4 == pytest.approx(3.182446 * 0.2886751 / 2, rel=1e-5)
    # the surplus one of three has no partner
    b = with_ids(result_of({"big": [1, 2, 1, 0]}, name="b"), "same", "same", "same", "y")
    (found,) = compare(a, b, "avg")
    assert (found.problems, found.a, found.b) == (3, (0 + 1 + 0) / 6, (1 + 2 + 0) / 6)
