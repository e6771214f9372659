"""What a data set holds: the numbers behind `da3po data check`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from da3po_cli.config.schema import DataConfig, RewardConfig
from da3po_cli.data.formats import Columns, load_rows, open_source, plain
from da3po_cli.data.prompts import fitting, tokenise
from da3po_cli.data.readers import numbered
from da3po_cli.data.spec import Source
from da3po_cli.data.verify import drop_unverifiable, verifier
from da3po_cli.rewards.pool.pool import GradingPool
from da3po_cli.rewards.registry import sources as rewards_by_source

_JSON_TYPES = {str: "text or number", dict: "object", list: "list", bool: "true or false"}  # numbers are kept as text

BINS = 20  # of the histogram, at most


@dataclass
class Column:
    """One column of a file: `missing` counts None, NaN and empty text; `example` is the first value that is there."""

    name: str
    type: str
    missing: int = 0
    example: str = ""


@dataclass
class File:
    """One source of a spec."""

    name: str
    rows: int
    columns: list[Column]
    prompt_from: dict[str, int]  # column -> rows that took their prompt from it
    answer_from: dict[str, int]


@dataclass
class Lengths:
    """Prompt lengths in tokens, after the template, of all rows with a gold that verifies."""

    minimum: int
    median: int
    p95: int
    p99: int
    maximum: int
    histogram: list[tuple[int, int, int]]  # first and last length of the bin, prompts in it


@dataclass
class Report:
    """The state of a data set; `usable` prompts are what training would draw from."""

    spec: str
    rows: int
    usable: int
    dropped: dict[str, int]  # by reason, see `Dropped`
    examples: dict[str, list[str]]
    files: list[File]
    data_sources: dict[str, int]  # of the usable rows
    rewards: dict[str, str]  # data source -> the reward that grades it
    unknown_sources: list[str]  # in the data, and not in reward.by_source where that is set
    unused_sources: list[str]  # in reward.by_source, and not in the data
    lengths: Lengths | None = field(default=None)


def check_data(data: DataConfig, reward: RewardConfig, tokenizer: Any | None) -> Report:
    """Read `data.train` as training would, and count. Without a tokenizer nothing is said about lengths.

    Raises:
        UsageError, EnvironmentProblem: as `open_stream`, but for data of which no row can be used.
    """
    rows = load_rows(data.train, "train", data.prompt_key, data.answer_key)
    with ExitStack() as pools:
        drop_unverifiable(rows, verifier(reward, lambda name: pools.enter_context(_pool(name, reward))))
    kept, lengths = rows.rows, None
    if tokenizer is not None and rows.rows:
        prompts = tokenise(rows, data, tokenizer)
        lengths = measure([len(ids) for _, _, ids in prompts])
        kept = [row for row, _, _ in fitting(prompts, rows, data, tokenizer)]
    by_source = rewards_by_source(reward.by_source)
    found = Counter(row.source for row in kept)
    return Report(
        spec=data.train,
        rows=rows.read,
        usable=len(kept),
        dropped=rows.dropped.counts,
        examples=rows.dropped.examples,
        files=[_file(source, columns) for source, columns in zip(rows.sources, rows.columns, strict=True)],
        data_sources=dict(found.most_common()),
        rewards={source: by_source.get(source, reward.name) for source in found},
        unknown_sources=[source for source in found if by_source and source not in by_source],
        unused_sources=[source for source in by_source if source not in found],
        lengths=lengths,
    )


def _pool(name: str, reward: RewardConfig) -> GradingPool:
    return GradingPool(name, workers=reward.workers, deadline_s=reward.deadline_s)


def _file(source: Source, used: Columns) -> File:
    table = open_source(source, "train")
    columns = {name: Column(name, kind) for name, kind in table.columns or ()}
    rows = 0
    for _, record in numbered(table.read(None), source):
        for name in record:
            columns.setdefault(name, Column(name, "", missing=rows))  # a new one was missing in all rows before
        for name, column in columns.items():
            _count(column, plain(record.get(name)), typed=table.columns is not None)
        rows += 1
    return File(source.name, rows, list(columns.values()), dict(used.used["prompt"]), dict(used.used["answer"]))


def _count(column: Column, value: Any, *, typed: bool) -> None:
    if value is None or value == "":
        column.missing += 1
        return
    kind = _JSON_TYPES.get(type(value), type(value).__name__)
    if not typed and kind not in column.type.split(", "):
        column.type = ", ".join(filter(None, (column.type, kind)))
    column.example = column.example or str(value)


def measure(lengths: Iterable[int]) -> Lengths:
    """Quantiles (the smallest length with at least that share at or below it) and a histogram with round bins."""
    ordered = sorted(lengths)

    def quantile(share: float) -> int:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    width = _round_width(ordered[0], ordered[-1])
    bins = Counter(length // width for length in ordered)
    histogram = [(n * width, n * width + width - 1, bins[n]) for n in range(min(bins), max(bins) + 1)]
    return Lengths(ordered[0], quantile(0.5), quantile(0.95), quantile(0.99), ordered[-1], histogram)


def _round_width(low: int, high: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50 ... that covers low..high with at most BINS bins."""
    power = 1
    while True:
        for width in (power, 2 * power, 5 * power):
            if high // width - low // width < BINS:
                return width
        power *= 10
