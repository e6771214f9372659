"""The pure part of evaluation starts without an engine."""

import subprocess
import sys
from pathlib import Path

import da3po_cli.evals

HEAVY = {"torch", "vllm", "megatron", "transformers", "sympy", "datasets", "pyarrow"}


def test_no_module_of_evals_imports_anything_heavy():
    names = [f"da3po_cli.evals.{file.stem}" for file in Path(da3po_cli.evals.__path__[0]).glob("[a-z]*.py")]
    assert len(names) > 5
    code = f"import sys, {', '.join(names)}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
