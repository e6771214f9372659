"""The stream of prompts: seeded, endless, and resumable at any position."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from da3po_cli.algos.types import Prompt
from da3po_cli.config.schema import DataConfig
from da3po_cli.data import arithmetic
from da3po_cli.data.formats import Row, Rows, load_rows
from da3po_cli.data.templates import encode, render
from da3po_cli.errors import UsageError

Split = Literal["train", "validation"]

ARITH = "arith"
ARITH_TRAIN = 10_000
ARITH_VALIDATION = 256


@dataclass(frozen=True)
class _Item:
    """A row after template and tokenizer."""

    token_ids: tuple[int, ...]
    text: str
    answer: str
    source: str
    index: int


class PromptStream:
    """Prompts of one data set. Each epoch is a permutation that follows from (seed, epoch) alone.

    Attributes:
        fingerprint: hash of all prompts and golds in order; a resume compares it.
        dropped: rows left out, by reason (`empty`, `duplicate`, `conflict`, `overlong`).
    """

    def __init__(self, items: Sequence[_Item], split: Split, seed: int, dropped: dict[str, int]) -> None:
        self._items = list(items)
        self._split = split
        self._seed = seed
        self._epoch = 0
        self._position = 0
        self._order = self._permutation(0)
        self.dropped = dropped
        self.fingerprint = _fingerprint(items)

    def __len__(self) -> int:
        """Prompts in an epoch."""
        return len(self._items)

    def next(self, n: int) -> list[Prompt]:
        """The next `n` prompts; goes on into the next epoch where one ends. A prompt's uid is `<epoch>-<row>`."""
        prompts: list[Prompt] = []
        while len(prompts) < n:
            if self._position == len(self._items):
                self._epoch, self._position = self._epoch + 1, 0
                self._order = self._permutation(self._epoch)
            item = self._items[self._order[self._position]]
            prompts.append(_prompt(item, f"{self._epoch}-{item.index}"))
            self._position += 1
        return prompts

    def all(self, limit: int | None = None) -> list[Prompt]:
        """The first `limit` prompts in file order, for validation; the cursor stays. Uids are `<split>-<row>`."""
        return [_prompt(item, f"{self._split}-{item.index}") for item in self._items[:limit]]

    def state(self) -> dict[str, Any]:
        """The cursor, JSON-ready."""
        return {
            "epoch": self._epoch,
            "position": self._position,
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
        self._epoch, self._position = int(state["epoch"]), int(state["position"])
        self._order = self._permutation(self._epoch)

    def _permutation(self, epoch: int) -> list[int]:
        order = list(range(len(self._items)))
        random.Random(f"prompts-{self._seed}-{epoch}").shuffle(order)
        return order


def open_stream(data: DataConfig, tokenizer: Any, split: Split, seed: int) -> PromptStream:
    """The prompts of `data.train` or `data.validation` after template and tokenizer.

    Raises:
        UsageError: no data is configured for `split`, it cannot be read, or no row is left.
    """
    spec = data.train if split == "train" else data.validation
    if not spec:
        raise UsageError(f"data.{split} is not set", hint=f"set data.{split}=FILE", where=f"data.{split}")
    rows = _arith_rows(split) if spec == ARITH else load_rows(spec, _hub_split(split), data.prompt_key, data.answer_key)
    items: list[_Item] = []
    overlong = 0
    for row in rows.rows:
        text = render(row.messages, data.template, tokenizer)
        token_ids = encode(text, tokenizer, from_chat=data.template == "chat")
        if len(token_ids) > data.max_prompt_tokens:
            overlong += 1
        else:
            items.append(_Item(token_ids, text, row.answer, row.source, row.index))
    dropped = {**rows.dropped, "overlong": overlong}
    if not items:
        raise UsageError(
            f"no usable prompt in {spec}; dropped: {dropped}",
            hint="raise data.max_prompt_tokens, or look at the rows",
            where=f"data.{split}",
        )
    return PromptStream(items, split, seed, dropped)


def _hub_split(split: Split) -> str:
    return "train" if split == "train" else "test"


def _arith_rows(split: Split) -> Rows:
    """The demo's fixed lists, the same for every seed of a run."""
    count = ARITH_TRAIN if split == "train" else ARITH_VALIDATION
    return Rows(
        [
            Row(({"role": "user", "content": problem.text},), problem.answer, ARITH, index)
            for index, problem in enumerate(arithmetic.problems(split, count))
        ]
    )


def _prompt(item: _Item, uid: str) -> Prompt:
    return Prompt(uid, item.token_ids, item.text, item.answer, item.source, item.index)


def _fingerprint(items: Sequence[_Item]) -> str:
    digest = blake2b(digest_size=16)
    for item in items:
        digest.update(repr((item.index, item.token_ids, item.answer)).encode())
    return digest.hexdigest()
