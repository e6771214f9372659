"""A document as one HTML file: inline CSS, plots as data URIs, no script, no network; light and dark."""

from __future__ import annotations

import re
from html import escape

from da3po_cli.reports.document import Document, Example, Section, Table
from da3po_cli.reports.plots import Plot, dark, data_uri, draw, svg

_STYLE = """
:root {
  color-scheme: light dark;
  --ground: #ffffff; --ink: #24292f; --faint: #57606a; --line: #d0d7de; --box: #f6f8fa;
}
@media (prefers-color-scheme: dark) {
  :root { --ground: #0d1117; --ink: #e6edf3; --faint: #9da7b3; --line: #30363d; --box: #161b22; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1240px; padding: 1rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; padding-bottom: 0.25rem; border-bottom: 1px solid var(--line); }
p { margin: 0.5rem 0; max-width: 75ch; }
nav { display: flex; flex-wrap: wrap; gap: 0.25rem 1rem; margin: 0.75rem 0; }
a { color: inherit; }
.note, figcaption { color: var(--faint); font-size: 0.875rem; }
.tables { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 0.75rem 1rem; margin: 0.75rem 0; }
.tables > div { max-width: 100%; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; width: fit-content; max-width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
h3 { font-size: 0.95rem; margin: 0 0 0.25rem; }
th, td { padding: 0.3rem 0.75rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }
thead th { border-top: 0; }
th { font-weight: 600; background: var(--box); }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--box); }
.text { text-align: left; }
th.long, td.long { white-space: normal; overflow-wrap: anywhere; min-width: 9rem; max-width: 26rem; }
@media (max-width: 600px) {
  th, td { padding: 0.3rem 0.5rem; }
  th:first-child, td:first-child { white-space: normal; overflow-wrap: normal; max-width: 9rem; }
}
td strong { font-weight: 700; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); gap: 1rem;
  margin: 1rem 0; }
figure { margin: 0; min-width: 0; }
img { width: 100%; height: auto; display: block; }
details { border: 1px solid var(--line); border-radius: 6px; margin: 0.5rem 0; padding: 0.5rem 0.75rem; }
summary { cursor: pointer; font-weight: 600; }
pre { background: var(--box); padding: 0.5rem; border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere;
  font-size: 0.85rem; margin: 0.25rem 0 0.75rem; }
"""


def html(document: Document) -> str:
    """The whole page."""
    anchors = [f"s{number}" for number in range(len(document.sections))]
    links = "".join(
        f'<a href="#{anchor}">{escape(section.title)}</a>'
        for anchor, section in zip(anchors, document.sections, strict=True)
    )
    body = "\n".join(_section(section, anchor) for section, anchor in zip(document.sections, anchors, strict=True))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(document.title)}</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>{escape(document.title)}</h1>
<p>{escape(document.lead)}</p>
<nav aria-label="Sections">{links}</nav>
</header>
<main>
{body}
</main>
</body>
</html>
"""


def _section(section: Section, anchor: str) -> str:
    parts = [f'<section aria-labelledby="{anchor}">', f'<h2 id="{anchor}">{escape(section.title)}</h2>']
    parts += [f"<p>{escape(text)}</p>" for text in section.text if text]
    tables = "".join(_table(table) for table in section.tables if table.rows)
    parts += [f'<div class="tables">{tables}</div>'] if tables else []
    if section.plots:
        parts.append(f'<div class="plots">{"".join(_figure(plot) for plot in section.plots)}</div>')
    parts += [_example(example) for example in section.examples]
    if section.code:
        parts.append(f"<details><summary>Show</summary><pre>{escape(section.code)}</pre></details>")
    return "\n".join([*parts, "</section>"])


def _table(table: Table) -> str:
    words = {c for c in range(len(table.heading)) if not any(_is_number(row[c]) for row in table.rows)}
    head = "".join(_cell("th", cell, c in words) for c, cell in enumerate(table.heading))
    rows = "".join(
        "<tr>" + "".join(_cell("td", cell, c in words, (r, c) in table.best) for c, cell in enumerate(row)) + "</tr>"
        for r, row in enumerate(table.rows)
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    body = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    title = escape(table.title)
    return (
        f'<div><h3>{title}</h3><div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f"<table>{body}</table></div>{note}</div>"
    )


def _cell(tag: str, text: str, left: bool, best: bool = False) -> str:
    """A cell; columns of words are set left, those with a number in them right. Long text is broken into lines."""
    shown = f"<strong>{escape(text)}</strong>" if best else escape(text)
    classes = " ".join([*(["text"] if left else []), *(["long"] if len(text) > LONG else [])])
    attributes = (' scope="col"' if tag == "th" else "") + (f' class="{classes}"' if classes else "")
    return f"<{tag}{attributes}>{shown}</{tag}>"


LONG = 40  # characters of a cell
_NUMBER = re.compile(r"[-+<]?[\d.,:/ =%]+(e[-+]\d+)?(\.\.[-+\d.]+)?|-")


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _figure(plot: Plot) -> str:
    light = svg(draw(plot))
    caption = f"<figcaption>{escape(plot.note)}</figcaption>" if plot.note else ""
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{data_uri(dark(light))}">'
        f'<img src="{data_uri(light)}" alt="{escape(plot.alt)}"></picture>{caption}</figure>'
    )


def _example(example: Example) -> str:
    parts = [f"<details><summary>{escape(example.title)}</summary>", f"<pre>{escape(example.prompt)}</pre>"]
    parts += [f'<p class="note">{escape(what)}</p><pre>{escape(text)}</pre>' for what, text in example.responses]
    return "".join([*parts, "</details>"])
