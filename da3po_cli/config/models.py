"""What the checks need to know of a model, read from its config.json with plain JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from da3po_cli.config.paths import expanded
from da3po_cli.errors import UsageError

SUPPORTED_ARCHITECTURES = ("Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM")
DEMO_MODEL = Path(__file__).resolve().parent.parent / "demo_model"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class ModelFacts:
    """The numbers of a model that a layout must fit, and those that its size follows from.

    Attributes:
        directory: where config.json is; None for a hub model of which da3po knows the numbers only.
        hidden, vocab: None where config.json does not say; a plan needs them, the checks do not.
        head_dim: config.json's own, else transformers' default.
        tied: the output layer is the embedding.
    """

    architecture: str
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    max_positions: int | None
    directory: Path | None
    hidden: int | None = None
    head_dim: int | None = None
    vocab: int | None = None
    tied: bool = False


def is_hub_id(path: str) -> bool:
    """True for `org/name`, unless a directory of that name is there."""
    return _HUB_ID.fullmatch(path) is not None and not Path(path).exists()


def _cached_snapshot(hub_id: str, env: Mapping[str, str]) -> Path | None:
    """The snapshot of a hub id in the Hugging Face cache, or None."""
    home = expanded(env.get("HF_HOME", "~/.cache/huggingface"))
    hub = expanded(env["HF_HUB_CACHE"]) if "HF_HUB_CACHE" in env else home / "hub"
    repository = hub / f"models--{hub_id.replace('/', '--')}"
    try:
        commit = (repository / "refs" / "main").read_text().strip()
    except OSError:
        return None
    snapshot = repository / "snapshots" / commit
    return snapshot if (snapshot / "config.json").is_file() else None


def model_directory(path: str, env: Mapping[str, str] = os.environ) -> Path | None:
    """The local directory that `model.path` names: the shipped demo, a directory, or a cached hub snapshot.

    Returns None for a hub id that has yet to be downloaded.

    Raises:
        UsageError: there is no such directory, and the text is no hub id either.
    """
    if path == "demo":
        if not (DEMO_MODEL / "config.json").is_file():
            raise UsageError(
                f"the demo model is missing from the package: {DEMO_MODEL}",
                where="model.path",
                hint="rebuild it with scripts/make_demo_model.py, or reinstall da3po",
            )
        return DEMO_MODEL
    directory = expanded(path)
    if path and directory.is_dir():
        return directory
    if is_hub_id(path):
        return _cached_snapshot(path, env)
    raise UsageError(
        f"model directory not found: {path!r}" if path else "no model given",
        where="model.path",
        hint="--model DIR with a Hugging Face checkpoint, a hub id such as Qwen/Qwen3-4B-Base, or demo",
    )


def model_facts(path: str, env: Mapping[str, str] = os.environ) -> ModelFacts | None:
    """Facts of the model that `model.path` names; None for a hub id that has yet to be downloaded.

    Raises:
        UsageError: no such directory, no readable config.json in it, or an architecture that da3po cannot train.
    """
    directory = model_directory(path, env)
    if directory is None:
        return None
    file = directory / "config.json"
    try:
        loaded: object = json.loads(file.read_text())
    except FileNotFoundError:
        raise UsageError(
            f"no config.json in the model directory {directory}",
            where="model.path",
            hint="--model must name a Hugging Face checkpoint: config.json, tokenizer and *.safetensors",
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read {file}: {error}", where="model.path", hint="download or export the checkpoint again"
        ) from None
    if not isinstance(loaded, dict):
        raise UsageError(f"{file} holds no JSON object", where="model.path", hint="download the checkpoint again")
    fields = cast("dict[str, Any]", loaded)
    _check_weights(fields, directory)
    return facts_from(fields, directory)


def _check_weights(fields: Mapping[str, Any], directory: Path) -> None:
    """What makes weights of no use here, and shows before anything heavy loads. Raises UsageError."""
    quantised = fields.get("quantization_config")
    if quantised:
        how = cast("dict[str, Any]", quantised).get("quant_method") if isinstance(quantised, dict) else None
        raise UsageError(
            f"the weights of {directory} are quantised ({how or 'quantization_config in config.json'})",
            where="model.path",
            hint="the checkpoint in bfloat16 or float32; fp8.format and rollout.quantization make FP8 of it",
        )
    others = sorted(directory.glob("pytorch_model*.bin"))
    if others and not any(directory.glob("*.safetensors")):
        raise UsageError(
            f"{directory} has its weights in {others[0].name}, and no *.safetensors",
            where="model.path",
            hint="load it with transformers and save it again: save_pretrained writes safetensors",
        )


def facts_from(raw: Mapping[str, Any], directory: Path | None = None, where: str | None = None) -> ModelFacts:
    """Facts from the fields of a config.json.

    Args:
        directory: that holds it.
        where: what an error names in its place.

    Raises:
        UsageError: an architecture that da3po cannot train, or a field that is missing.
    """
    where = where or str(directory / "config.json" if directory else "config.json")
    architectures = cast("list[str]", raw.get("architectures") or ["(none)"])
    if architectures[0] not in SUPPORTED_ARCHITECTURES:
        raise UsageError(
            f"unsupported architecture {architectures[0]} in {where}",
            where="model.path",
            hint=f"--model with one of {', '.join(SUPPORTED_ARCHITECTURES)}",
        )
    try:
        heads = int(raw["num_attention_heads"])
        positions, hidden, head_dim = (raw.get(key) for key in ("max_position_embeddings", "hidden_size", "head_dim"))
        return ModelFacts(
            architecture=architectures[0],
            layers=int(raw["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(raw.get("num_key_value_heads") or heads),
            intermediate=int(raw["intermediate_size"]),
            max_positions=None if positions is None else int(positions),
            directory=directory,
            hidden=None if hidden is None else int(hidden),
            head_dim=_head_dim(architectures[0], head_dim, hidden, heads),
            vocab=None if raw.get("vocab_size") is None else int(raw["vocab_size"]),
            tied=bool(raw.get("tie_word_embeddings", False)),
        )
    except KeyError as error:
        raise UsageError(
            f"{where} lacks the key {error}",
            where="model.path",
            hint="download the checkpoint again",
        ) from None


def _head_dim(architecture: str, given: Any, hidden: Any, heads: int) -> int | None:
    """The size of an attention head, with transformers' defaults."""
    if given:
        return int(given)
    if architecture == "Qwen3ForCausalLM":
        return 128
    return None if hidden is None else int(hidden) // heads
