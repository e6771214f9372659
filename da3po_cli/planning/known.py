"""The numbers of a model: from its config.json where that is here, else from a table of well-known models."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from da3po_cli.config.models import ModelFacts, facts_from, model_facts

_TABLE = Path(__file__).with_name("known_models.yaml")


@cache
def known_models() -> dict[str, dict[str, Any]]:
    """Hub id -> fields of config.json."""
    import yaml

    entries: dict[str, dict[str, Any]] = yaml.load(_TABLE.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {name: {**entries.get(entry.get("like", ""), {}), **entry} for name, entry in entries.items()}


def planned_facts(path: str) -> tuple[ModelFacts | None, str]:
    """(facts, where they come from); None for a hub model that is neither in the cache nor in the table.

    Raises:
        UsageError: see `model_facts`.
    """
    facts = model_facts(path)
    if facts is not None:
        return facts, str((facts.directory or Path()) / "config.json")
    entry = known_models().get(path)
    if entry is None:
        return None, ""
    return facts_from(entry, where=f"da3po's table of models, {path}"), "da3po's table of models"
