"""From the matrix to runs: the config of each, checked before anything starts, and where they may run."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from da3po_cli.ablations.directory import Ablation
from da3po_cli.ablations.matrix import Arm
from da3po_cli.checks.rules import check
from da3po_cli.config.keys import ALIASES
from da3po_cli.config.load import config_hash, load_config, resolve
from da3po_cli.config.plan import CPU_RANKS, layout, with_layout
from da3po_cli.config.schema import Config
from da3po_cli.errors import ConfigErrors, UsageError
from da3po_cli.runs.directory import RunDir
from da3po_cli.runs.metrics import read_metrics

FIXED = ("checkpoint.keep=1", "checkpoint.keep_best=false")
"""Over files and variables, under the user's key=value: of many runs, the newest checkpoint of each is enough."""
LOOKED_AT = 10  # earlier runs of the same size, for the estimate
LOOKED_THROUGH = 200  # runs of any size, to find them

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Slot:
    """A share of the machine for one run at a time; empty is all of it."""

    devices: tuple[str, ...] = ()
    """Entries of CUDA_VISIBLE_DEVICES."""
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class Planned:
    """One run: an arm with a seed."""

    arm: Arm
    seed: int
    name: str
    config: Config
    hash: str
    arguments: tuple[str, ...]
    """Of `da3po train`, to start it anew."""


def make_slots(
    count: int, *, cuda: int, env: Mapping[str, str] = os.environ, cores: Sequence[int] | None = None
) -> list[Slot]:
    """Split the CUDA devices, or on a CPU the cores, into `count` equal shares; a remainder is left idle.

    Raises:
        UsageError: fewer devices than shares.
    """
    if count < 1:
        raise UsageError(f"--parallel {count} must be at least 1", where="--parallel", hint="--parallel 1")
    if cuda:
        if count > cuda:
            raise UsageError(
                f"--parallel {count} with {cuda} CUDA device(s)", where="--parallel", hint=f"--parallel {cuda} or less"
            )
        named = env.get("CUDA_VISIBLE_DEVICES")
        devices = [part.strip() for part in named.split(",")][:cuda] if named else [str(n) for n in range(cuda)]
        return [Slot(devices=tuple(share)) for share in _shares(devices, count)]
    own = sorted(os.sched_getaffinity(0) if cores is None else cores)
    if count == 1 or count > len(own):
        return [Slot()] * count
    return [Slot(cores=tuple(share)) for share in _shares(own, count)]


def _shares(items: Sequence[_Item], count: int) -> list[Sequence[_Item]]:
    size = len(items) // count
    return [items[size * n : size * (n + 1)] for n in range(count)]


def ranks_of(slot: Slot) -> int:
    """Ranks of a run in this slot, where its config leaves that open; as `da3po train` would choose."""
    if slot.devices:
        return len(slot.devices)
    return min(CPU_RANKS, len(slot.cores) or len(os.sched_getaffinity(0)))


def plan_runs(ablation: Ablation, *, cuda: int, env: Mapping[str, str] = os.environ) -> list[Planned]:
    """Every run, all arms of a seed before the next seed, so that what is finished can be compared.

    Args:
        cuda: devices of the machine.

    Raises:
        ConfigErrors: what is wrong with the configs of all runs, each problem once.
        UsageError: two arms are the same, or a key is set both for all arms and by them.
    """
    _check_overrides(ablation)
    planned: list[Planned] = []
    problems: dict[str, UsageError] = {}
    for seed in ablation.seeds:
        for arm in ablation.arms:
            overrides = [*FIXED, *ablation.overrides, *arm.overrides, f"run.seed={seed}"]
            name = arm.run_name(seed)
            loaded = resolve(ablation.files, overrides, {"run.name": name}, env)
            config = loaded.config
            world = None if config.parallel.data is not None else ablation.ranks
            found = [*loaded.problems, *check(config, devices=min(cuda, ablation.ranks) if world else cuda)]
            for problem in found:
                problems.setdefault(f"{problem.message} {problem.where}", problem)
            if found:
                continue
            config = with_layout(config, layout(config, world=world))
            arguments = [*(part for file in ablation.files for part in ("--config", file)), "--name", name]
            arguments += [*overrides, f"parallel.data={config.parallel.data}"]
            planned.append(Planned(arm, seed, name, config, config_hash(config), tuple(arguments)))
    if problems:
        raise ConfigErrors(list(problems.values()))
    _check_distinct(planned)
    return planned


def _check_overrides(ablation: Ablation) -> None:
    swept = {_key(token) for arm in ablation.arms for token in arm.overrides}
    for token in ablation.overrides:
        if _key(token) in swept:
            raise UsageError(
                f"{token} would set for all arms what the arms differ in",
                where="command line",
                hint=f"leave it out, or the {_key(token)} of --param or --algos",
            )


def _key(override: str) -> str:
    key = override.partition("=")[0].strip()
    return ALIASES.get(key, key)


def _check_distinct(planned: Sequence[Planned]) -> None:
    by_config: dict[tuple[int, str], Planned] = {}
    for one in planned:
        twin = by_config.setdefault((one.seed, one.hash), one)
        if twin is not one:
            raise UsageError(
                f"the arms {twin.arm.label!r} and {one.arm.label!r} are the same settings",
                where="--param, --algos",
                hint="leave one of them out",
            )


def first_config(files: Sequence[str], overrides: Sequence[str], arm: Arm) -> Config:
    """The config of an arm before it is checked, for what the whole ablation takes from it: the first seed."""
    return resolve(files, [*overrides, *arm.overrides], {}, os.environ).config


def seconds_per_step(config: Config, root: Path) -> float | None:
    """Median over earlier runs of the same size below `root` (runs, and those of ablations); None where there is none.

    Validation and checkpoints are in it.
    """
    files = sorted([*root.glob("*/metrics.jsonl"), *root.glob("*/*/metrics.jsonl")], key=_changed, reverse=True)
    found: list[float] = []
    for file in files[:LOOKED_THROUGH]:
        if len(found) == LOOKED_AT:
            break
        run = RunDir(file.parent)
        if run.path.is_symlink() or not run.config_file.is_file():
            continue
        try:
            earlier = load_config([str(run.config_file)], env={}).config
            records = read_metrics(file)
        except (UsageError, OSError):
            continue
        steps = max((record["step"] for record in records), default=0)
        if steps and _size(earlier) == _size(config):
            found.append(sum(record.get("timing/step") or 0.0 for record in records) / steps)
    return statistics.median(found) if found else None


def _changed(file: Path) -> float:
    return file.stat().st_mtime


def _size(config: Config) -> tuple[object, ...]:
    """What the time of a step depends on most."""
    rollout = config.rollout
    return config.model.path, rollout.prompts, rollout.group_size, rollout.max_tokens, config.parallel.data
