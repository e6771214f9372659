"""The rules of the tree, read from the imports: who may know whom."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
SOURCES = sorted([*REPOSITORY.glob("da3po_cli/**/*.py"), *REPOSITORY.glob("megatron_bridge/**/*.py")])
HEAVY = ("torch", "vllm", "megatron", "transformers", "megatron_bridge")


def imports(file: Path, *, at_import_time: bool = False) -> set[str]:
    """Dotted names that a file imports; `from a import b` counts as a and a.b.

    With `at_import_time`, only those that run when the module is imported: not in functions, nor for type checkers.
    """
    return set(_names(ast.parse(file.read_text()).body, at_import_time))


def _names(body: list[ast.stmt], at_import_time: bool) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide who knows whom"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif at_import_time and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        elif at_import_time and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _names(node.orelse, at_import_time)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    yield from _names([child], at_import_time)
                elif isinstance(child, ast.ExceptHandler | ast.match_case):
                    yield from _names(child.body, at_import_time)


def offenders(files: list[Path], forbidden: tuple[str, ...], *, at_import_time: bool = False) -> list[str]:
    return [
        f"{file.relative_to(REPOSITORY)} imports {name}"
        for file in files
        for name in sorted(imports(file, at_import_time=at_import_time))
        if any(name == module or name.startswith(f"{module}.") for module in forbidden)
    ]


def below(*places: str) -> list[Path]:
    """Source files at or below these paths; there must be some."""
    found = [
        file
        for file in SOURCES
        for place in places
        if file.relative_to(REPOSITORY).as_posix() == place
        or file.relative_to(REPOSITORY).as_posix().startswith(f"{place}/")
    ]
    assert found, places
    return found


def test_the_mathematics_is_pure() -> None:
    pure = below("da3po_cli/algos", "da3po_cli/rewards", "megatron_bridge/ops.py")
    assert offenders(pure, ("torch.distributed", "megatron", "vllm", "omegaconf", "rich")) == []


def folder(name: str) -> str:
    """The row of the table that a dotted name belongs to: a folder, or a module beside the folders."""
    package, _, rest = name.partition(".")
    return package if package == "megatron_bridge" else rest.partition(".")[0]


def own_imports() -> dict[str, dict[str, set[str]]]:
    """Folder -> name of this project's that it imports, as `folder.module...` -> the files that do."""
    found: dict[str, dict[str, set[str]]] = {}
    for file in SOURCES:
        relative = file.relative_to(REPOSITORY)
        here = folder(".".join(relative.with_suffix("").parts))
        for name in imports(file):
            there = folder(name)
            ours = name.startswith(("da3po_cli.", "megatron_bridge.")) and name != "da3po_cli.__version__"
            if ours and there != here and here != "__init__":
                found.setdefault(here, {}).setdefault(name.removeprefix("da3po_cli."), set()).add(str(relative))
    return found


def import_table() -> dict[str, list[str]]:
    """Folder -> what it may import, in the order of the table in docs/architecture.md."""
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    section = page.split("## Who may import whom")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): re.findall(r"`([^`]+)`", row[2]) for row in rows}


def test_every_folder_has_a_row_and_imports_what_it_says() -> None:
    """An arrow that nothing uses any more goes, too: the table is what is, not what was once allowed."""
    table, real = import_table(), own_imports()
    present = {folder(".".join(file.relative_to(REPOSITORY).with_suffix("").parts)) for file in SOURCES}
    assert set(table) | {"errors", "__init__", "__main__"} == present
    for here, allowed in table.items():
        used = {name: files for name, files in real.get(here, {}).items() if name.partition(".")[0] != "errors"}
        strange = {name: files for name, files in used.items() if not any(within(name, one) for one in allowed)}
        assert strange == {}, here
        assert [one for one in allowed if not any(within(name, one) for name in used)] == [], here


def within(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}.")


def test_arrows_only_go_down() -> None:
    order = [*import_table()]
    upward = {
        here: [one for one in allowed if order.index(one.partition(".")[0]) <= order.index(here)]
        for here, allowed in import_table().items()
    }
    assert {here: ups for here, ups in upward.items() if ups} == {}


def test_rewards_has_an_inner_order() -> None:
    """Reading an answer and the language of formulas know nothing of each other; comparing knows both."""
    inside = {
        "reading": ("expressions", "comparing", "pool", "registry", "math"),
        "expressions": ("reading", "comparing", "pool", "registry", "math"),
        "comparing": ("pool", "registry", "math"),
    }
    for room, others in inside.items():
        above = tuple(f"da3po_cli.rewards.{other}" for other in others)
        assert offenders(below(f"da3po_cli/rewards/{room}"), above) == []


def test_files_can_be_read_at_a_sitting() -> None:
    long = [str(file.relative_to(REPOSITORY)) for file in SOURCES if len(file.read_text().splitlines()) > 400]
    assert long == []


@pytest.mark.parametrize(
    "place",
    [
        "da3po_cli/checks",
        "da3po_cli/commands",
        "da3po_cli/config",
        "da3po_cli/errors.py",
        "da3po_cli/evals/targets.py",
        "da3po_cli/launching",
        "da3po_cli/main.py",
        "da3po_cli/output.py",
        "da3po_cli/planning",
        "da3po_cli/protocols.py",
        "da3po_cli/runs",
        "da3po_cli/training/job.py",
        "da3po_cli/training/prepare.py",
    ],
)
def test_the_command_line_starts_without_torch(place: str) -> None:
    assert offenders(below(place), HEAVY, at_import_time=True) == []


def test_only_the_bridge_knows_megatron() -> None:
    assert offenders(below("da3po_cli"), ("megatron",)) == []


def test_only_rollouts_know_vllm() -> None:
    allowed = below("da3po_cli/rollouts")
    assert offenders([file for file in SOURCES if file not in allowed], ("vllm",)) == []


def test_parallel_state_has_one_importer() -> None:
    allowed = below("megatron_bridge/parallel.py")
    others = [file for file in SOURCES if file not in allowed]
    assert offenders(others, ("megatron.core.parallel_state", "megatron.core.mpu")) == []


def test_the_loop_sees_protocols_only() -> None:
    parts = ("megatron_bridge", "megatron", "vllm", "transformers", "torch.distributed", "da3po_cli.rollouts.engine")
    assert offenders(below("da3po_cli/training/loop.py"), parts) == []


def test_the_oracle_is_somebody_else() -> None:
    """What it computes says something about da3po only as long as it shares no line with it."""
    assert offenders(below("da3po_cli/doctor/oracle.py"), ("da3po_cli", "megatron_bridge", "megatron", "vllm")) == []


def test_this_reader_sees_what_it_should(tmp_path: Path) -> None:
    file = tmp_path / "sample.py"
    file.write_text(
        "import os\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"
        "try:\n    import vllm\nexcept ImportError:\n    import a.b\n"
        "def f():\n    from megatron.core import mpu\n"
        "class C:\n    import rich\n    def g(self):\n        import omegaconf\n"
    )
    assert imports(file, at_import_time=True) == {"os", "typing", "typing.TYPE_CHECKING", "vllm", "a.b", "rich"}
    assert imports(file) - imports(file, at_import_time=True) == {
        "torch",
        "megatron.core",
        "megatron.core.mpu",
        "omegaconf",
    }
