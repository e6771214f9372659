"""Rows of problems, in the column layouts that are in use.

verl's layout: `prompt` (a list of messages), `reward_model.ground_truth`, `data_source`, `extra_info`. Plain layouts: a
column of problems and one of answers under any of the usual names, or worked solutions with the answer in a box.
Golds stay text: an integer of 20 digits that goes through a float is a different integer.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from da3po_cli.data import arithmetic
from da3po_cli.data.readers import Record, Table, numbered, open_table
from da3po_cli.data.spec import ARITH, BUILT_IN, Source, Split, parse_spec
from da3po_cli.data.wraps import bare_problem
from da3po_cli.errors import UsageError

PROMPT_KEYS = ("prompt", "problem", "question", "messages")
SOLUTION_KEY = "solution"  # a worked solution: the answer is in its last box, or after GSM8K's ####
ANSWER_KEYS = (
    "reward_model.ground_truth",
    "answer",
    "ground_truth",
    "final_answer",
    "expected_answer",
    "solution_answer",
    "gold",
    "label",
    SOLUTION_KEY,
)
SOURCE_KEY = "data_source"

ARITH_TRAIN = 10_000
ARITH_VALIDATION = 256

FIRST_ROWS = 1000  # of a file without a schema, in which a prompt and an answer must come up
MAX_EXAMPLES = 20  # dropped rows that are spelt out, per reason

Message = dict[str, str]

_LIST = re.compile(r"""\s*\[\s*["']""")  # of texts: [1, 2] is an answer


@dataclass(frozen=True)
class Row:
    """One problem: the messages that ask it, its gold answer, and where it comes from."""

    messages: tuple[Message, ...]
    answer: str
    source: str
    index: int  # of the row in its file, before any slice or drop
    file: int = 0  # position of its file in the spec


@dataclass
class Dropped:
    """Rows left out, counted by reason, with the first few of each reason spelt out.

    Reasons: `empty` (no prompt or no gold), `malformed` (a prompt or gold that is no text), `duplicate` (the problem
    is there already), `conflict` (one problem, two golds), `unverifiable` (the gold does not verify against itself),
    `overlong` and `unknown_token` (the tokenizer has no token for a character).
    """

    counts: dict[str, int] = field(default_factory=dict[str, int])
    examples: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, reason: str, example: str = "", count: int = 1) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + count
        spelt_out = self.examples.setdefault(reason, [])
        if example and len(spelt_out) < MAX_EXAMPLES:
            spelt_out.append(example)

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {reason}" for reason, count in self.counts.items()) or "none"


class Columns:
    """Finds the problem and the gold of a record: in the column that is named, else in the first usual one filled."""

    def __init__(self, spec: str, prompt_key: str | None, answer_key: str | None) -> None:
        self._spec = spec
        self._keys = {
            "prompt": (prompt_key,) if prompt_key else PROMPT_KEYS,
            "answer": (answer_key,) if answer_key else ANSWER_KEYS,
        }
        self._seen: dict[str, None] = {}  # columns of all records so far, in order
        self.used = {what: Counter[str]() for what in self._keys}  # how many rows took it from which column

    def needs(self, column: str) -> bool:
        """Whether a column of this name is read at all."""
        keys = [SOURCE_KEY, *self._keys["prompt"], *self._keys["answer"]]
        return any(key == column or key.startswith(f"{column}.") for key in keys)

    def prompt(self, record: Record) -> Any:
        self._seen.update(dict.fromkeys(record))
        return self._first("prompt", record)[1]

    def gold(self, record: Record, place: str) -> str:
        key, value = self._first("answer", record)
        return gold_text(value, place, worked=key == SOLUTION_KEY)

    def _first(self, what: str, record: Record) -> tuple[str, Any]:
        for key in self._keys[what]:
            value = plain(_get(record, key))
            if value is not None and value not in ("", []):
                self.used[what][key] += 1
                return key, value
        return "", None

    def check_seen(self) -> None:
        """After the last record of a format without a schema: as `check`, for the columns that came up."""
        if self._seen:
            self.check(list(self._seen))

    def check(self, names: Sequence[str]) -> None:
        """Raise UsageError where none of the columns for the prompt, or none for the answer, is among `names`."""
        for what, keys in self._keys.items():
            if not any(key in names or key.partition(".")[0] in names for key in keys):
                raise UsageError(
                    f"no {what} column ({', '.join(keys)}); found: {', '.join(names) or 'none'}",
                    hint=f"set data.{what}_key=COLUMN",
                    where=self._spec,
                )


