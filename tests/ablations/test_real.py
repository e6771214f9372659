"""Small ablations for real: Megatron-Core, vLLM, the demo model, every run in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SMALL = (
    "parallel.data=1",
    "rollout.prompts=4",
    "train.mini_batch_prompts=2",
    "train.warmup_steps=0",
    "validation.prompts=8",
    "validation.samples=2",
    "validation.every=1",  # a signal comes where one is due: it is made up for
    "checkpoint.every=1",
)
# what a clock or the machine decides
CLOCKED = ("timing/", "rollout/tokens_per_s", "sync/seconds", "sync/gb_per_s")

pytestmark = [pytest.mark.slow, pytest.mark.long]


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DA3PO_", "SLURM_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "da3po_cli", "ablate", *arguments],
        env=env | {"DA3PO_RUNS": str(tmp_path), "PYTHONPATH": str(REPOSITORY)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def records(run: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith(CLOCKED)} for line in lines]


def test_equal_arms_give_equal_numbers_also_after_an_interruption(tmp_path: Path) -> None:
    """DA3PO with lambda 1 is DAPO bit for bit, and a resumed ablation ends with the table of one that ran through."""
    matrix = ["-c", "demo", "--algos", "dapo,da3po", "--steps", "3", "lambda=1.0", *SMALL]
    whole = start(tmp_path, *matrix, "--name", "whole")
    table, err = whole.communicate()
    assert whole.returncode == 0, err
    dapo, da3po = (records(tmp_path / f"whole/{arm}-seed0") for arm in ("dapo", "da3po"))
    assert [line["step"] for line in dapo] == [0, 1, 2, 3]
    assert dapo == da3po

    cut = start(tmp_path, *matrix, "--name", "cut")
    metrics = tmp_path / "cut/dapo-seed0/metrics.jsonl"
    while not (metrics.is_file() and '"step": 1,' in metrics.read_text()):
        assert cut.poll() is None, cut.communicate()[1]
        time.sleep(0.05)
    cut.send_signal(signal.SIGTERM)  # SIGINT is ignored where the tests run in the background of a shell
    _, err = cut.communicate()
    assert cut.returncode == 143 and "da3po ablate --resume --name cut" in err
    assert json.loads((tmp_path / "cut/ablation.json").read_text())["runs"][0]["status"] == "interrupted"
    resumed = start(tmp_path, "--resume", "--name", "cut")
    again, err = resumed.communicate()
    assert resumed.returncode == 0, err
    clocked = "\nSteps, tokens and time\n"
    assert clocked in table
    assert again.split(clocked)[0] == table.split(clocked)[0]
    assert records(tmp_path / "cut/dapo-seed0") == dapo
    assert (tmp_path / "cut/report.html").is_file() and (tmp_path / "cut/da3po-seed0/report.html").is_file()


def test_an_arm_that_diverges_is_reported_and_the_other_one_completes(tmp_path: Path) -> None:
    done = start(tmp_path, "-c", "demo", "--param", "train.lr=1e30,5e-5", "--steps", "5", "--name", "a", *SMALL)
    table, err = done.communicate()
    assert done.returncode == 4, err
    diverged, fine = json.loads((tmp_path / "a/ablation.json").read_text())["runs"]
    assert (diverged["status"], diverged["exit_code"], fine["status"]) == ("diverged", 5, "finished")
    assert f"lr-1e30-seed0 diverged: {diverged['error']}" in err and diverged["error"]
    rows = {line.split()[0]: line.split() for line in table.split("\n\n")[0].splitlines()[2:]}
    assert rows["lr=1e30"][1] == "0/1" and rows["lr=5e-5"][1] == "1/1"
