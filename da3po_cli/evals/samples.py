"""Samples on disk while an evaluation runs: each rank appends to a file of its own, and a restart reads them all.

A line is one response: bench and index of the problem, uid, sample (its number), response, finish_reason, tokens, gold,
extracted, verdict, rule, seconds (of grading).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

Record = dict[str, Any]

MERGED = "samples.jsonl"


class SampleStore:
    """The samples of one evaluation below its directory."""

    def __init__(self, directory: Path) -> None:
        self._shards = directory / "partial"
        self.merged = directory / MERGED

    def records(self) -> Iterator[Record]:
        """All samples; a line that was cut off by the end of a process is none."""
        for file in [self.merged, *sorted(self._shards.glob("rank_*.jsonl"))]:
            if file.is_file():
                with file.open("rb") as lines:
                    yield from (json.loads(line) for line in lines if line.endswith(b"\n"))

    def done(self) -> set[tuple[str, str, int]]:
        """(bench, uid, sample) of all samples; two benchmarks may have prompts with the same uid."""
        return {(record["bench"], record["uid"], record["sample"]) for record in self.records()}

    def writer(self, rank: int) -> SampleWriter:
        """Appends to the file of a rank."""
        self._shards.mkdir(parents=True, exist_ok=True)
        return SampleWriter(self._shards / f"rank_{rank}.jsonl")

    def merge(self, records: Sequence[Record]) -> None:
        """Write all samples to one file in the given order, and drop the parts."""
        fresh = self.merged.with_suffix(".tmp")
        with fresh.open("w", encoding="utf-8") as file:
            file.writelines(_line(record) for record in records)
        fresh.replace(self.merged)
        self.drop_parts()

    def drop_parts(self) -> None:
        """Delete what the ranks have written."""
        for file in self._shards.glob("rank_*.jsonl"):
            file.unlink()
        if self._shards.is_dir():
            self._shards.rmdir()

    def clear(self) -> None:
        """Delete all samples."""
        self.merged.unlink(missing_ok=True)
        self.drop_parts()


class SampleWriter:
    """Appends whole lines, and has them on disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab")
        _cut_partial_line(path)

    def append(self, records: Sequence[Record]) -> None:
        self._file.write("".join(_line(record) for record in records).encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def _cut_partial_line(path: Path) -> None:
    """Drop what follows the last line break, so that the next line starts a line."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
