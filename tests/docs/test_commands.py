"""Every command of the pages is executed where that is cheap, else taken apart: its options and arguments exist.

A `bash` block without a tag is executed, in a directory that holds what the pages speak of; `train` and `ablate` as dry
runs. Other blocks say by their tag why not: they need a GPU, a cluster or the hub, minutes, a run to resume, or the
edits of extending.md. Their commands are parsed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from docs_pages import PAGES, ROOT, Block, blocks

from da3po_cli import main

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
