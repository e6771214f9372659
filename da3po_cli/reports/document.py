"""A report as a document: sections of text, tables, plots and examples. What it looks like is for `page` and `text`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from da3po_cli.evals import tables as plain
from da3po_cli.reports.plots import Plot


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; the first column is the label. `best` holds (row, column) of cells in bold."""

    title: str
    heading: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    best: frozenset[tuple[int, int]] = frozenset()
    note: str = ""

    def _marked(self, before: str, after: str) -> plain.Table:
        rows = tuple(
            tuple(f"{before}{cell}{after}" if (r, c) in self.best else cell for c, cell in enumerate(row))
            for r, row in enumerate(self.rows)
        )
        return plain.Table(self.title, self.heading, rows)

    def text(self) -> str:
        """For a terminal; the best is marked with a star."""
        return "\n".join([plain.text(self._marked("*", "")), *([self.note] if self.note else [])])

    def markdown(self) -> str:
        """For a Markdown file; the best is bold."""
        return "\n\n".join([plain.markdown(self._marked("**", "**")), *([self.note] if self.note else [])])


@dataclass(frozen=True)
class Example:
    """A prompt with some of its responses."""

    title: str
    prompt: str
    responses: Sequence[tuple[str, str]]
    """(what it was, text)."""


@dataclass(frozen=True)
class Section:
    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    examples: Sequence[Example] = ()
    code: str = ""
    """Shown as it is, folded."""


@dataclass(frozen=True)
class Document:
    title: str
    lead: str
    """What it is about, in a sentence or two."""
    sections: Sequence[Section] = field(default_factory=list)

    @property
    def plots(self) -> list[Plot]:
        return [plot for section in self.sections for plot in section.plots]


def markdown(document: Document, images: str | None = None) -> str:
    """The document as Markdown.

    Args:
        images: where the PNG files of the plots are, or None to leave plots out.
    """
    parts = [f"# {document.title}", document.lead]
    for section in document.sections:
        body = [*section.text, *(table.markdown() for table in section.tables if table.rows)]
        if images is not None:
            body += [f"![{plot.alt}]({quote(f'{images}/{plot.file}')})" for plot in section.plots]
        for example in section.examples:
            body.append(f"**{example.title}**\n\n{_fenced(example.prompt)}")
            body += [f"{what}:\n\n{_fenced(text)}" for what, text in example.responses]
        if section.code:
            body.append(_fenced(section.code))
        if body:
            parts += [f"## {section.title}", *body]
    return "\n\n".join(parts) + "\n"


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
