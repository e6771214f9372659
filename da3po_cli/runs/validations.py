"""validation/step_N.json of a run: how many samples of each held-out problem were correct, validation by validation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from da3po_cli.errors import UsageError

Correct = dict[str, dict[str, int]]
"""Benchmark -> uid of the prompt -> number of correct samples."""


def validation_file(run: Path, step: int) -> Path:
    return run / "validation" / f"step_{step}.json"


def write_validation(run: Path, step: int, correct: Correct) -> None:
    """Save the counts of the validation after `step`."""
    file = validation_file(run, step)
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(correct), encoding="utf-8")


def read_validation(file: Path) -> Correct:
    """The counts in a file.

    Raises:
        UsageError: it holds something else.
    """
    try:
        raw: Mapping[str, Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
        return {bench: {str(problem): int(correct) for problem, correct in one.items()} for bench, one in raw.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise UsageError(
            f"not counts of correct samples: {error}", where=str(file), hint="remove that file, or validate again"
        ) from error
