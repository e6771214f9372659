"""scripts/gpu_check.py on a machine without a GPU: the table of skips, and how it reads, bounds and reports parts."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = REPOSITORY / "scripts"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with a repository of its own where tests can put parts."""
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPTS / "gpu_check.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    (tmp_path / "tests/gpu").mkdir(parents=True)
    monkeypatch.setattr(module, "REPOSITORY", tmp_path)
    return module


def run(script: Any, text: str, tmp_path: Path, limit_s: float = 60) -> list[tuple[str, str, str]]:
    (tmp_path / "tests/gpu/test_it.py").write_text(text)
    rows = script.run_part(script.Part("it", "test_it.py", 60), sys.executable, limit_s, tmp_path)
    return [(row.check, row.outcome, row.detail) for row in rows]


def test_every_file_of_tests_gpu_is_a_part() -> None:
    spec = importlib.util.spec_from_file_location("gpu_check_parts", SCRIPTS / "gpu_check.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check_parts"] = module
    spec.loader.exec_module(module)
    assert sorted(part.file for part in module.PARTS) == sorted(
        file.name for file in (REPOSITORY / "tests/gpu").glob("test_*.py")
    )
    assert module.BUDGET_S < 8 * 60


def test_without_a_gpu_everything_is_skipped_with_the_reason(tmp_path: Path) -> None:
    """The real command, as a user starts it, from elsewhere; CUDA devices are hidden where there are some."""
    env = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [str(SCRIPTS / "gpu_check.sh"), "--json", str(tmp_path / "out.json")],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert len(rows) == 7
    assert all(row["outcome"] == "skipped" and row["detail"].startswith("no CUDA device (torch 2") for row in rows)
    assert "0 passed, 0 failed, 7 skipped" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 118


def test_rows_of_a_part(script: ModuleType, tmp_path: Path) -> None:
    """Pytest's own report, of real tests: figures, reasons and failures."""
    text = """
import pytest
def test_speed(record_property):
    record_property("resharding", "12.5 GB/s")
    record_property("gap", 1e-3)
@pytest.mark.parametrize("kind", ["te"])
def test_layers(kind):
    pytest.skip("TransformerEngine is not installed")
def test_wrong_result():
    assert 1 == 2, "one is not two"
"""
    assert run(script, text, tmp_path) == [
        ("it: speed", "passed", "resharding 12.5 GB/s, gap 0.001"),
        ("it: layers[te]", "skipped", "TransformerEngine is not installed"),
        ("it: wrong result", "failed", "AssertionError: one is not two"),
    ]


@pytest.mark.parametrize(
    ("text", "outcome", "detail"),
    [
        ("import os\ndef test_a(): os.kill(os.getpid(), 11)", "failed", "killed by SIGSEGV"),
        ("import os\ndef test_a(): os._exit(0)", "failed", "ended with exit code 0"),  # no report: it did not finish
        ("import nothing_of_this_name", "failed", ""),
        ("", "failed", "ended with exit code 5"),
    ],
    ids=["segfault", "silent exit", "import error", "no tests"],
)
def test_a_part_that_breaks_has_a_failed_row(
    script: ModuleType, tmp_path: Path, text: str, outcome: str, detail: str
) -> None:
    rows = run(script, text, tmp_path)
    assert len(rows) == 1
    assert rows[0][1] == outcome and detail in rows[0][2]


def test_a_part_that_hangs_is_ended_with_what_it_started(script: ModuleType, tmp_path: Path) -> None:
    mark = tmp_path / "child"
    text = f"""
import subprocess, sys, time
def test_a():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10); open({str(mark)!r}, 'w')"])
    time.sleep(600)
"""
    start = time.monotonic()
    assert run(script, text, tmp_path, limit_s=6) == [("it", "failed", "no end after 6 s")]
    assert time.monotonic() - start < 60
    time.sleep(max(0.0, start + 17 - time.monotonic()))
    assert not mark.exists()


def test_exit_codes_and_budget(script: ModuleType, monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    versions = dict.fromkeys(("torch", "transformers", "megatron-core", "pytest"), "1")
    monkeypatch.setattr(script, "probe", lambda python: {**versions, "device": "a GPU"})
    limits = []

    def run_part(part: Any, python: str, limit_s: float, folder: Path) -> list[Any]:
        limits.append((part.name, limit_s))
        return [script.Row(part.name, "failed" if part.name == failing else "passed", 1.0, "")]

    monkeypatch.setattr(script, "run_part", run_part)
    failing = "none"
    assert script.main([]) == 0
    assert [limit for _, limit in limits] == [part.limit_s for part in script.PARTS]
    failing = "fp8"
    assert script.main(["--only", "fp8,vllm"]) == 1
    limits.clear()
    assert script.main(["--only", "training,vllm", "--budget", "30"]) == 0
    assert [name for name, limit in limits if 29 < limit <= 30] == ["training", "vllm"]  # never past the budget
    capsys.readouterr()
    assert script.main(["--budget", "5"]) == 0  # too little to begin with
    assert capsys.readouterr().out.count("no time left of 5 s") == len(script.PARTS)
    with pytest.raises(SystemExit):
        script.main(["--only", "nothing"])
    assert "no part called nothing; there are training," in capsys.readouterr().err


def test_what_is_missing(script: ModuleType) -> None:
    full = dict.fromkeys(("torch", "transformers", "megatron-core", "pytest"), "1")
    assert script.why_nothing_runs({**full, "device": "a GPU"}) is None
    assert script.why_nothing_runs(full) == "no CUDA device (torch 1)"
    assert script.why_nothing_runs({**full, "torch": None, "pytest": None}) == "not installed: torch, pytest"


def test_long_details_stay_in_their_column(script: ModuleType) -> None:
    text = script.table([script.Row("vllm: sleep", "passed", 12.34, "word " * 60)])
    lines = text.splitlines()
    assert all(len(line) <= script.WIDTH for line in lines)
    column = lines[2].index("word")
    assert {line.index("word") for line in lines[2:-1]} == {column} and len(lines) > 5
