"""What may change when a run goes on from a checkpoint.

Refused is what makes the continuation meaningless, because the checkpoint says something about the old value:

* model.path, model.dtype: the weights and the optimizer's moments are of that model, in that precision;
* data.train, data.template, run.seed: the position in the data counts prompts in the order that follows from them
  (not with replayed rollouts, which have no position);
* rollout.group_size, rollout.temperature where algo.carry_surplus is on: the groups carried over have that many
  responses, with log-probs at that temperature.

A path that leads to the same place is no change. Everything else may change, the algorithm, the layout and the
learning rate too, and is listed. What the keys do not show, the checkpoint does: the stream of prompts compares a hash
of all prompts, and Megatron the shapes of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from da3po_cli.config.paths import expanded
from da3po_cli.config.load import diff
from da3po_cli.config.plan import overlong_cache
from da3po_cli.config.schema import Config
from da3po_cli.errors import UsageError

_MODEL = {
    "model.path": "the checkpoint holds the weights of that model",
    "model.dtype": "the checkpoint's weights and moments are in that precision",
}
_DATA = {
    "data.train": "the checkpoint's position is one in those data",
    "data.template": "the checkpoint's position counts prompts made with it",
    "run.seed": "the order of the prompts follows from it",
}
_SURPLUS = {
    "rollout.group_size": "algo.carry_surplus=true: groups carried over have that many responses",
    "rollout.temperature": "algo.carry_surplus=true: groups carried over were sampled at that temperature",
}
_PATHS = ("model.path", "data.train")
_OVERLONG = ("algo.overlong_cache", "algo.overlong_share")  # two ways to say a number of tokens


def refusals(before: Config, after: Config, *, replay: bool) -> Iterator[UsageError]:
    """Why a run with the config `before` cannot go on with `after`; nothing where it can.

    Args:
        replay: the run goes on with the saved rollouts of another one.
    """
    fixed = _MODEL | ({} if replay else _DATA) | (_SURPLUS if before.algo.carry_surplus else {})
    for key, old, new in changes(before, after):
        if key in fixed:
            moved = "; if it has only moved, write its new place into the run's config.yaml" if key in _PATHS else ""
            yield UsageError(
                f"{key}={new} cannot go on from {key}={old}: {fixed[key]}",
                where=key,
                hint=f"{key}={old} as the run has it, or a new run with another --name{moved}",
            )


def changes(before: Config, after: Config) -> list[tuple[str, Any, Any]]:
    """(key, old value, new value) of every key that differs in what it means; the run's name does not count."""
    same = {"run.name", *(_OVERLONG if overlong_cache(before) == overlong_cache(after) else ())}
    return [
        (key, old, new)
        for key, old, new in diff(before, after)
        if key not in same and not (key in _PATHS and _same_place(old, new))
    ]


def _same_place(old: str, new: str) -> bool:
    first, second = expanded(old), expanded(new)
    return first.exists() and second.exists() and first.samefile(second)
