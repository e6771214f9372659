"""Where config files are: shipped presets by name, and files by path."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

from da3po_cli.config.paths import expanded
from da3po_cli.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent.parent
_BENCHMARKS = "benchmarks.yaml"  # the registry of `da3po eval`, which is no preset


def configs_directory() -> Path:
    """The shipped presets: inside the package in a wheel, beside it in a checkout."""
    packaged = _PACKAGE / "configs"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "configs"


def benchmarks_file() -> Path:
    """The shipped benchmarks; see da3po_cli.evals.registry."""
    return configs_directory() / _BENCHMARKS


def preset_names() -> list[str]:
    """Names that `--config` takes; files that start with `_` are parts of others."""
    files = (file for file in configs_directory().glob("*.yaml") if file.name != _BENCHMARKS)
    return sorted(file.stem for file in files if not file.name.startswith("_"))


def default_files(cuda: int, why: str, env: Mapping[str, str] = os.environ) -> tuple[list[str], str]:
    """The config files of a command without `--config`, and a phrase that says which: DA3PO_CONFIG, else a preset.

    Args:
        cuda: number of CUDA devices, which decides the preset.
        why: a phrase for that number.
    """
    given = env.get("DA3PO_CONFIG", "")
    named = [part.strip() for part in given.split(",") if part.strip()]
    if named:
        return named, f"DA3PO_CONFIG={given}"
    preset = "qwen3-4b" if cuda else "demo"
    return [preset], f"the preset {preset} ({why})"


def find_config(name: str, *, beside: Path | None = None) -> Path:
    """The file that `name` means: a path, or a shipped name. Inside `defaults:`, `beside` is looked into first.

    Raises:
        UsageError: neither; the hint holds the nearest shipped name.
    """
    given = expanded(name)
    candidates = [given] if beside is None else [beside / given, beside / f"{name}.yaml"]
    if given.name == name:  # no directory in it
        candidates.append(configs_directory() / f"{name}.yaml")
    if beside is None and given.suffix not in (".yaml", ".yml"):
        candidates.reverse()  # a bare word is a preset, even where a file of that name lies about
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    names = preset_names()
    near = difflib.get_close_matches(name, names, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise UsageError(
        f"no config called {name!r}: neither a file nor a shipped preset",
        where="--config" if beside is None else f"defaults of {beside}",
        hint=f"{guess}presets: {', '.join(names)}",
    )
