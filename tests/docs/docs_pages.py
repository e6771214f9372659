"""The pages of docs/ as data: fenced blocks, headings, tables; and the code that they speak of, parsed once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
_FENCE = re.compile(r"^```(?P<language>\w*)(?: (?P<tag>\w+))?\n(?P<text>.*?)^```$", re.M | re.S)


@cache
def code() -> dict[str, ast.Module]:
    """The source files of both packages, parsed, by their path from the root of the project."""
    files = sorted([*ROOT.glob("da3po_cli/**/*.py"), *ROOT.glob("megatron_bridge/**/*.py")])
    return {file.relative_to(ROOT).as_posix(): ast.parse(read(file)) for file in files}


@dataclass(frozen=True)
class Block:
    """A fenced block: ```language tag."""

    page: Path
    line: int
    language: str
    tag: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = read(page)
    for found in _FENCE.finditer(text):
        line = text[: found.start()].count("\n") + 1
        yield Block(page, line, found["language"], found["tag"] or "", found["text"])


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", read(page))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings: lower case, hyphens for spaces, most punctuation gone."""
    titles = re.findall(r"^#+ (.+?)\s*$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def table_rows(text: str) -> Iterator[list[str]]:
    """The cells of every table row in `text`, headings and rules included."""
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def section(page: Path, title: str) -> str:
    """The text below a heading, down to the next one of its level or above."""
    lines = read(page).splitlines()
    start = next(number for number, line in enumerate(lines) if re.fullmatch(rf"#+ {re.escape(title)}", line))
    level = len(lines[start]) - len(lines[start].lstrip("#"))
    found: list[str] = []
    for line in lines[start + 1 :]:
        if re.match(rf"#{{1,{level}}} ", line):
            break
        found.append(line)
    return "\n".join(found)
