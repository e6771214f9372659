"""CHECKS: all of `da3po doctor`. A new check is a function and an entry here."""

from __future__ import annotations

from collections.abc import Iterator

from da3po_cli.doctor import gpu, hub, machine, packages
from da3po_cli.doctor.findings import CheckFunction, Context, Finding, fail, ok


def config(context: Context) -> Iterator[Finding]:
    """The problems that the config has on this machine."""
    if not context.problems:
        yield ok("config", f"{context.chosen}: fits this machine, {context.ranks} rank(s)", ranks=context.ranks)
    for problem in context.problems:
        fix = problem.hint or f"change {problem.where}"
        yield fail("config", f"{problem.message} ({problem.where})", fix, key=problem.where)


CHECKS: tuple[tuple[str, CheckFunction], ...] = (
    ("config", config),
    ("machine", machine.python),
    ("machine", machine.system),
    ("machine", machine.cores),
    ("machine", machine.memory),
    ("machine", machine.shared_memory),
    ("machine", machine.open_files),
    ("machine", machine.runs_directory),
    ("machine", machine.home_directory),
    ("machine", machine.temporary_directory),
    ("hub", hub.cache),
    ("hub", hub.hub),
    ("packages", packages.declared),
    ("packages", packages.torch),
    ("packages", packages.megatron),
    ("packages", packages.vllm),
    ("packages", packages.transformer_engine),
    ("packages", packages.apex),
    ("packages", packages.transformers),
    ("packages", packages.math_verify),
    ("packages", packages.optional),
    ("gpu", gpu.driver),
    ("gpu", gpu.cuda),
    ("gpu", gpu.communication),
    ("gpu", gpu.gpus),
    ("gpu", gpu.memory),
    ("gpu", gpu.fp8),
)
"""(group, check) in the order in which they are shown: the quick ones first."""


def run(context: Context) -> Iterator[tuple[str, Finding]]:
    """(group, finding) of every check. A check that raises is a finding too: a doctor does not die of the illness."""
    for group, check in CHECKS:
        try:
            yield from ((group, found) for found in check(context))
        except Exception as error:
            name = getattr(check, "__name__", "check")
            why = f"this check itself failed: {type(error).__name__}: {error}"
            yield group, fail(name, why, "please report it as a bug of da3po", needed=False)
