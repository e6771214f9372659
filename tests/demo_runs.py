"""`da3po train` on the demo model as a user types it, small enough for tests: the command, and what it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from da3po_cli.runs.metrics import read_metrics

REPOSITORY = Path(__file__).parent.parent
SMALL = [
    "--config=demo",
    "rollout.prompts=8",
    "rollout.group_size=4",
    "train.mini_batch_prompts=4",
    "validation.prompts=8",
    "validation.samples=2",
    "validation.every=2",
    "checkpoint.every=1",
]


def start(root: Path, *arguments: str, path: Path | None = None) -> subprocess.Popen[str]:
    """Start `da3po ARGUMENTS` with its runs below `root`; `path` holds modules that it may import."""
    entries = [str(path or REPOSITORY), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "DA3PO_RUNS": str(root), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(entries)}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        env.pop(name, None)
    command = [sys.executable, "-m", "da3po_cli", *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(job: subprocess.Popen[str], code: int = 0, *, timeout: float = 600) -> tuple[str, str]:
    """Wait for a command that must end with `code`; (stdout, stderr)."""
    try:
        out, err = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        job.kill()
        out, err = job.communicate()
        raise AssertionError(f"it did not end within {timeout} s:\n{out}{err}") from None
    assert job.returncode == code, f"exit code {job.returncode}, not {code}:\n{out}{err}"
    return out, err


def da3po(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed."""
    job = start(root, *arguments)
    out, err = finish(job)
    return subprocess.CompletedProcess(job.args, job.returncode, out, err)


def train(root: Path, *arguments: str, code: int = 0, path: Path | None = None) -> str:
    """Run `da3po train ARGUMENTS`; what it says."""
    return finish(start(root, "train", *arguments, path=path), code)[1]


def metrics(run: Path) -> list[dict]:
    """The records of a run without what depends on the machine's speed."""
    return [
        {
            name: value
            for name, value in record.items()
            if not name.startswith("timing/") and not name.endswith(("_per_s", "/seconds"))
        }
        for record in read_metrics(run / "metrics.jsonl")
    ]