@dataclass
class Rows:
    """The rows that can be used, in the order of the spec, and what was left out."""

    rows: list[Row]
    sources: tuple[Source, ...]
    columns: list[Columns]  # of each source
    read: int = 0  # rows in all, before any drop
    dropped: Dropped = field(default_factory=Dropped)
    shortest: int = 0  # tokens of the shortest prompt, once they have been tokenised

    def place(self, row: Row) -> str:
        """Where a row stands, for a person."""
        return f"{self.sources[row.file].label} row {row.index}"


def check_columns(source: Source, prompt_key: str | None, answer_key: str | None) -> None:
    """Look at the columns of a local file: at its schema, or at those that its first rows have.

    Raises:
        UsageError: it has no rows, cannot be read, or has no column for the prompt or the answer.
    """
    table = open_table(source, "train")
    if table.columns is not None:
        names = [name for name, _ in table.columns]
    else:
        names = list(dict.fromkeys(name for record in islice(table.read(None), FIRST_ROWS) for name in record))
    if not names:
        raise UsageError(f"{source.name} has no rows", where=source.name, hint="another file")
    Columns(source.name, prompt_key, answer_key).check(names)


def load_rows(spec: str, split: Split, prompt_key: str | None = None, answer_key: str | None = None) -> Rows:
    """The different problems of all sources of `spec` (see da3po_cli.data.spec).

    A problem that comes again with the same gold is kept once. Of one that comes with two golds all rows are dropped,
    for at most one is right. Problems are compared without the answer instruction of a published set, and spaces
    count as equal to line breaks.

    Args:
        prompt_key, answer_key: columns, `a.b` for a field of a struct, where the usual names do not fit.

    Raises:
        UsageError: a bad spec, no such file, a form that is not known, or columns that are not there.
        EnvironmentProblem: a hub id that cannot be loaded.
    """
    sources = parse_spec(spec)
    columns = [Columns(source.name, prompt_key, answer_key) for source in sources]
    found = Rows([], sources, columns)
    _select(found, (row for file in range(len(sources)) for row in _rows(found, file, split)))
    return found


def open_source(source: Source, split: Split) -> Table:
    """The records of one source of a spec; the built-in ones have the columns prompt and answer."""
    if source.name in BUILT_IN:
        records = _arith_records if source.name == ARITH else _sum_records
        return Table((("prompt", "string"), ("answer", "string")), lambda _: records(split))
    return open_table(source, split)


def _rows(found: Rows, file: int, split: Split) -> Iterator[Row | tuple[str, str]]:
    """The rows of one source; of those that are none the reason, where they stand and what is wrong.

    Raises:
        UsageError: not one row has the right form: then it is the columns, or the file.
    """
    source, columns = found.sources[file], found.columns[file]
    label = source.label
    table = open_source(source, split)
    names = None if table.columns is None else [name for name, _ in table.columns]
    if names is not None:
        columns.check(names)
    records = table.read(None if names is None else [name for name in names if columns.needs(name)])
    sound, first = False, None
    for index, record in numbered(records, source):
        place = f"{label} row {index}"
        try:
            messages = _messages(columns.prompt(record), place)
            gold = columns.gold(record, place)
            name = _text(record.get(SOURCE_KEY)) or label
            _check_text([*(message["content"] for message in messages), gold, name], place)
        except UsageError as error:
            first = first or error
            yield "malformed", f"{place}: {error.message}"
            continue
        sound = True
        if messages and gold:
            yield Row(messages, gold, name, index, file)
        else:
            yield "empty", f"{place}: no {'gold' if messages else 'prompt'}"
    columns.check_seen()
    if first is not None and not sound:
        raise first


def _check_text(texts: Sequence[str], place: str) -> None:
    """Raises UsageError for half a surrogate pair: JSON can write it, and no tokenizer, file or terminal takes it."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):04x}"
            raise UsageError(
                f"character {error.start} is {half}, half of a pair", hint="write the text again", where=place
            ) from error


def _arith_records(split: Split) -> Iterator[Record]:
    """The demo's fixed lists, the same for every seed of a run."""
    for problem in arithmetic.problems(split, ARITH_TRAIN if split == "train" else ARITH_VALIDATION):
        yield {"prompt": problem.text, "answer": problem.answer}


def _sum_records(split: Split) -> Iterator[Record]:
    """Every sum of a split."""
    for prompt, answer in arithmetic.sums(split):
        yield {"prompt": prompt, "answer": answer}


