"""docs/output.md names what the code writes, no more and no less: metrics, events, exit codes, variables."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from docs_pages import ROOT, code, read, section, table_rows

from da3po_cli import errors
from da3po_cli.algos.types import DropReason
from da3po_cli.evals.metrics import by_difficulty
from da3po_cli.training.clock import PHASES

PAGE = ROOT / "docs" / "output.md"
# who puts metrics into a record; the report, the display and the model card read them
WRITERS = ("da3po_cli/algos/", "da3po_cli/training/", "da3po_cli/rollouts/", "da3po_cli/evals/held_out.py")
WRITERS += ("da3po_cli/runs/log.py", "da3po_cli/runs/metrics.py")
_METRIC = re.compile(r"[a-z]+/[a-z_0-9]+")


def first_cells(text: str) -> list[str]:
    """The code-quoted names in the first column of the tables in `text`."""
    return [found[1] for row in table_rows(text) if (found := re.fullmatch(r"`([^`]+)`", row[0]))]


DOCUMENTED = first_cells(section(PAGE, "Metrics"))


def writers() -> Iterator[ast.Module]:
    for file, tree in code().items():
        if file.startswith(WRITERS):
            yield tree


def literal_metrics() -> set[str]:
    """Every string constant that has the form of a metric; pieces of f-strings are none."""
    found: set[str] = set()
    for tree in writers():
        pieces = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
                found |= {node.value} if _METRIC.fullmatch(node.value) else set()
    return found


def made_up_names() -> set[str]:
    """Names with a part that is filled in at run time."""
    losses = code()["da3po_cli/algos/losses.py"]
    sums = {
        node.value
        for node in ast.walk(losses)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[a-z_]+_sum", node.value)
    }
    levels = by_difficulty({"a": 0, "b": 5 / 8, "c": 1}, {"a": 0, "b": 0, "c": 0})
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
    for tree in code().values():
        for node in ast.walk(tree):
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


CHEAP = {
    ("train --dry-run", "plan"): "train -c demo --dry-run",
    ("plan", "plan"): "plan -c demo",
    ("eval compare", "compare"): "eval compare base.json run.json",
    ("ablate --dry-run", "planned"): "ablate -c demo --algos grpo,dapo --dry-run",
    ("ablate --dry-run", "plan"): "ablate -c demo --algos grpo,dapo --dry-run",
    ("grade", "grade"): "grade answers.jsonl",
    ("grade", "summary"): "grade answers.jsonl",
    ("data check", "data_check"): "data check problems.jsonl",
    ("runs ls", "run"): "runs ls",
    ("runs show", "run"): "runs show demo",
    ("config show", "config"): "config show -c demo",
    ("config diff", "diff"): "config diff demo qwen3-4b",
    ("algos", "algorithm"): "algos",
    ("theory", "theory"): "theory --group 4",
}
"""(command, event) of the page -> a command line that emits it in a second or two."""


def event_rows() -> dict[tuple[str, str], str]:
    """(command, event) -> the text about its fields. A row without a command belongs to the one above it."""
    found: dict[tuple[str, str], str] = {}
    command = ""
    for row in table_rows(section(PAGE, "Events")):
        command = row[0].strip("`") or command
        if row[1].startswith("`"):
            found[command, row[1].strip("`")] = row[2]
    return found


@pytest.mark.parametrize(("row", "line"), CHEAP.items(), ids=[" ".join(row) for row in CHEAP])
def test_events_have_the_fields_of_the_page(
    row: tuple[str, str], line: str, machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from da3po_cli.main import execute

    assert execute([*line.split(), "--json"]) == 0
    events = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    fields = {name for event in events if event["event"] == row[1] for name in event}
    about = event_rows()[row].partition(": `key`")[0]  # after it come the fields of a part
    stated = {name for name in re.findall(r"`(\w+)`", about)}
    assert stated and stated <= fields


# ------------------------------------------------------------------------------------------------------- plan, doctor


def test_the_lines_of_a_plan_are_explained(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from da3po_cli.main import execute

    assert execute(["plan", "-c", "qwen3-4b", "--gpus", "8"]) == 0
    head = capsys.readouterr().out.partition("\n\n")[0]
    stated = [name for row in table_rows(section(ROOT / "docs/plan.md", "The lines")) for name in quoted(row[0])]
    assert stated == [line.split()[0] for line in head.splitlines()]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_groups_of_the_doctor_are_listed() -> None:
    from da3po_cli.doctor.table import CHECKS

    stated = [row[0] for row in table_rows(section(ROOT / "docs/doctor.md", "A machine"))][2:]
    assert stated == list(dict.fromkeys(group for group, _ in CHECKS))


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
    reserved = {"DA3PO_", "DA3PO_RUN__NAME"}  # a prefix, an instance
    stated = set(first_cells(section(PAGE, "Environment variables")))
    assert stated == read_by_code - reserved
