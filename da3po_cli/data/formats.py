"""Rows of problems from .parquet and .jsonl files and from the Hugging Face hub, in the schemas that are in use.

verl's schema: `prompt` (a list of messages), `reward_model.ground_truth`, `data_source`, `extra_info`. Plain schemas: a
text column and an answer column under one of the usual names. Golds stay strings: an integer of 20 digits that goes
through a float is a different integer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from da3po_cli.errors import EnvironmentProblem, UsageError

PROMPT_KEYS = ("prompt", "problem", "question")
ANSWER_KEYS = ("answer", "ground_truth", "solution_answer", "final_answer", "expected_answer")
FILE_SUFFIXES = (".parquet", ".jsonl", ".json")

Message = dict[str, str]


@dataclass(frozen=True)
class Row:
    """One problem: the messages that ask it, its gold answer, and where it comes from."""

    messages: tuple[Message, ...]
    answer: str
    source: str
    index: int  # of the row in its file, before any drop


@dataclass
class Rows:
    """The rows that can be used, in file order, and how many were dropped for which reason."""

    rows: list[Row]
    dropped: dict[str, int] = field(default_factory=dict)


def load_rows(spec: str, split: str, prompt_key: str | None = None, answer_key: str | None = None) -> Rows:
    """The different problems of `spec`: a .parquet, .jsonl or .json file, or a dataset id of the Hugging Face hub.

    A problem that comes again with the same answer is kept once (`duplicate`). Of one that comes with two answers all
    rows are dropped (`conflict`), for at most one is right. A row without a prompt or a gold counts as `empty`.

    Args:
        split: of a hub dataset; a file has none.
        prompt_key, answer_key: columns, where the usual names do not fit.

    Raises:
        UsageError: no such file, an unknown form, or columns that are not there.
        EnvironmentProblem: a hub id without the package `datasets`.
    """
    path = Path(spec).expanduser()
    if path.suffix in FILE_SUFFIXES or path.exists():
        records = _read_file(path)
        default_source = path.stem
    else:
        records = _read_hub(spec, split)
        default_source = spec
    return _select(_parse(records, spec, default_source, prompt_key, answer_key))


def _read_file(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        raise UsageError(f"no such data file: {path}", hint="give an existing .parquet or .jsonl file", where="data")
    if path.suffix == ".parquet":
        import pyarrow.parquet as parquet

        for batch in parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    elif path.suffix == ".jsonl":
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _parse_json(line, f"{path}:{number}")
    elif path.suffix == ".json":
        records = _parse_json(path.read_text(encoding="utf-8"), str(path))
        if not isinstance(records, list):
            raise UsageError(
                f"{path} holds {type(records).__name__}, not a list of rows", hint="use .jsonl", where="data"
            )
        yield from records
    else:
        raise UsageError(
            f"{path}: unknown data format {path.suffix or '(no extension)'}",
            hint=f"use one of {', '.join(FILE_SUFFIXES)}",
            where="data",
        )


def _parse_json(text: str, place: str) -> Any:
    """JSON whose decimals stay the text that they were, so that a gold of 0.10 does not become 0.1."""
    try:
        return json.loads(text, parse_float=str)
    except json.JSONDecodeError as error:
        raise UsageError(f"not valid JSON: {error}", hint="one JSON object per line", where=place) from error


def _read_hub(spec: str, split: str) -> Iterator[dict[str, Any]]:
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise EnvironmentProblem(
            f"{spec!r} is no file, and reading it from the Hugging Face hub needs the package `datasets`",
            hint="give an existing .parquet or .jsonl file, or `pip install datasets`",
            where="data",
        ) from error
    yield from datasets.load_dataset(spec, split=split)


def _parse(
    records: Iterable[dict[str, Any]], spec: str, default_source: str, prompt_key: str | None, answer_key: str | None
) -> Iterator[Row | None]:
    """Rows in order; None for one without a prompt or a gold."""
    for index, record in enumerate(records):
        if not isinstance(record, dict):
            raise UsageError(f"row {index} is {type(record).__name__}, not an object with columns", where=spec)
        prompt = record[_column(record, prompt_key, PROMPT_KEYS, "prompt", spec)]
        gold = _gold_text(_gold(record, answer_key, spec), f"{spec}, row {index}")
        messages = _messages(prompt, f"{spec}, row {index}")
        if not gold or not messages:
            yield None
            continue
        yield Row(messages, gold, str(record.get("data_source") or default_source), index)


def _column(record: dict[str, Any], key: str | None, usual: tuple[str, ...], what: str, spec: str) -> str:
    names = (key,) if key else usual
    for name in names:
        if name in record:
            return name
    raise UsageError(
        f"no {what} column ({', '.join(names)}); found: {', '.join(map(str, record)) or 'none'}",
        hint=f"set data.{what}_key=COLUMN",
        where=spec,
    )


def _gold(record: dict[str, Any], key: str | None, spec: str) -> Any:
    reward_model = record.get("reward_model")
    if key is None and isinstance(reward_model, dict) and "ground_truth" in reward_model:
        return reward_model["ground_truth"]
    return record[_column(record, key, ANSWER_KEYS, "answer", spec)]


def _gold_text(gold: Any, place: str) -> str:
    """The gold as text. A list of one is that one; GSM8K's `#### 5` after a worked solution is 5."""
    if isinstance(gold, list) and len(gold) == 1:
        gold = gold[0]
    if gold is None:
        return ""
    if isinstance(gold, list | dict):
        raise UsageError(f"a gold must be one answer, not {gold!r}", hint="give one answer per row", where=place)
    return str(gold).rpartition("####")[2].strip()


def _messages(prompt: Any, place: str) -> tuple[Message, ...]:
    if prompt is None or isinstance(prompt, str):
        return ({"role": "user", "content": prompt},) if prompt and prompt.strip() else ()
    if isinstance(prompt, list) and all(
        isinstance(item, dict) and "role" in item and "content" in item for item in prompt
    ):
        return tuple({"role": item["role"], "content": item["content"]} for item in prompt)
    raise UsageError(
        f"a prompt must be text or a list of messages with role and content, not {str(prompt)[:80]!r}", where=place
    )


def _select(parsed: Iterable[Row | None]) -> Rows:
    """Drop what is empty, what is there already, and what has two golds."""
    by_prompt: dict[str, list[Row]] = {}
    empty = 0
    for row in parsed:
        if row is None:
            empty += 1
        else:
            by_prompt.setdefault(json.dumps(row.messages, sort_keys=True), []).append(row)
    kept: list[Row] = []
    dropped = {"empty": empty, "duplicate": 0, "conflict": 0}
    for same in by_prompt.values():
        if len({row.answer for row in same}) > 1:
            dropped["conflict"] += len(same)
        else:
            kept.append(same[0])
            dropped["duplicate"] += len(same) - 1
    return Rows(kept, dropped)