def _get(record: Record, key: str) -> Any:
    """The value of a column, or of a field `a.b` inside one; None where it is missing."""
    if key in record:
        return record[key]
    value: Any = record
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def plain(value: Any) -> Any:
    """Python's own types: arrays become lists, and the NaN that pandas writes for a missing value becomes None."""
    if hasattr(value, "tolist"):  # numpy arrays and scalars
        value = value.tolist()
    return None if isinstance(value, float) and math.isnan(value) else value


def _text(value: Any) -> str:
    value = plain(value)
    return "" if value is None else str(value).strip()


def unlisted(gold: Any) -> Any:
    """The list whose text this is, `["42"]` or `['a', 'b']`; anything else as it is."""
    if isinstance(gold, str) and _LIST.match(gold):
        with suppress(ValueError, SyntaxError):  # then it is an answer that looks like one
            return ast.literal_eval(gold.strip())
    return gold


def gold_text(gold: Any, place: str, *, worked: bool = False) -> str:
    """The gold as text; nothing where there is none.

    A list of one is that one, also where it is written as text (`["42"]`). A whole number that pandas made a float
    (because a value is missing somewhere in the column) is written as the whole number. Of a text with a box it is the
    inside of the last one (or last ones, side by side), and of GSM8K's worked solutions what follows `####`.

    Args:
        worked: the text is a solution, so that without a box or `####` there is no gold in it.

    Raises:
        UsageError: several answers, or a struct.
    """
    gold = unlisted(plain(gold))
    if isinstance(gold, list) and len(gold) <= 1:
        gold = plain(gold[0]) if gold else None
    if gold is None:
        return ""
    if isinstance(gold, list | dict):
        raise UsageError(f"a gold must be one answer, not {gold!r}", hint="give one answer per row", where=place)
    if isinstance(gold, float) and gold.is_integer() and abs(gold) < 2**53:
        gold = int(gold)
    text = str(gold).strip()
    _, marked, tail = text.rpartition("####")
    if marked:
        return tail.strip()
    if "\\boxed" in text or "\\fbox" in text:
        from da3po_cli.rewards.reading.extract import extract_answer

        found = extract_answer(text)
        return ", ".join(found.side_by_side or (found.text or "",)).strip()
    return "" if worked else text


def _messages(prompt: Any, place: str) -> tuple[Message, ...]:
    """The conversation that asks the problem; nothing where there is no text in it.

    An answer of the assistant at its end is the data set's own solution and no part of the prompt.
    """
    if prompt is None:
        return ()
    if isinstance(prompt, str):
        return ({"role": "user", "content": prompt},) if prompt.strip() else ()
    if not isinstance(prompt, list) or not all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in prompt):
        raise UsageError(
            f"a prompt must be text or a list of messages with role and content, not {str(prompt)[:80]!r}",
            hint="name another column: data.prompt_key=COLUMN",
            where=place,
        )
    messages = [{"role": str(m["role"]), "content": _content(m["content"], place)} for m in prompt]
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    return tuple(messages) if messages and messages[-1]["content"].strip() else ()


def _content(content: Any, place: str) -> str:
    """The text of a message; a list of text parts is their concatenation."""
    content = plain(content)
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return "".join(part.get("text") or "" for part in content)
    raise UsageError(
        f"the content of a message must be text, not {str(content)[:80]!r}", hint="drop that row", where=place
    )


def _select(found: Rows, parsed: Iterable[Row | tuple[str, str]]) -> None:
    """Put the rows into `found`, without what is none, what is there already, and what has two golds."""
    first: dict[tuple[str, ...], Row] = {}
    more: dict[tuple[str, ...], Counter[str]] = {}  # golds of the later rows with the same problem
    for row in parsed:
        found.read += 1
        if isinstance(row, tuple):
            found.dropped.add(*row)
            continue
        key = _identity(row)
        if first.setdefault(key, row) is not row:
            more.setdefault(key, Counter())[row.answer] += 1
    for key, row in first.items():
        golds = Counter([row.answer]) + more.get(key, Counter())
        times = golds.total()
        if len(golds) > 1:
            found.dropped.add("conflict", f"{found.place(row)}: golds {' and '.join(golds)}", count=times)
            continue
        found.rows.append(row)
        if times > 1:
            found.dropped.add("duplicate", f"{found.place(row)}: {times} times", count=times - 1)


def _identity(row: Row) -> tuple[str, ...]:
    """What makes two rows the same problem."""
    *context, problem = (message["content"] for message in row.messages)
    return (*context, " ".join(bare_problem(problem).split()))
