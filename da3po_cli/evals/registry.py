"""The benchmarks that `--bench` can name: entries of configs/benchmarks.yaml and of the user's own files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import yaml

from da3po_cli.config.paths import expanded
from da3po_cli.config.presets import benchmarks_file
from da3po_cli.data.spec import ARITH, FILE_SUFFIXES, JINJA_SUFFIXES, TEMPLATES
from da3po_cli.errors import UsageError

ALL = "all"
METRICS = ("avg", "pass", "maj")
INSTRUCTIONS = ("boxed", "none")


@dataclass(frozen=True)
class Benchmark:
    """One entry; the comment at the top of configs/benchmarks.yaml says what the fields mean."""

    name: str
    title: str = ""
    problems: int | None = None
    hub: str | None = None
    config: str | None = None
    split: str = "test"
    revision: str = "main"
    file: tuple[str, ...] = ()
    path: str | None = None
    problem_key: str | None = None
    answer_key: str | None = None
    reward: str | None = "math"
    """None: `reward.name` of the config."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    template: str | None = None
    instruction: str = "boxed"
    k: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    metrics: tuple[str, ...] = ("avg", "pass")
    all: bool = False

    @property
    def uid_prefix(self) -> str:
        """Start of its prompts' uids, on which the samples' seeds depend; `arith` has that of a run's validation."""
        return "validation" if self.path == ARITH else self.name


def load_registry(files: Sequence[Path] = ()) -> dict[str, Benchmark]:
    """The shipped benchmarks and those of `files`; of two with the same name the later one counts.

    Raises:
        UsageError: a file that cannot be read, or an entry with an unknown key or a wrong value.
    """
    found: dict[str, Benchmark] = {}
    for file in (benchmarks_file(), *files):
        found |= _read(file)
    return found


def choose(text: str, registry: Mapping[str, Benchmark]) -> list[Benchmark]:
    """The benchmarks of `--bench`: names with commas between, `all`, or data files.

    Raises:
        UsageError: none is named, a name that is neither in the registry nor a data file, or two files of one name.
    """
    chosen: dict[str, Benchmark] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part == ALL:
            found = [bench for bench in registry.values() if bench.all]
        elif part in registry:
            found = [registry[part]]
        elif Path(part).suffix in FILE_SUFFIXES:
            found = [data_file(part)]
        else:
            raise _unknown(part, registry)
        for bench in found:
            if chosen.setdefault(bench.name, bench) != bench:
                raise UsageError(
                    f"two benchmarks are called {bench.name!r}, one of them {part}",
                    where="--bench",
                    hint="rename a file, or evaluate them one after the other",
                )
    if not chosen:
        raise UsageError("no benchmark is named", where="--bench", hint=f"--bench {ALL}, or {', '.join(registry)}")
    return list(chosen.values())


def data_file(path: str) -> Benchmark:
    """A data file as a benchmark: graded and sampled as the run's config says."""
    name = Path(path).stem
    return Benchmark(name, title=name, path=path, reward=None, instruction="none")


def _unknown(name: str, registry: Mapping[str, Benchmark]) -> UsageError:
    by_file = {alias: bench.name for bench in registry.values() for alias in (*bench.file, bench.title.lower())}
    near = difflib.get_close_matches(name.lower(), [*registry, *by_file], n=1)
    guess = f"did you mean {by_file.get(near[0], near[0])}? " if near else ""
    return UsageError(
        f"no benchmark called {name!r}",
        where="--bench",
        hint=f"{guess}known: {', '.join(registry)}, {ALL}; --bench-file adds your own, and a data file may stand here",
    )


def _read(file: Path) -> dict[str, Benchmark]:
    try:
        content: object = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(
            f"cannot read the benchmarks in {file}: {error}", where="--bench-file", hint="see configs/benchmarks.yaml"
        ) from error
    entries = content.get("benchmarks") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(entries, dict) or not entries:
        raise UsageError(
            f"{file} has no benchmarks", where=str(file), hint="write benchmarks: with one entry per name below it"
        )
    defaults = cast("dict[str, Any]", content.get("defaults") or {})
    return {str(name): _entry(str(name), {**defaults, **(entry or {})}, file) for name, entry in entries.items()}


def _entry(name: str, values: dict[str, Any], file: Path) -> Benchmark:
    where = f"{file}, {name}"
    known = [item.name for item in fields(Benchmark) if item.name != "name"]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"unknown key {key!r}", where=where, hint=f"{guess}keys: {', '.join(known)}")
    values = {"title": name, **values}
    for key in ("file", "metrics"):
        if isinstance(values.get(key), str):
            values[key] = [values[key]]
        if key in values:
            values[key] = tuple(values[key] or ())
    for key in ("path", "template"):
        values[key] = _beside(values.get(key), file)
    bench = Benchmark(name, **values)
    for problem in _problems(bench):
        raise UsageError(problem, where=where, hint="the top of configs/benchmarks.yaml says what each key takes")
    return bench


def _beside(value: str | None, file: Path) -> str | None:
    """A path in an entry is relative to the file of the entry."""
    if value is None or Path(value).suffix not in (*FILE_SUFFIXES, *JINJA_SUFFIXES):
        return value
    return str(file.parent / expanded(value))


def _problems(bench: Benchmark) -> list[str]:
    """What is wrong with an entry."""
    found: list[str] = []
    for key, least in (("problems", 1), ("k", 1), ("max_tokens", 1), ("temperature", 0)):
        value = getattr(bench, key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < least):
            found.append(f"{key}={value!r} must be a number of at least {least}")
    if bench.top_p is not None and not (isinstance(bench.top_p, int | float) and 0 < bench.top_p <= 1):
        found.append(f"top_p={bench.top_p!r} is not in (0, 1]")
    if bench.instruction not in INSTRUCTIONS:
        found.append(f"instruction={bench.instruction!r} is not one of {', '.join(INSTRUCTIONS)}")
    if not bench.metrics or set(bench.metrics) - set(METRICS):
        found.append(f"metrics={list(bench.metrics)} are not among {', '.join(METRICS)}")
    if (
        bench.template is not None
        and bench.template not in TEMPLATES
        and Path(bench.template).suffix not in JINJA_SUFFIXES
    ):
        found.append(f"template={bench.template!r} is not one of {', '.join(TEMPLATES)} or a .jinja file")
    if bench.path is None and bench.hub is None and not bench.file:
        found.append("there is neither a path, nor a hub id, nor a file to look for in --bench-dir")
    return found
