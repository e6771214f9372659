"""The stream of prompts: seeded, endless, and resumable at any position."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import blake2b
from typing import Any

from da3po_cli.algos.types import Prompt
from da3po_cli.config.schema import DataConfig
from da3po_cli.data.formats import Dropped, Row, Rows, load_rows
from da3po_cli.data.spec import Source, Split
from da3po_cli.data.templates import encode, make_renderer, unknown_token_id
from da3po_cli.data.verify import Verify, drop_unverifiable
from da3po_cli.errors import UsageError

Tokenised = tuple[Row, str, tuple[int, ...]]  # a row, the text of its prompt, its token ids


@dataclass(frozen=True)
class Item:
    """A row after template and tokenizer."""

    token_ids: tuple[int, ...]
    text: str
    answer: str
    source: str
    index: int
    place: str  # unique in the spec: `<row>`, with several files `<file>:<row>`

    def drawn(self, when: int | str) -> Prompt:
        """The prompt of one draw; its uid is `<when>-<place>`."""
        return Prompt(f"{when}-{self.place}", self.token_ids, self.text, self.answer, self.source, self.index)


@dataclass
class Part:
    """Prompts that are shuffled together: all of a spec, or one file of a mixture."""

    items: list[Item]
    weight: int
    label: str = ""  # of its own random numbers; the first part has none
    drawn: int = 0
    _order: list[int] = field(default_factory=list[int])
    _order_of: int = -1  # the epoch that `_order` belongs to

    def next(self, seed: int) -> Prompt:
        """The prompt at the cursor. An epoch is a permutation that follows from (seed, epoch) alone."""
        epoch, position = divmod(self.drawn, len(self.items))
        if epoch != self._order_of:
            self._order, self._order_of = list(range(len(self.items))), epoch
            random.Random(f"prompts-{seed}-{epoch}{self.label}").shuffle(self._order)
        self.drawn += 1
        return self.items[self._order[position]].drawn(epoch)


class PromptStream:
    """Prompts of one spec, without an end: each part goes round in epochs, each in a new order.

    Parts of a mixture take turns: the next prompt comes from the part that is furthest behind its share, so that
    every stretch of the stream has the weights of the whole.

    Attributes:
        fingerprint: hash of all prompts, golds and weights in order; a resume compares it.
        dropped: rows left out, by reason.
    """

    def __init__(self, parts: Sequence[Part], split: Split, seed: int, dropped: Dropped) -> None:
        self._parts = list(parts)
        self._total_weight = sum(part.weight for part in parts)
        self._split = split
        self._seed = seed
        self.dropped = dropped
        self.fingerprint = _fingerprint(parts)

    def __len__(self) -> int:
        """Different prompts."""
        return sum(len(part.items) for part in self._parts)

    def next(self, n: int) -> list[Prompt]:
        """The next `n` prompts, however many epochs that takes. A prompt's uid is `<epoch>-<row>`."""
        return [self._turn().next(self._seed) for _ in range(n)]

    def _turn(self) -> Part:
        """The part furthest behind its share of the draws so far and this one; the first of equals."""
        if len(self._parts) == 1:
            return self._parts[0]
        draws = 1 + sum(part.drawn for part in self._parts)
        return max(self._parts, key=lambda part: part.weight * draws - self._total_weight * part.drawn)

    def sources(self) -> set[str]:
        """The data sources of all prompts."""
        return {item.source for part in self._parts for item in part.items}

    def all(self, limit: int | None = None) -> list[Prompt]:
        """The first `limit` prompts in file order, for validation; the cursor stays. Uids are `<split>-<row>`."""
        return [item.drawn(self._split) for part in self._parts for item in part.items][:limit]

    def state(self) -> dict[str, Any]:
        """The cursor, JSON-ready: how many prompts each part has given."""
        return {
            "drawn": [part.drawn for part in self._parts],
            "seed": self._seed,
            "fingerprint": self.fingerprint,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go to the position of `state`, so that `next` goes on exactly where it was taken.

        Raises:
            UsageError: the state belongs to other data or to another seed.
        """
        for key, here in (("fingerprint", self.fingerprint), ("seed", self._seed)):
            if state[key] != here:
                raise UsageError(
                    f"the checkpoint's prompt stream has {key} {state[key]}, this run's has {here}",
                    hint="resume with the data, template, tokenizer and seed of the run, or start a new run",
                    where="data.train",
                )
        for part, drawn in zip(self._parts, state["drawn"], strict=True):
            part.drawn = int(drawn)


def open_stream(
    data: DataConfig,
    tokenizer: Any,
    split: Split,
    seed: int,
    verify: Verify | None = None,
    vocabulary: int | None = None,
) -> PromptStream:
    """The prompts of `data.train` or `data.validation` after template and tokenizer.

    Args:
        verify: grades golds against themselves; a row whose gold fails is dropped. None trusts all golds.
        vocabulary: tokens of the model; a row with one beyond them is dropped. None trusts the tokenizer.

    Raises:
        UsageError: no data is configured for `split`, it cannot be read, or no row is left.
    """
    spec = data.train if split == "train" else data.validation
    if not spec:
        raise UsageError(f"data.{split} is not set", hint=f"set data.{split}=FILE", where=f"data.{split}")
    rows = load_rows(spec, split, data.prompt_key, data.answer_key)
    if verify is not None:
        drop_unverifiable(rows, verify)
    several = len(rows.sources) > 1
    files: list[list[Item]] = [[] for _ in rows.sources]
    for row, text, ids in fitting(tokenise(rows, data, tokenizer), rows, data, tokenizer, vocabulary):
        place = f"{row.file}:{row.index}" if several else str(row.index)
        files[row.file].append(Item(ids, text, row.answer, row.source, row.index, place))
    return PromptStream(_parts(files, rows, split, data), split, seed, rows.dropped)


def tokenise(rows: Rows, data: DataConfig, tokenizer: Any) -> list[Tokenised]:
    """Every row with the text and the token ids of its prompt."""
    render = make_renderer(data.template, tokenizer, data.thinking)
    texts = [render(row.messages) for row in rows.rows]
    ids = encode(texts, tokenizer, from_chat=data.template == "chat")
    return list(zip(rows.rows, texts, ids, strict=True))


def fitting(
    prompts: Iterable[Tokenised], rows: Rows, data: DataConfig, tokenizer: Any, vocabulary: int | None = None
) -> Iterator[Tokenised]:
    """The prompts that are short enough and whose text tokenizer and model know; the others are counted as dropped."""
    unknown = unknown_token_id(tokenizer)
    for row, text, ids in prompts:
        rows.shortest = min(len(ids), rows.shortest or len(ids))
        if len(ids) > data.max_prompt_tokens:
            rows.dropped.add("overlong", f"{rows.place(row)}: {len(ids):,} tokens")
        elif unknown is not None and unknown in ids:
            rows.dropped.add("unknown_token", f"{rows.place(row)}: {text[:80]!r}")
        elif vocabulary is not None and ids and max(ids) >= vocabulary:
            token = tokenizer.convert_ids_to_tokens(max(ids))
            beyond = f"the token {token!r} has the id {max(ids)}, and the model has {vocabulary} tokens"
            rows.dropped.add("unknown_token", f"{rows.place(row)}: {beyond}")
        else:
            yield row, text, ids


def _parts(files: list[list[Item]], rows: Rows, split: Split, data: DataConfig) -> list[Part]:
    """One part without weights; with weights one for each file."""
    where = f"data.{split}"
    if rows.sources[0].weight is None or split == "validation":
        pool = [item for items in files for item in items]
        if not pool:
            raise _nothing_left(", ".join(source.name for source in rows.sources), rows, data, where)
        return [Part(pool, 1)]
    weights = _whole_weights(rows.sources)
    for source, items in zip(rows.sources, files, strict=True):
        if not items:
            raise _nothing_left(source.name, rows, data, where)
    labels = ["", *(f"-{number}" for number in range(1, len(files)))]
    return [Part(items, weight, label) for items, weight, label in zip(files, weights, labels, strict=True)]


def _nothing_left(name: str, rows: Rows, data: DataConfig, where: str) -> UsageError:
    fix = "look at the rows: da3po data check"
    if "overlong" in rows.dropped.counts:
        fix = f"raise data.max_prompt_tokens={data.max_prompt_tokens}: the shortest prompt has {rows.shortest} tokens"
    elif unknown := rows.dropped.examples.get("unknown_token"):
        fix = f"a tokenizer that belongs to the model, or another data.template; {unknown[0]}"
    return UsageError(
        f"no usable prompt in {name}; of {rows.read:,} rows dropped: {rows.dropped}", hint=fix, where=where
    )


def _whole_weights(sources: Sequence[Source]) -> list[int]:
    """The smallest whole numbers in the ratio of the weights, so that the turns are exact."""
    weights = [source.weight or Fraction(1) for source in sources]
    denominator = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * denominator) for weight in weights]
    return [weight // math.gcd(*whole) for weight in whole]


def _fingerprint(parts: Sequence[Part]) -> str:
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(f"{part.weight},{len(part.items)};".encode())
        for item in part.items:
            digest.update(f"{item.place},{len(item.token_ids)},{len(item.answer)},{item.answer}".encode())
            digest.update(array("q", item.token_ids).tobytes())
    return digest.hexdigest()
