"""rollouts/step_N.jsonl of a run: every group of the step, one per line, kept ones first."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from da3po_cli.algos.records import group_to_dict
from da3po_cli.algos.types import Group
from da3po_cli.errors import UsageError
from da3po_cli.runs.files import write_lines


def rollouts_file(rollouts: Path, step: int) -> Path:
    return rollouts / f"step_{step}.jsonl"


def write_rollouts(rollouts: Path, step: int, groups: Iterable[Group]) -> None:
    """Save the groups of a step.

    Raises:
        EnvironmentProblem: the file cannot be written.
    """
    write_lines(rollouts_file(rollouts, step), (json.dumps(group_to_dict(one), ensure_ascii=False) for one in groups))


def read_rollouts(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(bytes of the line, the group as `group_from_dict` takes it) of each line.

    Raises:
        UsageError: a line is no JSON; names it.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield len(line), json.loads(line)
            except ValueError as error:
                raise UsageError(
                    f"not a saved group: {error}",
                    where=f"{file}:{number}",
                    hint="the file was cut short or changed: copy it again, or remove it",
                ) from error
