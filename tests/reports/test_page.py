"""The page holds everything itself and says what the plots show; drawing is real."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_runs import make_ablation, make_group, make_run

from da3po_cli.output import Out
from da3po_cli.reports.build import REPORT, document_of, report_after, write_html
from da3po_cli.reports.document import Document, Example, Section, Table, markdown
from da3po_cli.reports.page import html
from da3po_cli.reports.plots import COLOURS, DARK, Plot, Series, dark, draw, save_png, svg

VOID = {"meta", "link", "img", "source", "br"}


class Page(HTMLParser):
    """Checks that tags close in order, and collects what a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.tags: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.loads += [str(values[name]) for name in ("src", "srcset", "href", "data") if values.get(name) is not None]
        if tag == "img":
            self.images.append(values)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    where = make_ablation(tmp_path_factory.mktemp("a") / "lambda-demo", {"1.0": (0.7, 0.72), "2.0": (0.74, 0.75)})
    return html(document_of(where))


def test_any_label_can_be_drawn(tmp_path: Path) -> None:
    """Mathematics of matplotlib, a path, HTML, and more than a line holds; the name of a benchmark may hold a slash."""
    labels = ["$USER^_{", "$x^2$", "a/b <i>", "x" * 300]
    plots = [
        Plot(
            kind,
            "Title",
            "step",
            "share",
            [Series(one, [0, 1], [0.1, 0.2], [0, 0], [1, 1]) for one in labels],
            kind=kind,
        )
        for kind in ("line", "stack", "ranks")
    ]
    plots.append(Plot("avg_dir/bench", "Title", "step", "share", []))
    assert "<!-- $USER^_{ -->" in svg(draw(plots[0])), "as it is"
    log = draw(Plot("log", "Title", "step", "nats", [Series("gap", [0, 1], [1e-5, 1e-3])], log_y=True))
    log.canvas.draw()
    assert all(tick.get_parse_math() for tick in log.axes[0].get_yticklabels()), "powers of ten are mathematics"
    files = save_png(plots, tmp_path / "my plots")
    assert [file.name for file in files] == ["line.png", "stack.png", "ranks.png", "avg_dir-bench.png"]
    text = markdown(Document("T", "lead", [Section("s", plots=plots)]), str(tmp_path / "my plots"))
    assert "my%20plots/avg_dir-bench.png)" in text


def test_nothing_is_loaded_from_elsewhere(page: str) -> None:
    parsed = Page(page)
    assert parsed.loads and all(one.startswith(("data:", "#")) for one in parsed.loads)
    assert "script" not in parsed.tags and "@import" not in page and "url(" not in page.split("</style>")[0]


def test_every_plot_has_a_text_and_two_themes(page: str) -> None:
    parsed = Page(page)
    assert len(parsed.images) >= 8
    assert all(len(str(image["alt"])) > 20 for image in parsed.images)
    assert parsed.tags.count("source") == len(parsed.images)
    assert 'name="viewport"' in page and "prefers-color-scheme: dark" in page
    first = str(parsed.images[0]["src"]).removeprefix("data:image/svg+xml;base64,")
    assert base64.b64decode(first).startswith(b"<?xml")


def test_the_best_is_strong_and_text_is_escaped(tmp_path: Path) -> None:
    table = Table("t <1>", ("arm", "x"), [("a<b", "1"), ("c", "2")], frozenset({(1, 1)}))
    example = Example("<script>alert(1)</script>", "p & q", [("wrong", "<b>")])
    text = html(Document("T", "lead", [Section("s", tables=[table], examples=[example])]))
    parsed = Page(text)
    assert "<strong>2</strong>" in text and "a&lt;b" in text
    assert "script" not in parsed.tags and "b" not in parsed.tags


def test_the_dark_picture_differs_in_colours_only() -> None:
    light = svg(draw(Plot("p", "Title", "step", "share", [Series("a", [0, 1], [0.1, 0.2])])))
    night = dark(light)
    assert light != night and not any(colour in night for colour in DARK)
    assert re.sub("#[0-9a-f]{6}", "", light) == re.sub("#[0-9a-f]{6}", "", night)
    assert light == svg(draw(Plot("p", "Title", "step", "share", [Series("a", [0, 1], [0.1, 0.2])]))), "deterministic"


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_stand_out_on_both_grounds() -> None:
    """At least 2 on white (Okabe and Ito's orange and sky blue have 2.2) and 3 on dark; no two lines look alike."""
    for colour in COLOURS:
        assert contrast(colour, "#ffffff") > 2
        assert contrast(DARK.get(colour, colour), "#0d1117") > 3
    assert len({DARK.get(colour, colour) for colour in COLOURS}) == len(COLOURS)


@pytest.mark.parametrize("kind", ["line", "stack", "points", "ranks"])
def test_every_kind_has_labels_units_and_a_legend(kind) -> None:
    ranks = kind == "ranks"
    data = [
        Series("a", [1.0, 0.9, 1.1] if ranks else [0, 1], [] if ranks else [1.0, 2.0], [0.8] if ranks else [0.5, 1.5],
               [1.2] if ranks else [1.5, 2.5]),
        Series("b", [2.0] if ranks else [0, 1], [] if ranks else [2.0, 1.0]),
    ]  # fmt: skip
    plot = Plot("p", "Title", "step", "" if ranks else "nats", data, kind=kind, levels=[(1.0, "limit")])
    figure = draw(plot)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "Title" and axes.get_xlabel() == "step"
    if ranks:
        assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a", "b"]
    else:
        assert axes.get_ylabel() == "nats"
        assert {text.get_text() for legend in figure.legends for text in legend.get_texts()} == {"a", "b", "limit"}
    assert "a: 1" in plot.alt


def test_png_files(tmp_path: Path) -> None:
    from PIL import Image

    (file,) = save_png([Plot("p", "T", "step", "share", [Series("a", [0, 1], [0, 1])])], tmp_path / "new" / "dir")
    assert file.name == "p.png" and Image.open(file).width == 900


def test_markdown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", {0: (0.5, 0.9), 4: (0.7, 0.9)}, groups={1: [make_group(1, 1, text="a ``` b")]})
    text = markdown(document_of(run), "plots")
    assert text.startswith("# Run r\n") and "| arith avg@8 | 50.00 | 70.00 | +20.00 | 70.00 | 4 |" in text
    assert "![Validation: share" in text and "(plots/validation.png)" in text
    assert "````\na ``` b\n````" in text
    assert "![" not in markdown(document_of(run))


def test_after_a_run_the_page_is_there_and_trouble_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "r", {0: (0.5, 0.9), 4: (0.7, 0.9)})
    report_after(Out("quiet"), run)
    assert (run.path / REPORT).read_text().startswith("<!doctype html>")
    assert capsys.readouterr().err == ""
    run.metrics_file.write_text("not JSON\n")
    report_after(Out("quiet"), run)
    assert "warning: no report: UsageError" in capsys.readouterr().err


def test_a_page_replaces_the_old_one_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("old")
    write_html(Document("T", "lead"), file)
    assert "<title>T</title>" in file.read_text()
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
