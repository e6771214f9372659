"""Links and anchors lead somewhere, examples of Python and of configs are right, quoted errors are the code's."""

from __future__ import annotations

import ast
import doctest
import re
from pathlib import Path

import pytest
from docs_pages import PAGES, ROOT, anchors, blocks, code, prose, read, table_rows

from da3po_cli.algos.table import ALGORITHMS
from da3po_cli.config.keys import ALIASES, key_types, sections
from da3po_cli.config.load import load_config

HOLE, END = "\0", "\1"  # a value in the text of an f-string; between two strings of the code


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        where = (page.parent / file).resolve() if file else page
        if not where.exists() or (anchor and anchor not in anchors(where)):
            broken.append(target)
    assert broken == []


def test_the_index_has_every_page() -> None:
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", read(ROOT / "docs" / "README.md")))
    assert named == {page.name for page in PAGES} - {"README.md"}


def test_quoted_errors_are_in_the_code() -> None:
    quotes = re.findall(r"^\* `([^`]+)`:", read(ROOT / "docs" / "troubleshooting.md"), re.M)
    errors = [quote for quote in quotes if not re.fullmatch(r"\w+/\w+", quote)]  # a metric
    templates = string_templates(*code().values())
    assert len(errors) > 30
    assert [quote for quote in errors if not occurs(quote, templates)] == []


def occurs(quote: str, templates: str) -> bool:
    """Whether a text with ... for values can come from one of the templates."""
    parts = [re.escape(part) for part in quote.split("...")]
    return re.search(f"[^{END}]*?".join(parts), templates) is not None


def string_templates(*trees: ast.Module) -> str:
    """Every string of the code; of an f-string the text, with holes for values."""
    found: list[str] = []
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(v.value) if isinstance(v, ast.Constant) else HOLE for v in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return END.join(found)


def test_the_reader_of_errors_tells_right_from_wrong() -> None:
    code = 'x = f"the run {y} is in " f"use by {z!r}"\nraise E("plain words")\n'
    templates = string_templates(ast.parse(code))
    assert occurs("the run ... is in use by ...", templates)
    assert occurs("plain words", templates)
    assert not occurs("the run ... is used by ...", templates)
    assert not occurs("use by ... plain", templates)


def test_the_table_of_algorithms_is_that_of_the_code() -> None:
    rows = {row[0].strip("`"): row for row in table_rows(read(ROOT / "docs" / "algorithms.md")) if len(row) == 8}
    for name, entry in ALGORITHMS.items():
        algo, (_, source, advantage, ratio, clip, _, groups, length) = entry.defaults, rows[name]
        assert entry.source.split()[-1] in source
        assert ("standardised" in advantage, "centred" in advantage) == (algo.std_power == 1, algo.std_power == 0)
        assert re.findall(r"x ([\d.]+)", advantage) == ([f"{algo.daa_lambda:g}"] if algo.daa_lambda != 1 else [])
        assert ratio == algo.ratio
        bounds = [algo.clip_low, algo.clip_high, *([algo.dual_clip] if algo.dual_clip else [])]
        assert [float(number) for number in re.findall(r"[\d.]+(?:e-\d)?", clip)] == bounds
        assert groups == ("mixed only" if algo.dynamic_sampling else "all")
        assert length == {0.2: "punished over the last fifth", 0.0: ""}[algo.overlong_share]
    assert set(rows) - {"--algo", "---"} == set(ALGORITHMS)


@pytest.mark.parametrize(
    "block", [b for page in PAGES for b in blocks(page) if b.language == "pycon"], ids=lambda b: b.place
)
def test_python_sessions_are_true(block) -> None:
    test = doctest.DocTestParser().get_doctest(block.text, {}, block.place, str(block.page), block.line)
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test)
    assert runner.failures == 0 and runner.tries > 0


def configs() -> list:
    """YAML blocks with sections of a config."""
    return [
        block
        for page in PAGES
        for block in blocks(page)
        if block.language == "yaml" and re.match(rf"(defaults|{'|'.join(sections())}):", block.text)
    ]


@pytest.mark.parametrize("block", configs(), ids=lambda block: block.place)
def test_configs_resolve(block, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(block.text)
    assert load_config([str(file)], env={}).sources


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_config_keys_exist(page: Path) -> None:
    """Every `section.key` in code quotes is a key of the config."""
    known, names = {*key_types(), *ALIASES}, "|".join(sections())
    quoted = re.findall(rf"`((?:{names})\.[a-z_0-9]+)(?:=[^`]*)?`", read(page))
    assert [key for key in quoted if key not in known and not key.endswith((".json", ".jsonl", ".yaml"))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_files_exist(page: Path) -> None:
    """Every path of the project in code quotes is there."""
    tops = "da3po_cli|megatron_bridge|tests|scripts|benchmarks|configs"
    quoted = re.findall(rf"`((?:{tops})/[\w./-]*)`", read(page))
    assert [path for path in quoted if not (ROOT / path).exists()] == []
