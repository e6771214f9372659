"""The matrix of an ablation: arms (settings that are compared) times seeds. Pure."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from da3po_cli.algos.table import ALGORITHMS
from da3po_cli.config.keys import ALIASES
from da3po_cli.errors import UsageError

LONGEST = 100  # characters of a slug; file systems allow 255
EXAMPLE = "--param lambda=1.0,1.5,2.0 or --algos grpo,dapo,da3po"


@dataclass(frozen=True)
class Arm:
    """One setting. `label` is what people and gates call it, such as `lambda=2.0`; `slug` names directories."""

    label: str
    slug: str
    overrides: tuple[str, ...]
    """As `key=value`."""

    def run_name(self, seed: int) -> str:
        """The directory of its run with this seed."""
        return f"{self.slug}-seed{seed}"


@dataclass(frozen=True)
class _Choice:
    label: str
    override: str


def make_arms(algos: str | None, params: Sequence[str]) -> list[Arm]:
    """Every combination of the algorithms and of the values of each parameter, the last one changing fastest.

    Args:
        algos: names with commas between, or None.
        params: `key=v1,v2,...` each. A value with a comma in it is put into double quotes.

    Raises:
        UsageError: nothing to compare, an unknown algorithm, or a parameter that is no `key=values`.
    """
    axes = ([_algo_axis(algos)] if algos is not None else []) + _param_axes(params)
    if not axes:
        raise UsageError("nothing to compare", where="da3po ablate", hint=EXAMPLE)
    arms: list[Arm] = []
    for choices in product(*axes):
        slug = "_".join(re.sub(r"[^A-Za-z0-9.+]+", "-", choice.label).strip("-") for choice in choices)[:LONGEST]
        taken = {arm.slug for arm in arms}
        unique = next(name for n in range(len(arms) + 1) if (name := slug if not n else f"{slug}+{n}") not in taken)
        arms.append(Arm(" ".join(choice.label for choice in choices), unique, tuple(c.override for c in choices)))
    return arms


def _algo_axis(text: str) -> list[_Choice]:
    names = _values(text, "--algos")
    for name in names:
        if name not in ALGORITHMS:
            near = difflib.get_close_matches(name, list(ALGORITHMS), n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise UsageError(
                f"unknown algorithm {name!r}", where="--algos", hint=f"{guess}one of {', '.join(ALGORITHMS)}"
            )
    return [_Choice(name, f"algo.name={name}") for name in names]


def _param_axes(params: Sequence[str]) -> list[list[_Choice]]:
    pairs: list[tuple[str, list[str]]] = []
    for text in params:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError(f"{text!r} is not KEY=V1,V2,...", where="--param", hint="such as --param lambda=1.0,2.0")
        if key in ("seed", "run.seed", "run.name"):
            raise UsageError(f"{key} is no parameter of an ablation", where="--param", hint="--seeds N, --name NAME")
        if key.startswith("validation."):
            raise UsageError(
                f"{key} is no parameter of an ablation, whose arms must be validated alike",
                where="--param",
                hint=f"{key}=VALUE sets it for all arms",
            )
        pairs.append((key, _values(values, f"--param {key}")))
    keys = [key for key, _ in pairs]
    meant = [ALIASES.get(key, key) for key in keys]
    if len(set(meant)) < len(meant):
        twice = next(key for key, one in zip(keys, meant, strict=True) if meant.count(one) > 1)
        raise UsageError(f"{twice} is given twice", where="--param", hint=f"all its values in one: {twice}=V1,V2")
    leaves = [key.rpartition(".")[2] for key in keys]
    shown = [leaf if leaves.count(leaf) == 1 else key for key, leaf in zip(keys, leaves, strict=True)]
    return [
        [_Choice(f"{name}={value}", f"{key}={value}") for value in values]
        for name, (key, values) in zip(shown, pairs, strict=True)
    ]


def _values(text: str, where: str) -> list[str]:
    """The values between the commas; a quoted one may hold commas."""
    try:
        found = [value.strip() for value in next(csv.reader([text], skipinitialspace=True), [])]
    except csv.Error:  # a line break outside quotes
        found = []
    if not found or "" in found:
        raise UsageError(f"an empty value in {text!r}", where=where, hint="values with commas between: 1.0,2.0")
    twice = [value for value in found if found.count(value) > 1]
    if twice:
        raise UsageError(f"the value {twice[0]} is given twice", where=where, hint="give each value once")
    return found
