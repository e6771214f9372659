"""`da3po theory`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from da3po_cli import main

sys.path.insert(0, str(Path(__file__).parents[1] / "reports"))
from report_runs import make_group, make_run


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("DA3PO_RUNS", str(tmp_path / "runs"))

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main.execute(["theory", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_table(cli) -> None:
    """gamma(0.1, 16) = (1 - 0.9^15) / (1 - 0.1^15) = 0.794108867905350"""
    code, out, _ = cli("--group", "16,4")
    assert code == 0 and out.index("G = 4") < out.index("G = 16")
    line = next(line for line in out[out.index("G = 16") :].splitlines() if line.startswith("0.1 "))
    assert line.split() == ["0.1", "1.0000", "1.2593", "0.7941", "1.2593", "0.8147"]
    assert "below 1 exactly for p < 1/2" in out and "1/P(kept)" in out
    rows = json.loads(cli("--group", "16", "--json")[1])["rows"]
    assert {row["p"]: row["gamma"] for row in rows}[0.1] == pytest.approx(0.794108867905350, rel=1e-12)


@pytest.mark.parametrize("sizes", ["1", "8,x", "", "1e3", "5000"])
def test_what_is_no_group_size(cli, sizes: str) -> None:
    code, _, err = cli("--group", sizes)
    assert code == 2 and "is no group size" in err


def test_figures(cli, tmp_path: Path) -> None:
    assert cli("--png", str(tmp_path / "f"))[0] == 0
    assert sorted(file.name for file in (tmp_path / "f").iterdir()) == [
        "figure1_alpha_minus.png",
        "figure1_alpha_plus.png",
        "figure2_gamma.png",
        "keep_rate.png",
    ]


def test_measured_on_a_run(cli, tmp_path: Path) -> None:
    """k = 0, 1, 2, 4 of 4 in 10, 40, 30, 20 groups, one of another size and one with an unknown verdict.

    alpha+ = (40 + 60 + 80) / (40 + 60); alpha- = (40 + 120 + 60) / (120 + 60).
    """
    counts = {0: 10, 1: 40, 2: 30, 4: 20}
    groups = [make_group(n, k) for k, count in counts.items() for n in range(count)]
    unknown = make_group(999, 1)
    unknown.responses[3].verdict = "unknown"
    make_run(tmp_path / "runs/r", {0: (0.5, 0.9), 4: (0.7, 0.9)}, groups={1: groups, 2: [make_group(0, 1, 8), unknown]})
    code, out, _ = cli("--run", "r", "--json")
    assert code == 0
    measured = json.loads(out)["measured"]
    assert (measured["groups"], measured["left_out"], measured["group_size"], measured["half"]) == (100, 2, 4, 2)
    assert measured["overall"]["alpha_plus"]["mean"] == pytest.approx(1.8)
    assert measured["overall"]["alpha_minus"]["mean"] == pytest.approx(220 / 180)
    assert measured["overall"]["gamma"]["mean"] == pytest.approx(1.8 * 180 / 220)
    assert measured["overall"]["estimate"] is None
    _, out, _ = cli("--run", "r", "--md")
    assert "| all | 100 | 0.450 | 1.8000 |" in out and "2 groups of another size" in out


def test_a_run_without_rollouts(cli, tmp_path: Path) -> None:
    make_run(tmp_path / "runs/r", {0: (0.5, 0.9), 4: (0.7, 0.9)})
    code, _, err = cli("--run", "r")
    assert code == 2 and "no saved rollouts" in err
