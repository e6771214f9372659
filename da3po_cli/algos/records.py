"""Groups as JSON: one record per group, for rollouts/step_N.jsonl, its replay, and carried groups in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from da3po_cli.algos.types import Group, Prompt, Response
from da3po_cli.errors import UsageError


def group_to_dict(group: Group) -> dict[str, Any]:
    """{"prompt": {}, "drop_reason", "first_solve", "step", "correct", "pass_rate", "responses": [{}]}.

    Floats survive.
    """
    return {
        "prompt": asdict(group.prompt),
        "drop_reason": group.drop_reason,
        "first_solve": group.first_solve,
        "step": group.step,
        "correct": group.correct,
        "pass_rate": group.pass_rate,
        "responses": [dict(vars(response)) for response in group.responses],
    }


def group_from_dict(record: Mapping[str, Any]) -> Group:
    """The inverse of `group_to_dict`; `correct` and `pass_rate`, which follow from the responses, are not read.

    Raises:
        UsageError: a field is missing or unknown.
    """
    try:
        prompt = _build(Prompt, record["prompt"], token_ids=tuple(record["prompt"]["token_ids"]))
        responses = [_build(Response, response) for response in record["responses"]]
        return Group(prompt, responses, record["drop_reason"], record["first_solve"], record["step"])
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"not a saved group: {type(error).__name__} {error}",
            hint="give a rollouts directory written by this version of da3po train",
        ) from error


def _build(kind: type[Any], values: Mapping[str, Any], **replaced: Any) -> Any:
    """A dataclass from exactly its fields."""
    unknown = set(values) - {entry.name for entry in fields(kind)}
    if unknown:
        raise TypeError(f"unknown {kind.__name__} field {min(unknown)!r}")
    return kind(**{**values, **replaced})
