"""Every key of the config is read by the part that it is documented to steer: one that nothing reads is a promise."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from da3po_cli.config.keys import key_types, sections

REPOSITORY = Path(__file__).parents[2]
# What is only shown (commands, planning, reports) or only checked (config, but for what follows from it) does not act.
ACTING = ("da3po_cli/algos/", "da3po_cli/config/plan.py", "da3po_cli/config/schema.py", "da3po_cli/data/")
ACTING += ("da3po_cli/runs/", "da3po_cli/training/", "da3po_cli/rollouts/", "da3po_cli/launching/")
ACTING += ("da3po_cli/evals/", "da3po_cli/exporting/", "da3po_cli/rewards/", "megatron_bridge/")
ACTING += ("megatron_bridge/",)
ONE_VALUE = {"parallel.context", "parallel.expert"}
"""Keys that exist to be refused, with the one value that is built: the checks read them, and need nobody else to."""


def keys_read(source: str) -> set[str]:
    """The keys that some code reads, as `algo.tis` of `config.algo.tis`, `settings.tis` or `self._algo.tis`.

    A name, or an attribute, stands for a section where it is called like it, is annotated with its class, or is
    assigned from such a one.
    """
    tree = ast.parse(source)
    classes = {kind.__name__: name for name, kind in sections().items()}
    stands_for = {name: {name} for name in sections()}
    for name, value in _bindings(tree):
        found = classes.get(value.id) if isinstance(value, ast.Name) else None
        known = {found} if found else stands_for.get(_last(value), set())
        stands_for[name] = stands_for.get(name, set()) | known
    return {
        f"{section}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        for section in stands_for.get(_last(node.value), ())
        if f"{section}.{node.attr}" in key_types()
    }


def _bindings(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(name, its annotation or what it is assigned from), in the order of the code; `self` is of its class."""
    yield from (("self", ast.Name(node.name)) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.arg | ast.AnnAssign | ast.Assign)]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield node.arg, node.annotation
        elif isinstance(node, ast.AnnAssign):
            yield _last(node.target), node.annotation
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from ((_last(one), value) for one, value in zip(target.elts, node.value.elts, strict=True))
                else:
                    yield _last(target), node.value


def _last(node: ast.expr) -> str:
    """`tis` of `config.algo.tis`; empty for what is neither a name nor an attribute."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def test_every_key_is_read_by_what_it_steers() -> None:
    read: set[str] = set()
    for file in [*REPOSITORY.glob("da3po_cli/**/*.py"), *REPOSITORY.glob("megatron_bridge/**/*.py")]:
        if file.relative_to(REPOSITORY).as_posix().startswith(ACTING) and file.name != "table.py":
            read |= keys_read(file.read_text())
    assert sorted(set(key_types()) - read - ONE_VALUE) == [], "nothing acts on these keys: build it, or remove them"


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ("config.algo.tis", {"algo.tis"}),
        ("self.config.algo.tis", {"algo.tis"}),
        ("def f(settings: AlgoConfig): return settings.tis", {"algo.tis"}),
        ("a, b = config.algo, config.train\nb.lr + a.lr", {"train.lr"}),
        ("class A:\n def __init__(self, own: AlgoConfig): self._own = own\n def f(self): self._own.tis", {"algo.tis"}),
        ("response.tis", set()),
        ("config.algo.tis = 1", set()),
        ("algo = AlgoConfig(tis='on')", set()),
    ],
)
def test_this_reader_sees_what_it_should(source: str, keys: set[str]) -> None:
    assert keys_read(source) == keys
