"""The problems of a benchmark: from --bench-dir, from a file of its own, or from the Hugging Face hub."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from da3po_cli.config.paths import expanded
from da3po_cli.data.formats import Message, load_rows
from da3po_cli.data.spec import FILE_SUFFIXES
from da3po_cli.errors import EnvironmentProblem, UsageError
from da3po_cli.evals.registry import Benchmark

BENCH_DIR = "DA3PO_BENCH_DIR"


@dataclass(frozen=True)
class Problem:
    """One problem with its gold answer."""

    id: str
    """Hash of the text that asks it, so that two evaluations can be paired whatever files they read."""
    index: int
    """Row in its file."""
    messages: tuple[Message, ...]
    answer: str
    source: str
    """The row's data source; it chooses the grader where a run grades by source."""


@dataclass(frozen=True)
class Problems:
    """The problems of one benchmark.

    Attributes:
        place: where they come from.
        total: usable problems there are, before --limit.
        warnings: what a reader of the numbers must know about the data.
    """

    problems: tuple[Problem, ...]
    place: str
    total: int
    warnings: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """Hash of all problems and answers in order."""
        digest = blake2b(digest_size=16)
        for problem in self.problems:
            digest.update(f"{problem.id},{len(problem.answer)},{problem.answer};".encode())
        return digest.hexdigest()


def load_problems(bench: Benchmark, bench_dir: Path | None = None, limit: int | None = None) -> Problems:
    """The first `limit` problems of a benchmark.

    Args:
        bench_dir: directory of benchmark files; None reads DA3PO_BENCH_DIR, and without it the hub.

    Raises:
        UsageError: bench_dir has no file for it, or one that cannot be read; or its path is of several files.
        EnvironmentProblem: the hub cannot be reached; the message says what to download and where to put it.
    """
    place = find_file(bench, bench_dir)
    rows = load_rows(place, "validation", bench.problem_key, bench.answer_key)
    if len(rows.sources) > 1:  # a problem is known by its row
        raise UsageError(
            f"the benchmark {bench.name} is in {len(rows.sources)} files: {place}",
            where="--bench",
            hint="make it one file, or a benchmark of each",
        )
    problems = tuple(
        Problem(_problem_id(row.messages), row.index, row.messages, row.answer, row.source) for row in rows.rows
    )
    warnings: list[str] = []
    if bench.problems is not None and len(problems) != bench.problems:
        warnings.append(f"{len(problems)} problems in {place}, and {bench.title} has {bench.problems}")
    if rows.dropped.counts:
        warnings.append(f"rows of {place} left out: {rows.dropped}")
    if not problems:
        raise UsageError(f"no usable problem in {place}; of {rows.read} rows left out: {rows.dropped}", where="--bench")
    return Problems(problems[:limit], place, len(problems), tuple(warnings))


def _problem_id(messages: tuple[Message, ...]) -> str:
    text = "\n".join(f"{message['role']}:{' '.join(message['content'].split())}" for message in messages)
    return blake2b(text.encode(), digest_size=6).hexdigest()


def find_file(bench: Benchmark, bench_dir: Path | None = None, env: Mapping[str, str] = os.environ) -> str:
    """The data file of a benchmark (or `arith`), downloaded from the hub into the cache where it has to be."""
    if bench.path is not None:
        return bench.path
    if bench_dir is None and env.get(BENCH_DIR):
        bench_dir = Path(env[BENCH_DIR])
    if bench_dir is None:
        return str(_from_hub(bench, env))
    directory = expanded(bench_dir)
    for stem in (*bench.file, bench.name):
        for suffix in FILE_SUFFIXES:
            if (directory / f"{stem}{suffix}").is_file():
                return str(directory / f"{stem}{suffix}")
    raise UsageError(
        f"no file for the benchmark {bench.name} in {directory}",
        where="--bench-dir",
        hint=_how_to_get(bench, directory),
    )


def _how_to_get(bench: Benchmark, directory: Path) -> str:
    """What to download and where to put it."""
    target = directory / f"{(*bench.file, bench.name)[0]}.jsonl"
    columns = f"{bench.problem_key or 'problem'} and {bench.answer_key or 'answer'}"
    count = f"{bench.problems} rows" if bench.problems else "its rows"
    if bench.hub is None:
        return f"save {count} with the columns {columns} as {target} (or .parquet)"
    part = f", configuration {bench.config}" if bench.config else ""
    return (
        f"download the data set {bench.hub} of the Hugging Face hub (split {bench.split}{part}, revision "
        f"{bench.revision}) and save {count} with the columns {columns} as {target} (or .parquet)"
    )


def _from_hub(bench: Benchmark, env: Mapping[str, str]) -> Path:
    """The benchmark's rows as a Parquet file in the cache."""
    home = expanded(env.get("DA3PO_HOME") or "~/.cache/da3po")
    named = "-".join(filter(None, (bench.hub, bench.config, bench.split, bench.revision))).replace("/", "--")
    cached = home / "benchmarks" / f"{named}.parquet"
    if cached.is_file():
        return cached
    hint = f"{_how_to_get(bench, Path('DIR'))}; then --bench-dir DIR, or {BENCH_DIR}=DIR"
    if bench.hub is None:
        raise UsageError(f"the benchmark {bench.name} is not on the hub", where="--bench-dir", hint=hint)
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise EnvironmentProblem(
            f"reading {bench.name} from the Hugging Face hub needs the package `datasets`, and there is no --bench-dir",
            where=f"--bench {bench.name}",
            hint=f"pip install datasets; or {hint}",
        ) from error
    try:
        rows = datasets.load_dataset(bench.hub, bench.config, split=bench.split, revision=bench.revision)
        cached.parent.mkdir(parents=True, exist_ok=True)
        fresh = cached.with_name(f".{os.getpid()}-{cached.name}")
        rows.to_parquet(fresh)
        fresh.replace(cached)
    except Exception as error:  # its own errors, those of the network, and those of every file format
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise EnvironmentProblem(
            f"cannot load {bench.hub} from the Hugging Face hub: {reason}", where=f"--bench {bench.name}", hint=hint
        ) from error
    return cached
