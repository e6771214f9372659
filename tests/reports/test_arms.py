"""What an ablation says, from numbers that were chosen: means, intervals, pairs, cost."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from report_runs import make_ablation, make_run

from da3po_cli.ablations.directory import RunState
from da3po_cli.reports import arms as stats
from da3po_cli.reports.ablation_report import ablation_document
from da3po_cli.reports.ablation_tables import cost_table, diff_table, result_tables
from da3po_cli.reports.data import RunData

FINALS = {"1.0": (0.70, 0.72, 0.74), "2.0": (0.74, 0.75, 0.79)}


def test_means_and_differences_by_seed(tmp_path: Path) -> None:
    """Differences 0.04, 0.03, 0.05: mean 0.04, sd 0.01, t = 0.04 / (0.01 / sqrt 3) = 6.928 with 2 degrees.

    For 2 degrees P(|T| > t) = 1 - t / sqrt(t^2 + 2) and t(0.975) = 4.302653 (tables).
    """
    data = stats.read_ablation(make_ablation(tmp_path / "a", FINALS))
    assert stats.mean_scores(data) == pytest.approx({"lambda=1.0": 0.72, "lambda=2.0": 0.76})
    paired = stats.by_seed(data.arm("lambda=2.0"), data.arm("lambda=1.0"), lambda run: run.final())
    assert paired is not None and paired.count == 3
    t = 0.04 / (0.01 / math.sqrt(3))
    assert paired.difference.mean == pytest.approx(0.04)
    assert paired.difference.high == pytest.approx(0.04 + 4.302653 * 0.01 / math.sqrt(3), rel=1e-6)
    assert paired.p_value == pytest.approx(1 - t / math.sqrt(t * t + 2), rel=1e-9)


def test_p_and_interval_agree_and_edges() -> None:
    assert stats.paired_p_value([0.1, 0.1]) == 0.0
    assert stats.paired_p_value([0.0, 0.0]) == 1.0
    assert math.isnan(stats.paired_p_value([0.3]))
    # t(0.975, 1) = 12.7062: mean 1, stderr 1/12.7062 puts p at 0.05
    half = 1 / 12.706204736
    assert stats.paired_p_value([1 - half, 1 + half]) == pytest.approx(0.05, rel=1e-6)


def test_only_seeds_of_both_arms_are_paired(tmp_path: Path) -> None:
    data = stats.read_ablation(make_ablation(tmp_path / "a", {"1.0": (0.5, 0.6), "2.0": (0.7,)}))
    paired = stats.by_seed(data.arm("lambda=2.0"), data.arm("lambda=1.0"), lambda run: run.final())
    assert paired is not None and paired.count == 1 and paired.difference.mean == pytest.approx(0.2)


def test_the_tables(tmp_path: Path) -> None:
    data = stats.read_ablation(make_ablation(tmp_path / "a", FINALS))
    means, passes, differences = result_tables(data)
    assert means.rows[1][:3] == ("lambda=2.0", "3/3", "76.00") and means.best == {(1, 2)}
    assert passes.best == {(0, 2), (1, 2)}, "a tie has two best"
    assert differences.rows[0][:4] == ("lambda=2.0", "arith avg@8", "3", "+4.00")
    assert "| lambda=2.0 | 3/3 | **76.00** |" in means.markdown()
    assert "*76.00" in means.text()
    assert diff_table(data).rows == [("algo.daa_lambda", "1", "2")]


def test_failed_runs_are_counted_and_left_out(tmp_path: Path) -> None:
    where = make_ablation(tmp_path / "a", FINALS)
    ablation = where.read()
    ablation.runs[5] = RunState("lambda-2.0-seed2", "lambda=2.0", 2, "hash", "diverged", 5, "gradients", 9.0)
    where.write(ablation)
    data = stats.read_ablation(where)
    assert stats.mean_scores(data)["lambda=2.0"] == pytest.approx(0.745)
    assert result_tables(data)[0].rows[1][1] == "2/3"
    document = ablation_document(data)
    assert "5 of 6 runs finished" in document.lead


def test_cost(tmp_path: Path) -> None:
    """Scores 0.4, (0.4+f)/2, f at steps 0, 2, 4 are a line; the reference ends at 0.72 in the mean.

    lambda=2.0 reaches 0.72 at 4 * 0.32 / (f - 0.4) steps, and lambda=1.0 with its seeds 1 and 2 only.
    """
    data = stats.read_ablation(make_ablation(tmp_path / "a", FINALS))
    target = stats.default_target(data)
    assert target == pytest.approx(0.72)
    table = cost_table(data, 0.72 - 1e-9)
    expected = [4 * 0.32 / (final - 0.4) for final in FINALS["2.0"]]
    assert table.rows[1][1] == "3/3" and float(table.rows[1][2]) == pytest.approx(sum(expected) / 3, abs=0.05)
    assert float(table.rows[1][3].replace(",", "")) == pytest.approx(1000 * sum(expected) / 3, abs=1)
    assert table.rows[0][1] == "2/3"
    assert table.rows[0][4:] == ("4,000", "0.800", "10")  # 5 records of 2 s, 4 steps of 1000 tokens, 32 of 40


def test_pairs_by_problem(tmp_path: Path) -> None:
    """Two problems of 8 samples, two seeds: differences of the seeds' means are +0.25 and 0."""
    where = make_ablation(tmp_path / "a", {"1.0": (0.5, 0.5), "2.0": (0.6, 0.6)})
    counts = {
        "lambda-1.0-seed0": (2, 8),
        "lambda-1.0-seed1": (4, 8),
        "lambda-2.0-seed0": (5, 8),
        "lambda-2.0-seed1": (5, 8),
    }
    for name, (first, second) in counts.items():
        folder = where.run(name).path / "validation"
        folder.mkdir()
        (folder / "step_4.json").write_text(json.dumps({"arith": {"a": first, "b": second}}))
    data = stats.read_ablation(where)
    paired = stats.by_problem(data.arm("lambda=2.0"), data.arm("lambda=1.0"))
    assert paired is not None and paired.count == 2
    assert paired.difference.mean == pytest.approx((0.25 + 0.0) / 2)
    assert paired.p_value == 1.0  # one difference that is not 0: its two signs are alike
    assert len(result_tables(data)) == 4
    # one run's counts are those of an earlier validation: nothing can be paired
    folder = where.run("lambda-2.0-seed0").path / "validation"
    (folder / "step_4.json").rename(folder / "step_2.json")
    data = stats.read_ablation(where)
    assert stats.by_problem(data.arm("lambda=2.0"), data.arm("lambda=1.0")) is None
    assert data.arm("lambda=2.0").runs[0].problem_scores() == {}


