"""The memory of the CPU demo as the plan has it, against the peak of a real run.

Most of a small model's process is libraries, so two things are compared: the whole peak, and how large a process is
that has imported the libraries only, which the plan holds as a constant. What is left is small and noisy; a bound on
it keeps the estimate of the activations honest. The constants and the KV cache, which is resident as a whole, are more
than half of the peak.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from da3po_cli.planning.estimate import CPU_LIBRARIES

REPOSITORY = Path(__file__).parents[2]
MIB = 1 << 20
ARGUMENTS = ["-c", "demo", "parallel.data=1"]  # one rank: the process of the command itself
IMPORTS = """
import os, re
from da3po_cli.rollouts.process import engine_environment
os.environ.update(engine_environment())
from transformers import AutoTokenizer
from vllm import LLM
import megatron_bridge.engine, megatron_bridge.model, da3po_cli.rollouts.sync, da3po_cli.training.worker
print(re.search(r"VmRSS:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("DA3PO_")}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        clean.pop(name, None)
    runs = str(tmp_path_factory.mktemp("memory") / "runs")
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    return {**clean, "DA3PO_RUNS": runs, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLD": "1"}


@pytest.fixture(scope="module")
def peak(environment: dict[str, str]) -> int:
    """Largest resident size of a run of two steps, bytes."""
    command = [sys.executable, "-m", "da3po_cli", "train", *ARGUMENTS, "--name", "seen", "--steps", "2", "--json"]
    process = subprocess.Popen(
        [*command, "validation.every=0"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return usage.ru_maxrss * 1024


def planned(environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    """The fullest phase."""
    command = [sys.executable, "-m", "da3po_cli", "plan", *ARGUMENTS, *arguments, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    (stage,) = json.loads(done.stdout)["own"]["memory"]
    return max(stage["phases"].values(), key=lambda phase: phase["total"])


def test_the_peak(peak: int, environment: dict[str, str]) -> None:
    assert planned(environment)["total"] == pytest.approx(peak, rel=0.2)


def test_the_peak_with_the_lengths_of_the_run(peak: int, environment: dict[str, str]) -> None:
    found = planned(environment, "--run", "seen")
    assert found["total"] == pytest.approx(peak, rel=0.2)
    fixed = sum(found[part] for part in ("Python and libraries", "engine and kernels at first use", "KV cache"))
    assert peak - fixed > 200 * MIB  # there is something to compare
    assert found["total"] - fixed == pytest.approx(peak - fixed, rel=0.5)


def test_the_libraries(environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) * 1024 == pytest.approx(CPU_LIBRARIES, rel=0.15)
