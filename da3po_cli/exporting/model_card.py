"""The README.md of an exported model. It depends on the run and the step alone: no time, no path of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from da3po_cli.algos.table import ALGORITHMS
from da3po_cli.config.models import is_hub_id
from da3po_cli.config.schema import Config

_BASICS = ("train/acc", "train/loss", "train/grad_norm", "train/entropy", "train/lr", "rollout/length", "sample/kept")


@dataclass(frozen=True)
class Facts:
    """What the card tells beside the config."""

    run: str
    step: int
    architecture: str
    parameters: int
    dtype: str
    metrics: Mapping[str, Any]  # the record of that step
    versions: Mapping[str, str]


def model_card(config: Config, facts: Facts) -> str:
    """Markdown with YAML front matter, as the Hugging Face hub reads it."""
    entry = ALGORITHMS[config.algo.name]
    lines = [
        "---",
        yaml.safe_dump(_front_matter(config), sort_keys=False).strip(),
        "---",
        "",
        f"# {facts.run}, step {facts.step}",
        "",
        f"{_public(config.model.path)} ({facts.architecture}, {facts.parameters:,} parameters, {facts.dtype}) after "
        f"{facts.step} steps of {entry.title} ({entry.source}): reinforcement learning from verifiable rewards.",
        "",
        "## Training",
        "",
        *_table(("setting", "value"), _summary(config)),
    ]
    shown = _shown(facts.metrics)
    if shown:
        lines += ["", f"## Metrics at step {facts.step}", "", *_table(("metric", "value"), shown)]
    lines += ["", "## Versions", "", *_table(("package", "version"), list(facts.versions.items()))]
    return "\n".join(lines) + "\n"


def _front_matter(config: Config) -> dict[str, Any]:
    front: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    if is_hub_id(config.model.path):
        front["base_model"] = config.model.path
    if is_hub_id(config.data.train):
        front["datasets"] = [config.data.train]
    return {**front, "tags": list(dict.fromkeys(["da3po", "reinforcement-learning", "rlvr", config.algo.name]))}


def _public(path: str) -> str:
    """A hub id as it is; of a path of this machine only the last part."""
    return path if is_hub_id(path) else Path(path).name


def _summary(config: Config) -> list[tuple[str, object]]:
    algo, rollout, train = config.algo, config.rollout, config.train
    rows: list[tuple[str, object]] = [("algorithm", algo.name)]
    if algo.daa_lambda != 1:
        rows.append(("DAA lambda, tau", f"{algo.daa_lambda}, {algo.daa_tau}"))
    rows += [
        ("clip low, high", f"{algo.clip_low}, {algo.clip_high}"),
        ("loss aggregation", algo.aggregate),
        ("dynamic sampling", "yes" if algo.dynamic_sampling else "no"),
    ]
    if algo.kl_coef:
        rows.append(("KL coefficient", algo.kl_coef))
    return [
        *rows,
        ("training data", _public(config.data.train)),
        ("prompt template", config.data.template),
        ("prompts x responses per step", f"{rollout.prompts} x {rollout.group_size}"),
        ("longest response", f"{rollout.max_tokens} tokens"),
        ("sampling temperature", rollout.temperature),
        ("learning rate", train.lr),
        ("weight decay", train.weight_decay),
        ("prompts per update", train.mini_batch_prompts),
        ("training precision", config.model.dtype),
        ("seed", config.run.seed),
    ]


def _shown(metrics: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Validation first, then the basics of training; numbers only."""
    names = [name for name in metrics if name.startswith("val/")] + [name for name in _BASICS if name in metrics]
    return [(name, f"{metrics[name]:.6g}") for name in names if isinstance(metrics[name], int | float)]


def _table(head: tuple[str, str], rows: list[tuple[str, Any]]) -> list[str]:
    return [f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
