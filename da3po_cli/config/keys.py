"""The keys of the config, their types, and how one value is checked. All of it follows from the dataclasses."""

from __future__ import annotations

import difflib
import math
import types
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from da3po_cli.config.schema import Config
from da3po_cli.errors import UsageError

ALIASES = {"lambda": "algo.daa_lambda", "algo.lambda": "algo.daa_lambda", "data.reward": "reward.name"}
"""Other spellings of a key: `lambda` cannot be a field name in Python, and configs of 0.1 say data.reward."""
FLAGS = {
    "algo.name": "--algo",
    "algo.daa_lambda": "--lambda",
    "model.path": "--model",
    "data.train": "--dataset",
    "run.name": "--name",
    "run.steps": "--steps",
    "run.seed": "--seed",
}
"""Keys that have a flag of their own."""


RETIRED = {"algo.advantage": "it had one value, group, and chose nothing"}
"""Keys of earlier versions, and why they are no more: passed over in the config.yaml of a run, else an error."""


@cache
def sections() -> dict[str, type]:
    """Section name -> dataclass."""
    hints = get_type_hints(Config)
    return {field.name: hints[field.name] for field in fields(Config) if is_dataclass(hints[field.name])}


@cache
def key_types() -> dict[str, tuple[tuple[Any, ...], bool]]:
    """Dotted key -> (the types or literal values that it takes, whether it may be null)."""
    found: dict[str, tuple[tuple[Any, ...], bool]] = {}
    for section, kind in sections().items():
        for name, hint in get_type_hints(kind).items():
            union = get_origin(hint) in (Union, types.UnionType)
            options = get_args(hint) if union else (hint,)
            nullable = type(None) in options
            inner = next(option for option in options if option is not type(None))
            accepted = get_args(inner) if get_origin(inner) is Literal else (inner,)
            found[f"{section}.{name}"] = (accepted, nullable)
    return found


def nearest(key: str) -> str | None:
    """The known key that `key` was most likely meant to be."""
    known = list(key_types())
    leaf = key.rsplit(".", 1)[-1]
    same_leaf = [name for name in known if name.rsplit(".", 1)[-1] == leaf]
    if same_leaf:
        return (difflib.get_close_matches(key, same_leaf, n=1, cutoff=0.0) or same_leaf)[0]
    with_word = [name for name in known if leaf in name.rsplit(".", 1)[-1].split("_")]
    if len(with_word) == 1:
        return with_word[0]
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if close:
        return close[0]
    by_leaf = {name.rsplit(".", 1)[-1]: name for name in known} | {alias: alias for alias in ALIASES}
    return next((by_leaf[name] for name in difflib.get_close_matches(leaf, list(by_leaf), n=1, cutoff=0.7)), None)


def unknown_key(key: str, where: str, value: object) -> UsageError:
    """The error for a key that is not in the schema; tells a section from a misspelling."""
    if key in RETIRED:
        why = f"the config key {key!r} was removed: {RETIRED[key]}"
        return UsageError(why, where=where, hint="leave it out")
    if key in sections():
        names = [name for name in key_types() if name.startswith(f"{key}.")]
        main = f"{key}.name" if f"{key}.name" in names else f"{key}.path" if f"{key}.path" in names else names[0]
        return UsageError(f"{key} is a section, not a key", where=where, hint=f"write {main}={value}")
    guess = nearest(key)
    section = key.partition(".")[0]
    if guess:
        hint = f"did you mean {guess}?"
    elif section in sections():
        hint = (
            f"keys of {section}: {', '.join(n.partition('.')[2] for n in key_types() if n.startswith(section + '.'))}"
        )
    else:
        hint = f"sections: {', '.join(sections())}"
    return UsageError(f"unknown config key {key!r}", where=where, hint=hint)


def convert(key: str, value: Any, text: str | None) -> Any:
    """`value`, as YAML read it, made into what `key` takes; `text` is what the user wrote.

    Text is used for strings and choices, because YAML makes booleans of `on` and numbers of `1_000`.

    Raises:
        ValueError: with a phrase that says what is expected.
    """
    accepted, nullable = key_types()[key]
    if value is None:
        if nullable:
            return None
        raise ValueError(f"must be {_expected(accepted)}, not null")
    if text in ("None", "none") and nullable:
        raise ValueError("write null for no value")
    if isinstance(text, str) and "${" in text:
        return text  # an OmegaConf interpolation; checked once it is resolved
    if isinstance(value, (list, dict)):
        raise ValueError(f"must be {_expected(accepted)}, not a {type(cast(object, value)).__name__}")
    kind = accepted[0]
    if not isinstance(kind, type):  # the values of a Literal
        chosen = text if text is not None else value
        if chosen not in accepted:
            near = difflib.get_close_matches(str(chosen), [str(option) for option in accepted], n=1)
            raise ValueError(f"must be {_expected(accepted)}" + (f"; did you mean {near[0]}?" if near else ""))
        return chosen
    if kind is str:
        return text if text is not None else str(value)
    return _number(kind, value, accepted)


def _number(kind: type, value: Any, accepted: tuple[Any, ...]) -> bool | int | float:
    right: tuple[type, ...] = (int, float) if kind is float else (kind,)
    if not isinstance(value, right) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"must be {_expected(accepted)}")
    if kind is float:
        if not math.isfinite(value):
            raise ValueError("must be a finite number")
        return float(value)
    return value


def _expected(accepted: tuple[Any, ...]) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    if isinstance(accepted[0], type):
        return names[accepted[0]]
    return "one of " + ", ".join(str(option) for option in accepted)
