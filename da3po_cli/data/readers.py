"""Records out of .parquet, .jsonl and .json files and the Hugging Face hub, as plain Python dicts."""

from __future__ import annotations

import codecs
import glob
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3po_cli.data.spec import FILE_SUFFIXES, FORMS, Source, Split
from da3po_cli.errors import EnvironmentProblem, UsageError

Record = dict[str, Any]

_BATCH = 4096  # rows that are turned into Python objects at a time


@dataclass(frozen=True)
class Table:
    """A source that has been opened.

    Attributes:
        columns: (name, type) of each where the format has a schema; None where every row names its own.
        read: the records in order. Of a format with a schema only the given columns are read, None for all.
    """

    columns: tuple[tuple[str, str], ...] | None
    read: Callable[[Sequence[str] | None], Iterable[Record]]


def open_table(source: Source, split: Split) -> Table:
    """The rows of a file or hub data set; `split` chooses among those of the hub.

    Raises:
        UsageError: no such file, a format that is not known, a broken file, or no such split.
        EnvironmentProblem: a hub id without the package `datasets`, or without the network.
    """
    if not source.is_local:
        return _hub(source.name, split)
    return _joined([_open(file) for file in local_files(source, split)], source)


def local_files(source: Source, split: Split = "train") -> list[Path]:
    """The files of a local source, in the order of their names: itself, what a pattern finds, or those of a folder.

    Of a folder that has files of several splits, those that `split` means; what `datasets` saved with `save_to_disk`
    is such a folder as well.

    Raises:
        UsageError: there are none.
    """
    path = source.path
    if path.is_dir():
        saved = any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))
        suffixes = (".arrow",) if saved else FILE_SUFFIXES
        found = sorted(file for file in path.rglob("*") if file.suffix in suffixes and file.is_file())
        wanted = ("train",) if split == "train" else ("test", "validation", "val")
        meant = [file for file in found if any(word in str(file.relative_to(path)).lower() for word in wanted)]
        found = meant or found
        what = f"no data file in the folder {path}: it has no {', '.join(suffixes)}"
    elif source.is_pattern:
        found = sorted(Path(file) for file in glob.glob(str(path), recursive=True))
        what = f"no data file is named like {path}"
    else:
        found = [path] if path.is_file() else []
        what = f"no such data file: {path}"
    if not found:
        raise UsageError(what, hint=f"give {FORMS}", where="data")
    return found


def _open(path: Path) -> Table:
    readers = {".arrow": _arrow, ".parquet": _parquet, ".jsonl": _json_lines, ".json": _json}
    if path.suffix not in readers:
        raise UsageError(
            f"{path}: unknown data format {path.suffix or '(no extension)'}",
            hint=f"use one of {', '.join(FILE_SUFFIXES)}",
            where="data",
        )
    return readers[path.suffix](path)


def _joined(tables: Sequence[Table], source: Source) -> Table:
    """The tables of one data set as one."""
    if len(tables) == 1:
        return tables[0]
    schemas = {None if table.columns is None else tuple(name for name, _ in table.columns) for table in tables}
    if len(schemas) > 1:
        raise UsageError(
            f"the files of {source.name} have different columns", hint="name those that belong together", where="data"
        )
    return Table(tables[0].columns, lambda columns: itertools.chain.from_iterable(one.read(columns) for one in tables))


def numbered(records: Iterable[Record], source: Source) -> Iterator[tuple[int, Record]]:
    """The records of the source's slice, each with its row number in the whole file."""
    start, stop = source.start, source.stop
    if (start or 0) >= 0 and (stop or 0) >= 0:
        return itertools.islice(enumerate(records), start, stop)
    return iter(list(enumerate(records))[start:stop])


def _parquet(path: Path) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(
            f"not a readable Parquet file: {_first_line(error)}", hint="download or write it again", where=str(path)
        ) from error

    def read(columns: Sequence[str] | None) -> Iterator[Record]:
        try:
            for batch in file.iter_batches(_BATCH, columns=None if columns is None else list(columns)):
                yield from batch.to_pylist()
        except (pa.ArrowInvalid, OSError) as error:
            raise UsageError(f"broken Parquet file: {_first_line(error)}", where=str(path)) from error

    return Table(tuple((field.name, str(field.type)) for field in file.schema_arrow), read)


