"""What a run has seen of lengths and kept groups, in place of assumptions."""

from __future__ import annotations

import json
from typing import Any

from da3po_cli.errors import UsageError
from da3po_cli.planning.batch import Measured
from da3po_cli.runs.directory import RunDir
from da3po_cli.runs.metrics import read_metrics


def measured_in(run: RunDir) -> Measured:
    """Kept over generated groups of all steps, and the mean tokens of a trained sequence, prompt and response.

    Lengths are read from the saved rollouts of the last step; without them only the kept share is known.

    Raises:
        UsageError: the run has no training step yet.
    """
    records = read_metrics(run.metrics_file) if run.metrics_file.is_file() else []
    steps = [record for record in records if "sample/generated" in record]
    generated = sum(record["sample/generated"] for record in steps)
    if not generated:
        raise UsageError(f"{run.name} has no training step yet", where=str(run.metrics_file), hint="leave --run out")
    kept = sum(record["sample/kept"] for record in steps) / generated
    file = run.path / "rollouts" / f"step_{steps[-1]['step']}.jsonl"
    lengths: list[int] = []
    if file.is_file():
        with file.open() as lines:
            for line in lines:
                lengths += _lengths(json.loads(line))
    return Measured(run.name, min(1.0, kept), sum(lengths) / len(lengths) if lengths else None)


def _lengths(group: dict[str, Any]) -> list[int]:
    """Tokens of each sequence of a group that was trained on."""
    if group.get("drop_reason") is not None:
        return []
    prompt = len(group["prompt"]["token_ids"])
    return [prompt + len(response["token_ids"]) for response in group["responses"]]