def test_a_run_that_was_deleted_is_left_out(tmp_path: Path) -> None:
    where = make_ablation(tmp_path / "a", FINALS)
    shutil.rmtree(where.run("lambda-2.0-seed2").path)
    data = stats.read_ablation(where)
    assert result_tables(data)[0].rows[1][1] == "2/3"
    assert cost_table(data, 0.72).rows[1][4] == "4,000"


def test_bands() -> None:
    xs, mean, low, high = stats.band([[(0, 1.0), (10, 2.0), (20, 5.0)], [(0, 3.0), (10, 2.0)]])
    assert (xs, mean, low, high) == ([0, 10], [2.0, 2.0], [1.0, 2.0], [3.0, 2.0])
    xs, mean, _, _ = stats.mean_at([[(0, 0.0), (10, 1.0)], [(0, 0.0), (20, 2.0)]], points=3)
    assert xs == [0, 5, 10] and mean == pytest.approx([0, 0.5, 1.0])


def test_first_reach() -> None:
    curve = [(0.0, 0.2), (10.0, 0.4), (20.0, 0.8)]
    assert stats.first_reach(curve, 0.1) == 0.0
    assert stats.first_reach(curve, 0.6) == pytest.approx(15.0)
    assert stats.first_reach(curve, 0.9) is None


def test_a_start_from_other_weights_is_seen(tmp_path: Path) -> None:
    where = make_ablation(tmp_path / "a", FINALS)
    assert stats.same_start(stats.read_ablation(where)) is True
    metrics = where.run("lambda-1.0-seed0").metrics_file
    metrics.write_text(metrics.read_text().replace('"val/arith/avg@8": 0.4,', '"val/arith/avg@8": 0.39,', 1))
    assert stats.same_start(stats.read_ablation(where)) is False
    document = ablation_document(stats.read_ablation(where))
    assert "did NOT score the same" in document.sections[0].text[0]


def test_several_benchmarks_are_averaged_and_only_where_all_are(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", {0: (0.4, 0.8), 4: (0.6, 0.9)})
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    lines[4] |= {"val/other/avg@2": 0.2, "val/other/pass@2": 0.3}
    run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = RunData(run)
    assert [(bench.name, bench.k) for bench in data.benches] == [("arith", 8), ("other", 2)]
    assert data.score_curve() == [(4, pytest.approx(0.4))]
    assert data.final(data.benches[1]) == 0.2