def _arrow(path: Path) -> Table:
    """A part of what `datasets` has saved: an Arrow stream."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            schema = stream.schema
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(
            f"not a readable Arrow file: {_first_line(error)}", hint="save it again", where=str(path)
        ) from error

    def read(columns: Sequence[str] | None) -> Iterator[Record]:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                yield from (batch if columns is None else batch.select(list(columns))).to_pylist()

    return Table(tuple((field.name, str(field.type)) for field in schema), read)


def _json_lines(path: Path) -> Table:
    def read(_: Sequence[str] | None) -> Iterator[Record]:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _object(_parse_json(line, f"{path}:{number}"), f"{path}:{number}")

    return Table(None, read)


def _json(path: Path) -> Table:
    def read(_: Sequence[str] | None) -> Iterator[Record]:
        content = path.read_bytes()
        if _is_json_lines(content):  # as the hub's files of this name often are
            yield from _json_lines(path).read(None)
            return
        records = _parse_json(content, str(path), "a list of rows")
        if not isinstance(records, list):
            raise UsageError(
                f"{path} holds {type(records).__name__}, not a list of rows", hint="use .jsonl", where="data"
            )
        for index, record in enumerate(records):
            yield _object(record, f"{path}, row {index}")

    return Table(None, read)


def _object(record: Any, place: str) -> Record:
    if not isinstance(record, dict):
        raise UsageError(
            f"a row is {type(record).__name__}, not an object with columns",
            hint='write each row as {"problem": ..., "answer": ...}',
            where=place,
        )
    return record


def _is_json_lines(content: bytes) -> bool:
    """Whether a text is an object per line, and not one JSON value: its first line is an object."""
    first = content.removeprefix(codecs.BOM_UTF8).lstrip().partition(b"\n")[0]
    if not first.startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _parse_json(text: bytes, place: str, what: str = "one JSON object per line") -> Any:
    """JSON whose numbers stay the text that they were: a gold of 0.10 is not 0.1, and 10^5000 has no float."""
    try:
        return json.loads(text.decode("utf-8-sig"), parse_float=str, parse_int=str)
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8: {error}", hint="save the file as UTF-8", where=place) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not valid JSON: {error}", hint=what, where=place) from error


def _hub(name: str, split: Split) -> Table:
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise EnvironmentProblem(
            f"{name!r} is no file, and reading it from the Hugging Face hub needs the package `datasets`",
            hint="give an existing .parquet or .jsonl file, or `pip install datasets`",
            where="data",
        ) from error
    repository, _, configuration = name.partition(":")
    try:
        splits = datasets.load_dataset(repository, configuration or None)
    except Exception as error:  # its own errors, those of the network, and those of every file format
        raise EnvironmentProblem(
            f"cannot load {name!r} from the Hugging Face hub: {_first_line(error)}",
            hint="check the id (ORG/NAME, or ORG/NAME:CONFIGURATION) and the network, or give a file",
            where="data",
        ) from error
    dataset = splits[_choose_split(list(splits), split, name)].with_format("arrow")

    def read(columns: Sequence[str] | None) -> Iterator[Record]:
        chosen = dataset if columns is None else dataset.select_columns(list(columns))
        for batch in chosen.iter(_BATCH):
            yield from batch.to_pylist()

    return Table(tuple((field.name, str(field.type)) for field in dataset.features.arrow_schema), read)


def _choose_split(names: list[str], split: Split, dataset: str) -> str:
    """The split for training or for validation; the only one where there is just one."""
    for wanted in ("train",) if split == "train" else ("test", "validation"):
        if wanted in names:
            return wanted
    if len(names) == 1:
        return names[0]
    raise UsageError(
        f"{dataset!r} has no split for {split}; it has {', '.join(names)}",
        hint="save the split that you mean as .parquet and give that file",
        where=f"data.{split}",
    )


def _first_line(error: BaseException) -> str:
    """What an error says in one line, with its cause, which is often the better half."""
    lines = [(str(one).splitlines() or [type(one).__name__])[0] for one in (error, error.__cause__) if one is not None]
    return ": ".join(dict.fromkeys(lines))
