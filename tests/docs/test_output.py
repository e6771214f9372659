"""docs/output.md names what the code writes, no more and no less: metrics, events, exit codes, variables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from docs_pages import ROOT, read, section, table_rows

from da3po_cli import errors
from da3po_cli.algos.types import DropReason
from da3po_cli.evals.metrics import by_difficulty
from da3po_cli.runtime.clock import PHASES

PAGE = ROOT / "docs" / "output.md"
# who puts metrics into a record; the report, the display and the model card read them
WRITERS = ("algos", "runtime", "runs/log.py", "runs/metrics.py", "runs/validations.py")
READERS = ("runtime/model_card.py",)
_METRIC = re.compile(r"[a-z]+/[a-z_0-9]+")


def first_cells(text: str) -> list[str]:
    """The code-quoted names in the first column of the tables in `text`."""
    return [found[1] for row in table_rows(text) if (found := re.fullmatch(r"`([^`]+)`", row[0]))]


DOCUMENTED = first_cells(section(PAGE, "Metrics"))


def trees() -> Iterator[tuple[Path, ast.Module]]:
    package = ROOT / "da3po_cli"
    for place in WRITERS:
        for file in sorted((package / place).rglob("*.py")) if (package / place).is_dir() else [package / place]:
            if file.relative_to(package).as_posix() not in READERS:
                yield file, ast.parse(file.read_text(encoding="utf-8"))


def literal_metrics() -> set[str]:
    """Every string constant that has the form of a metric; pieces of f-strings are none."""
    found: set[str] = set()
    for _, tree in trees():
        pieces = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
                found |= {node.value} if _METRIC.fullmatch(node.value) else set()
    return found


def made_up_names() -> set[str]:
    """Names with a part that is filled in at run time."""
    losses = ast.parse((ROOT / "da3po_cli/algos/losses.py").read_text(encoding="utf-8"))
    sums = {
        node.value
        for node in ast.walk(losses)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[a-z_]+_sum", node.value)
    }
    levels = by_difficulty({"a": 0, "b": 5, "c": 8}, {"a": 0, "b": 0, "c": 0}, 8)
    per_bench = {"avg@k", "pass@k", "length", "truncated", "unknown", *(f"acc_{level}" for level in levels)}
    return (
        {f"train/{name.removesuffix('_sum')}" for name in sums}
        | {f"sample/drop_{reason}" for reason in get_args(DropReason)}
        | {f"timing/{phase}" for phase in PHASES}
        | {f"val/<bench>/{name}" for name in per_bench}
    )


def test_every_metric_is_described_and_every_description_has_a_metric() -> None:
    written = literal_metrics() | made_up_names()
    assert len(written) > 50
    assert sorted(written - set(DOCUMENTED)) == [], "docs/output.md lacks these metrics"
    assert sorted(set(DOCUMENTED) - written) == [], "docs/output.md has metrics that nothing writes"


def test_no_metric_is_described_twice() -> None:
    assert len(DOCUMENTED) == len(set(DOCUMENTED))


def test_metrics_have_a_meaning() -> None:
    for row in table_rows(section(PAGE, "Metrics")):
        if row[0].startswith("`"):
            assert len(row) == 3 and len(row[2]) > 4, row


# -------------------------------------------------------------------------------------------------------------- events


def code_events() -> set[str]:
    """Names of the events that commands and displays emit."""
    found: set[str] = set()
    for file in sorted((ROOT / "da3po_cli").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            first = node.args[0]
            told = node.func.attr in ("event", "_emit", "_tell") and isinstance(first, ast.Constant)
            if told and isinstance(first.value, str) and re.fullmatch(r"[a-z_]+", first.value):
                found.add(first.value)
    return found


def test_every_event_is_described() -> None:
    rows = [row for row in table_rows(section(PAGE, "Events")) if row[1].startswith("`")]
    assert {row[1].strip("`") for row in rows} == code_events()


def test_every_command_has_its_events() -> None:
    import typer

    from da3po_cli.main import make_app

    def verbs(command, name: str = "") -> Iterator[str]:
        for word, inner in getattr(command, "commands", {}).items():
            full = f"{name} {word}".strip()
            yield from verbs(inner, full) if hasattr(inner, "commands") else [full]

    root = typer.main.get_command(make_app())
    with_json = {
        "eval" if name == "eval run" else name for name in verbs(root) if "--json" in options_of(root, name.split())
    }
    rows = [row[0].strip("`") for row in table_rows(section(PAGE, "Events")) if row[0].startswith("`")]
    assert with_json == {row.removesuffix(" --dry-run") for row in rows}


def options_of(command, words: list[str]) -> set[str]:
    for word in words:
        command = command.commands[word]
    return {option for parameter in command.params for option in parameter.opts}


# ------------------------------------------------------------------------------------------------ exit codes, variables


def test_exit_codes_are_those_of_the_errors() -> None:
    kinds = {
        (error.exit_code, error.kind)
        for error in [errors.Da3poError, *all_subclasses(errors.Da3poError)]
        if error.__module__.startswith("da3po_cli")
    }
    rows = [row for row in table_rows(section(PAGE, "Exit codes")) if row[0].isdigit()]
    stated = {(int(code), kind) for code, kinds_, _ in rows for kind in re.findall(r"`(\w+)`", kinds_)}
    assert stated == kinds
    assert {int(row[0]) for row in rows} == {code for code, _ in kinds} | {0, 130, 143}


def all_subclasses(kind: type) -> list[type]:
    import da3po_cli.algos.sampling  # noqa: F401, has one of its own

    return [one for child in kind.__subclasses__() for one in [child, *all_subclasses(child)]]


def test_variables_are_those_that_are_read() -> None:
    read_by_code = set(re.findall(r"DA3PO_[A-Z_]+", "".join(read(file) for file in (ROOT / "da3po_cli").rglob("*.py"))))
    reserved = {"DA3PO_", "DA3PO_LOG_LEVEL", "DA3PO_RUN__NAME"}  # a prefix, a name that nothing reads, an instance
    stated = set(first_cells(section(PAGE, "Environment variables")))
    assert stated == read_by_code - reserved
