"""The batch of an update that was skipped, for whoever asks which response brought a number that is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from da3po_cli.algos.batching import collate, plan_micro_batches
from da3po_cli.algos.types import Group, Trajectory
from da3po_cli.protocols import Policy


def skipped_batch(
    groups: Sequence[Group],
    trajectories: Sequence[Trajectory],
    rows: Sequence[int],
    policy: Policy,
    micro_batch_tokens: int,
) -> list[dict[str, Any]]:
    """The mini-batch `rows` of a step's responses as JSON objects, with their log-probs under the present weights.

    Every data-parallel rank scores the whole mini-batch, so nothing has to be gathered. Collective.

    Args:
        groups: the step's groups; rows count the responses of one after the other.
    """
    bins = plan_micro_batches([trajectories[row].length for row in rows], 1, micro_batch_tokens)[0]
    batches = [collate(trajectories, [rows[place] for place in bin_]) for bin_ in bins]
    logprobs: dict[int, list[float]] = {}
    for batch, values in zip(batches, policy.logprobs(batches), strict=True):
        for row, mask, line in zip(batch.rows, batch.mask, values, strict=True):
            logprobs[row] = line[mask].tolist()
    responses = [(group.prompt, number, one) for group in groups for number, one in enumerate(group.responses)]
    return [
        {
            "uid": prompt.uid,
            "sample": number,
            "advantage": _plain(response.advantage),
            "prompt_ids": list(prompt.token_ids),
            "response_ids": response.token_ids,
            "logprobs": [_plain(value) for value in logprobs[row]],
            "rollout_logprobs": [_plain(value) for value in response.logprobs],
            "text": response.text,
        }
        for row in rows
        for prompt, number, response in [responses[row]]
    ]


def _plain(value: float) -> float | str:
    """JSON has no NaN: a number that is not finite becomes the text that `float` reads."""
    return value if math.isfinite(value) else str(value)
