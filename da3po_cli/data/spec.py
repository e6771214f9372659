"""What `data.train` and `data.validation` can say: files, hub ids, slices and weights, in one line of text.

dapo.parquet                            all rows of a file
shards/*.parquet, shards                the files of a pattern; those below a folder
dapo.parquet@[0:1000]                   the rows of a Python slice, as they stand in the file
dapo.parquet, gsm8k.parquet             one pool: an epoch has every prompt of both
dapo.parquet*3, gsm8k.parquet*1         a mixture: three prompts of the first to one of the second, all along
openai/gsm8k:main                       a data set of the Hugging Face hub, with its configuration
arith                                   the demo's generator: chains of sums
sums                                    sums of two numbers, for a pretrained model
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from da3po_cli.config.models import is_hub_id
from da3po_cli.config.paths import expanded
from da3po_cli.errors import UsageError

Split = Literal["train", "validation"]

ARITH, SUMS = "arith", "sums"
BUILT_IN = (ARITH, SUMS)
FILE_SUFFIXES = (".parquet", ".jsonl", ".json")
TEMPLATES = ("chat", "dapo", "boxed", "none")
JINJA_SUFFIXES = (".jinja", ".j2")
FORMS = "a .parquet, .jsonl or .json file, a folder or pattern of them, a hub id such as org/name, arith, or sums"

_SOURCE = re.compile(
    r"(?P<name>.+?)(?:@\[(?P<start>-?\d+)?:(?P<stop>-?\d+)?\])?(?:\*(?P<weight>\d+(?:\.\d+)?))?", re.DOTALL
)

_BAD_WEIGHT = re.compile(r"[^/*]\*[^./*]*\Z")  # rows.parquet*x; shards/* and *.parquet are patterns


@dataclass(frozen=True)
class Source:
    """One file, hub id or generator of a spec. `start` and `stop` are those of a Python slice over its rows."""

    name: str
    start: int | None = None
    stop: int | None = None
    weight: Fraction | None = None

    @property
    def is_file(self) -> bool:
        return self.name not in BUILT_IN and Path(self.name).suffix in FILE_SUFFIXES

    @property
    def is_pattern(self) -> bool:
        return any(sign in self.name for sign in "*?[") and not self.path.exists()

    @property
    def is_local(self) -> bool:
        """A file, a pattern of files, or a folder that is there."""
        return self.name not in BUILT_IN and (self.is_file or self.is_pattern or self.path.exists())

    @property
    def is_hub(self) -> bool:
        return self.name not in BUILT_IN and not self.is_local and is_hub_id(self.name.partition(":")[0])

    @property
    def path(self) -> Path:
        return expanded(self.name)

    @property
    def label(self) -> str:
        """A short name: of a file its stem, of a pattern the folder that it begins with."""
        if self.is_pattern:
            return next((part.name for part in self.path.parents if not set("*?[") & set(str(part))), "") or self.name
        return self.path.stem if self.is_file else self.path.name if self.path.is_dir() else self.name


def parse_spec(spec: str) -> tuple[Source, ...]:
    """The sources of `spec`, in order.

    Raises:
        UsageError: a malformed slice or weight, or weights for some of the sources only.
    """
    sources = tuple(_source(part.strip()) for part in spec.split(",") if part.strip())
    weighted = [source for source in sources if source.weight is not None]
    if weighted and len(weighted) < len(sources):
        without = next(source for source in sources if source.weight is None)
        raise UsageError(
            f"{spec!r} gives weights to {len(weighted)} of {len(sources)} sources",
            hint=f"write {without.name}*1, or leave all weights out to pool the rows",
        )
    return sources


def _source(text: str) -> Source:
    match = _SOURCE.fullmatch(text)
    if match is None or "@[" in match["name"]:
        raise UsageError(
            f"cannot read the slice of {text!r}", hint="write PATH@[start:stop], such as rows.parquet@[:100]"
        )
    if _BAD_WEIGHT.search(match["name"]) or (match["weight"] is not None and not Fraction(match["weight"])):
        raise UsageError(f"cannot read the weight of {text!r}", hint="write PATH*WEIGHT with a number above 0")
    start, stop = (None if match[key] is None else int(match[key]) for key in ("start", "stop"))
    return Source(match["name"], start, stop, None if match["weight"] is None else Fraction(match["weight"]))


def spec_label(spec: str) -> str:
    """A short name of all sources, for metrics: `aime24`, or `aime24+math500`."""
    return "+".join(dict.fromkeys(source.label for source in parse_spec(spec)))
