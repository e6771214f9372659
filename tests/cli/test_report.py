"""`da3po report` and the page that training leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from da3po_cli import main

sys.path.insert(0, str(Path(__file__).parents[1] / "reports"))
from report_runs import make_ablation, make_group, make_run

SCORES = {0: (0.5, 0.9), 4: (0.7, 0.95)}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("DA3PO_RUNS", str(tmp_path / "runs"))

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main.execute(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_page_of_a_run(cli, tmp_path: Path) -> None:
    make_run(tmp_path / "runs/one", SCORES, groups={1: [make_group(1, 1)]})
    code, out, _ = cli("report", "one")
    assert code == 0 and out.strip() == str(tmp_path / "runs/one/report.html")
    page = (tmp_path / "runs/one/report.html").read_text()
    assert "Run one" in page and "Hard prompts solved for the first time" in page
    assert cli("report")[0] == 0, "the newest run"


def test_files_where_they_are_wanted(cli, tmp_path: Path) -> None:
    make_ablation(tmp_path / "runs/two", {"1.0": (0.7, 0.72), "2.0": (0.74, 0.78)})
    code, out, _ = cli("report", "two", "--png", str(tmp_path / "png"), "--md")
    assert code == 0 and out.startswith("# Ablation two")
    assert "| lambda=2.0 | 2/2 | **76.00** |" in out and f"({tmp_path / 'png'}/avg.png)" in out
    assert {"avg.png", "efficiency.png", "entropy.png", "final_avg.png"} <= {
        f.name for f in (tmp_path / "png").iterdir()
    }
    assert not (tmp_path / "runs/two/report.html").exists(), "only what was asked for"
    code, out, _ = cli("report", "two", "--html", str(tmp_path / "p.html"), "--target", "0.6", "--json")
    assert json.loads(out)["files"] == [str(tmp_path / "p.html")]
    assert "reached 60.00 %" in (tmp_path / "p.html").read_text()


def test_places_that_cannot_be_written(cli, tmp_path: Path) -> None:
    make_run(tmp_path / "runs/one", SCORES)
    (tmp_path / "file").touch()
    for option, place in (("--html", tmp_path), ("--html", tmp_path / "file/page.html"), ("--png", tmp_path / "file")):
        code, _, err = cli("report", "one", option, str(place))
        assert code == 2 and f"cannot write {place}" in err and option in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "runs"]
    assert cli("report", "one", "--target", "75")[0] == 2


def test_markdown_in_json_and_the_newest_ablation(cli, tmp_path: Path) -> None:
    make_ablation(tmp_path / "runs/two", {"1.0": (0.7, 0.72), "2.0": (0.74, 0.78)})
    (tmp_path / "runs/latest").unlink(missing_ok=True)
    code, out, _ = cli("report", "--md", "--json")
    assert code == 0 and json.loads(out)["markdown"].startswith("# Ablation two") and json.loads(out)["files"] == []


def test_a_damaged_run_is_named_and_hides_no_other(cli, tmp_path: Path) -> None:
    make_run(tmp_path / "runs/one", SCORES)
    (tmp_path / "runs/two").mkdir()
    (tmp_path / "runs/two/run.json").write_text("{")
    code, out, err = cli("runs", "ls")
    assert code == 0 and "one" in out and "runs/two/run.json" in err
    code, _, err = cli("report", "three")
    assert code == 2 and "no run called 'three'" in err
    code, _, err = cli("runs", "show", "two")
    assert code == 2 and "not the record of a run" in err


def test_what_there_is_not(cli, tmp_path: Path) -> None:
    make_run(tmp_path / "runs/one", SCORES).metrics_file.unlink()
    code, _, err = cli("report", "one")
    assert code == 2 and "no metrics yet" in err
    code, _, err = cli("report", "nothing")
    assert code == 2 and "no run called 'nothing'" in err and "one" in err


def test_matplotlib_is_imported_for_drawing_only() -> None:
    script = "import sys; from da3po_cli import main; main.make_app(); from da3po_cli.reports import build, theory\n"
    script += "assert 'matplotlib' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
