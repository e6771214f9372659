"""Every command of the pages is executed where that is cheap, else taken apart: its options and arguments exist.

A `bash` block without a tag is executed, in a directory that holds what the pages speak of; `train` and `ablate` as dry
runs. Other blocks say by their tag why not: they need a GPU, a cluster or the hub, minutes, a run to resume, or the
edits of extending.md. Their commands are parsed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from docs_pages import PAGES, ROOT, Block, blocks
from eval_helpers import result_of
from report_runs import make_ablation, make_group, make_run

from da3po_cli import main
from da3po_cli.config import devices
from da3po_cli.evals.result import write_results

TAGS = {"", "gpu", "cluster", "hub", "slow", "resume", "extended", "setup"}
DRY = {"train", "ablate"}  # executed with --dry-run
RUN = {"config", "data", "grade", "algos", "theory", "report", "runs", "plan", "doctor", ("eval", "compare")}
_CALL = re.compile(r"(?:^|\s)(?:\.venv/bin/)?(?:da3po|(?:python3? )?-m da3po_cli)(?=\s|$)")
_VARIABLE = re.compile(r"\w+=\S*$")


@dataclass(frozen=True)
class Command:
    """One call of da3po in a page. `plain`: nothing stands before it on its line, such as torchrun."""

    block: Block
    text: str
    plain: bool

    @property
    def arguments(self) -> list[str]:
        return shlex.split(self.text, comments=True)

    @property
    def executed(self) -> bool:
        return self.block.tag == "" and self.plain


def commands() -> Iterator[Command]:
    for page in PAGES:
        for block in blocks(page):
            if block.language not in ("bash", "console"):
                continue
            for line in re.sub(r"\s*\\\n\s*", " ", block.text).splitlines():
                found = None if line.lstrip().startswith("#") else _CALL.search(line)
                if found:
                    before = [word for word in line[: found.start()].split() if not _VARIABLE.match(word)]
                    yield Command(block, line[found.end() :], not before or before == ["$"])


COMMANDS = list(commands())


def parse(arguments: list[str]) -> None:
    """Let typer take a command line apart. Raises on an option or argument that the command does not have."""
    parser, rest = typer.main.get_command(main.make_app()), main.normalise(arguments)
    while hasattr(parser, "commands") and rest and rest[0] in parser.commands:
        parser, rest = parser.commands[rest[0]], rest[1:]
    assert not hasattr(parser, "commands") or parser.name == "eval", f"no such command: {arguments}"
    parser.make_context(parser.name, list(rest))


def test_tags_are_known() -> None:
    found = [b for page in PAGES for b in blocks(page) if b.language in ("bash", "console") and b.tag not in TAGS]
    assert [block.place for block in found] == []


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: f"{c.block.place} {c.text.strip()[:60]}")
def test_commands_parse(command: Command) -> None:
    parse(command.arguments)


def test_a_wrong_option_is_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["report", "--hmtl", "page.html"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files and runs that the pages speak of."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    root = tmp_path_factory.mktemp("docs")
    rows = [{"problem": f"What is {n} times 7?", "answer": str(7 * n)} for n in range(2, 12)]
    for name in ("problems.jsonl", "rows.jsonl"):
        (root / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("dapo.parquet", "gsm8k.parquet"):
        parquet.write_table(pa.Table.from_pylist(rows), root / name)
    answers = [{"gold": "1/2", "response": "0.5"}, {"gold": "3", "response": r"It is \boxed{4}."}]
    (root / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    quick_start = next(page for page in PAGES if page.name == "quick-start.md")
    (root / "mine.yaml").write_text(next(b.text for b in blocks(quick_start) if b.language == "yaml"))
    for name, right in (("base", [0, 1, 1, 2]), ("run", [1, 2, 2, 2])):
        write_results([result_of({"toy": right}, name=name)], root / f"{name}.json")
    groups = {step: [make_group(10 * step + k, k, size=8) for k in range(9)] for step in (1, 2)}
    for name in ("first", "demo"):
        make_run(root / "runs" / name, {0: (0.4, 0.8), 2: (0.6, 0.9)}, groups=groups)
    make_ablation(root / "runs" / "lambda-demo", {"1.0": [0.5, 0.6], "2.0": [0.7, 0.75]})
    return root


@pytest.fixture
def machine(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a GPU and without settings, in that directory."""
    for name in list(os.environ):
        if name.startswith(("DA3PO_", "SLURM_")) or name in ("RANK", "WORLD_SIZE", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(place)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(devices, "installed_gpus", lambda root: 0)
    return place


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c.executed], ids=lambda c: f"{c.block.place} {c.text.strip()[:60]}"
)
def test_commands_run(
    command: Command, machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command.arguments
    verbs = {arguments[0], tuple(arguments[:2])}
    if verbs & DRY and not {"--dry-run", "-h", "--help"} & set(arguments):
        arguments.append("--dry-run")
    assert verbs & (RUN | DRY), (
        f"{command.block.place}: tag the block with one of {sorted(TAGS - {''})}: it is not cheap"
    )
    if verbs & DRY:
        monkeypatch.setenv("DA3PO_RUNS", str(machine / "new"))  # where no name is taken
    code = main.execute(main.normalise(arguments))
    said = capsys.readouterr()
    assert code == 0, said.out + said.err
    assert said.out.strip()


def test_the_pages_have_commands() -> None:
    """The patterns above find what is there."""
    assert len(COMMANDS) > 50
    assert sum(command.executed for command in COMMANDS) > 25
    plain = [b for page in PAGES for b in blocks(page) if not b.language]
    assert [b.place for b in plain if _CALL.search(b.text)] == [], "commands stand in bash blocks"
    indented = [
        f"{page.name}: {line}"
        for page in PAGES
        for line in page.read_text().splitlines()
        if re.match(r"    da3po ", line)
    ]
    assert indented == [], "commands stand in bash blocks"


def test_scripts_and_targets_exist() -> None:
    """Paths and make targets in bash blocks."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for page in PAGES:
        for block in blocks(page):
            if block.language == "bash":
                assert set(re.findall(r"^make ([\w-]+)", block.text, re.M)) <= targets, block.place
                for path in re.findall(r"(?:^|\s)((?:scripts|benchmarks)/[\w.-]+)", block.text, re.M):
                    assert (ROOT / path).is_file(), block.place
