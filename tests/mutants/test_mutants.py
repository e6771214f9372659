"""The check that is `make test-mutants`: its table fits the code, and it tells killed mutants from all others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mutants_run import ROOT, out_of_date
from mutants_table import MUTANTS

NAMED = {
    "old log-probs never computed",
    "truncated importance sampling never on",
    "amplification never applied",
    "the learning-rate schedule never advanced",
    "denominators of the whole step",
}


def test_the_table_fits_the_code() -> None:
    assert out_of_date(ROOT, MUTANTS) == {}
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 100
    assert {mutant.name for mutant in MUTANTS} >= NAMED


CALC = "def add(a, b):\n    return a + b\n\n\ndef half(a):\n    while a > 1:\n        a -= 2\n    return a\n"
TESTS = """
import os, subprocess, sys, time
from da3po_cli.calc import add, half

def test_add():
    assert add(2, 3) == 5

def test_add_elsewhere():
    code = "from da3po_cli.calc import add; print(add(2, 3))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "5\\n"

def test_half():
    child = subprocess.Popen(["sleep", "600"])
    assert half(5) == 1
    child.kill()

def test_wrong():
    assert add(1, 1) == 3
"""
SCRIPT = """
import sys
from mutant import Mutant
from mutants_run import run
from pathlib import Path

def mutant(name, old, new, test, file="da3po_cli/calc.py"):
    return Mutant(name, file, old, new, f"tests/test_calc.py::{test}")

mutants = [
    mutant("minus", "a + b", "a - b", "test_add"),
    mutant("minus elsewhere", "a + b", "a - b", "test_add_elsewhere"),
    mutant("the other order", "a + b", "b + a", "test_add"),
    mutant("a name that is not there", "a + b", "a + c", "test_add"),
    mutant("no end", "a -= 2", "a -= 0", "test_half"),
    mutant("a broken killer", "a + b", "a * b", "test_wrong"),
    mutant("no text", "a ** b", "a * b", "test_add"),
    mutant("two texts", "return a", "return b", "test_add"),
    mutant("no file", "a", "b", "test_add", file="da3po_cli/calculator.py"),
    mutant("no test", "a + b", "a * b", "test_multiply"),
    mutant("no code", "a + b", "a +* b", "test_add"),
    mutant("no change", "a + b", "(a + b)", "test_add"),
]
say = lambda text: print(text, flush=True)
sys.exit(run(Path(sys.argv[1]), mutants, say, jobs=2, limit=12.0, copied=["da3po_cli", "megatron_bridge", "tests"],
             preloaded=["pytest"]))
"""


def test_a_mutant_counts_as_killed_only_by_a_test_that_fails_on_it(tmp_path: Path) -> None:
    """On a project of two functions. Its copies are deleted, and its own files are left as they were."""
    tree, scratch = tmp_path / "tree", tmp_path / "scratch"
    for package in ("da3po_cli", "megatron_bridge", "tests"):
        (tree / package).mkdir(parents=True)
    scratch.mkdir()
    for package in ("da3po_cli", "megatron_bridge"):
        (tree / package / "__init__.py").write_text("")
    (tree / "da3po_cli" / "calc.py").write_text(CALC)
    (tree / "tests" / "test_calc.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tree)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = done.stdout.splitlines()
    assert done.returncode == 10, done.stdout + done.stderr
    assert said[-1].startswith("2 passed, 10 failed in ")
    killed = {line.partition(": ")[0] for line in said if line.startswith("killed")}
    assert killed == {"killed  minus", "killed  minus elsewhere"}
    reasons = dict(line.removeprefix("not killed: ").split(": ", 1) for line in said if line.startswith("not killed: "))
    assert reasons == {
        "the other order": "SURVIVED",
        "a name that is not there": "it is no program (NameError)",
        "no end": "its killer takes too long",
        "a broken killer": "its killer fails without it: tests/test_calc.py::test_wrong",
        "no text": "its text is 0 times in da3po_cli/calc.py: 'a ** b'",
        "two texts": "its text is 2 times in da3po_cli/calc.py: 'return a'",
        "no file": "its text is 0 times in da3po_cli/calculator.py: 'a'",
        "no test": "there is no test tests/test_calc.py::test_multiply",
        "no code": "it is no program (invalid syntax (<unknown>, line 2))",
        "no change": "it changes nothing",
    }
    assert list(scratch.iterdir()) == []
    assert (tree / "da3po_cli" / "calc.py").read_text() == CALC
    assert sorted(file.name for file in tree.rglob("*")) == sorted(
        ["da3po_cli", "megatron_bridge", "tests", "__init__.py", "__init__.py", "calc.py", "test_calc.py"]
    )
    assert "sleep 600" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
