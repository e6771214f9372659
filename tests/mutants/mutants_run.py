"""Mutation tests: small mistakes in the training loop, each made alone in a copy of the project, each killed by a test.

`make test-mutants` runs those of mutants_table.py. A mutant is killed where its killer, which passes on the unchanged
code, fails on the copy. A survivor fails the check, and so do an entry whose text is not in its file exactly once, a
mutant that is no valid program, and a killer that cannot be run.

Importing torch, transformers and Megatron takes ten times as long as most killers. So one process imports them, and
nothing of the project, and forks a child per mutant, which finds the project in its own copy.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutant import Mutant
from mutants_table import MUTANTS

ROOT = Path(__file__).parents[2]
PACKAGES = ("da3po_cli", "megatron_bridge")
COPIED = (*PACKAGES, "configs", "tests", "pyproject.toml")
PRELOADED = (
    "pytest", "hypothesis.strategies", "numpy", "omegaconf", "rich.progress", "typer", "torch.distributed.checkpoint",
    "transformers.models.auto.modeling_auto", "transformers.models.qwen3.modeling_qwen3", "megatron.core.optimizer",
    "transformers.models.auto.tokenization_auto", "megatron.core.dist_checkpointing", "megatron.core.models.gpt",
    "megatron.core.pipeline_parallel.schedules", "megatron.core.dist_checkpointing.strategies.torch",
)  # fmt: skip
LIMIT = 300.0  # seconds of one test: ten times what the slowest takes, for it may run beside other work
PATIENCE = 10.0  # seconds in which a process that is told to end may clear up
NO_PROGRAM = {"SyntaxError", "IndentationError", "NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError"}

Say = Callable[[str], Any]


@dataclass(frozen=True)
class Task:
    """Tests to run in a copy of the project."""

    name: str
    killers: list[str]
    mutant: Mutant | None = None


@dataclass(frozen=True)
class Outcome:
    task: Task
    code: int | None
    """pytest's exit code; negative: the number of the signal that ended it; None: it took too long."""
    seconds: float
    cpu: float
    failures: dict[str, list[str]] = field(default_factory=dict)
    """Test -> type and first line of its error."""
    log: str = ""

    @property
    def problem(self) -> str:
        """Why a mutant counts as not killed; empty where it is killed."""
        if self.code is None:
            return "its killer takes too long"
        if self.code == 0:
            return "SURVIVED"
        if self.code != 1 or not self.failures:
            return f"its killer cannot be run (exit code {self.code})"
        broken = [kind for kind, _ in self.failures.values() if kind in NO_PROGRAM]
        return f"it is no program ({broken[0]})" if broken else ""


def out_of_date(root: Path, mutants: Sequence[Mutant]) -> dict[str, str]:
    """What is wrong with entries of the table, by the mutant's name."""
    found: dict[str, str] = {}
    for mutant in mutants:
        file, killer = root / mutant.file, root / mutant.killer.partition("::")[0]
        function = mutant.killer.partition("::")[2].partition("[")[0]
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if text.count(mutant.old) != 1:
            found[mutant.name] = f"its text is {text.count(mutant.old)} times in {mutant.file}: {mutant.old!r}"
        elif not killer.is_file() or f"def {function}(" not in killer.read_text(encoding="utf-8"):
            found[mutant.name] = f"there is no test {mutant.killer}"
        else:
            try:
                if ast.dump(ast.parse(text)) == ast.dump(ast.parse(text.replace(mutant.old, mutant.new))):
                    found[mutant.name] = "it changes nothing"
            except SyntaxError as error:
                found[mutant.name] = f"it is no program ({error})"
    return found


def run(
    root: Path,
    mutants: Sequence[Mutant],
    say: Say,
    *,
    jobs: int,
    limit: float = LIMIT,
    copied: Sequence[str] = COPIED,
    preloaded: Sequence[str] = PRELOADED,
) -> int:
    """Make and kill the mutants, and say how each fared. Returns how many were not killed.

    Args:
        jobs: children at a time.
        limit: seconds of each test.
        copied: files and directories below `root` that a test needs.
        preloaded: modules that are imported once for all.
    """
    begun, failed = time.monotonic(), out_of_date(root, mutants)
    for name, problem in failed.items():
        say(f"FAILED  {name}: {problem}")
    mutants = [mutant for mutant in mutants if mutant.name not in failed]
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with warnings.catch_warnings(action="ignore"):
        for module in preloaded:
            importlib.import_module(module)
    gc.freeze()  # a child's collector need not go through all that again
    strangers = [name for name in PACKAGES if name in sys.modules]
    assert not strangers, f"{strangers[0]} is imported before the fork: every child would test it"
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        os.environ["TMPDIR"] = scratch
        children = _Children(Path(scratch), _copy(root, Path(scratch) / "base", copied), jobs, limit)
        try:
            bad = _killers_that_fail(children, mutants, say)
            tasks = [Task(one.name, [one.killer], one) for one in mutants if one.killer not in bad]
            failed |= {one.name: f"its killer fails without it: {one.killer}" for one in mutants if one.killer in bad}
            for outcome in children.run(tasks):
                if outcome.problem:
                    failed[outcome.task.name] = outcome.problem
                _report(outcome, say)
        finally:
            children.end()
            del os.environ["TMPDIR"]
    for name, problem in failed.items():
        say(f"not killed: {name}: {problem}")
    total = len(mutants) + sum(name not in {one.name for one in mutants} for name in failed)
    say(f"{total - len(failed)} passed, {len(failed)} failed in {time.monotonic() - begun:.0f} s")
    return len(failed)


def _copy(root: Path, target: Path, copied: Sequence[str]) -> Path:
    target.mkdir()
    for name in copied:
        if (root / name).is_dir():
            shutil.copytree(root / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(root / name, target / name)
    return target


def _killers_that_fail(children: _Children, mutants: Sequence[Mutant], say: Say) -> set[str]:
    """Run all killers on the unchanged code, those of a file in one process."""
    files: dict[str, list[str]] = {}
    for killer in dict.fromkeys(mutant.killer for mutant in mutants):
        files.setdefault(killer.partition("::")[0], []).append(killer)
    begun, bad = time.monotonic(), set[str]()
    for outcome in children.run([Task(file, killers) for file, killers in files.items()]):
        if outcome.code != 0:
            say(f"FAILED  {outcome.task.name} on the unchanged code (exit code {outcome.code})\n{outcome.log[-3000:]}")
            names = [*outcome.failures] or outcome.task.killers  # a killer without a [case] stands for all its cases
            bad |= {one for one in outcome.task.killers if any(name.startswith(one) for name in names)}
    count, seconds = sum(map(len, files.values())), time.monotonic() - begun
    say(f"{count} tests on the unchanged code, {seconds:.0f} s: {len(bad)} fail")
    return bad


def _report(outcome: Outcome, say: Say) -> None:
    name, killer = outcome.task.name, outcome.task.killers[0]
    if outcome.problem:
        say(f"FAILED  {name}: {outcome.problem}: {killer} ({outcome.seconds:.1f} s)")
        say(outcome.log[-3000:] if outcome.code != 0 else "")
        return
    kind, _ = next(iter(outcome.failures.values()))
    say(f"killed  {name}: {killer} ({kind}, {outcome.seconds:.1f} s, CPU {outcome.cpu:.1f} s)")


class _Children:
    """Forked processes, `jobs` at a time, each in a process group of its own and in its own copy of the project."""

    def __init__(self, scratch: Path, base: Path, jobs: int, limit: float) -> None:
        self._scratch, self._base, self._jobs, self._limit = scratch, base, jobs, limit
        self._running: dict[int, tuple[Task, Path, float]] = {}
        self._count = 0

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """The outcomes, as they come."""
        waiting = deque(tasks)
        while waiting or self._running:
            while waiting and len(self._running) < self._jobs:
                self._start(waiting.popleft())
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if pid in self._running:
                yield self._ended(pid, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)
            for late in [pid for pid, one in self._running.items() if self._late(*one)]:
                _end_group(late)
                yield self._ended(late, None)
            if pid == 0:
                time.sleep(0.02)

    def _late(self, task: Task, place: Path, begun: float) -> bool:
        return time.monotonic() - begun > self._limit * len(task.killers)

    def end(self) -> None:
        """End those that are still running."""
        for pid in self._running:
            _end_group(pid)

    def _start(self, task: Task) -> None:
        self._count += 1
        place = self._scratch / str(self._count)
        place.mkdir()
        tree = self._base
        if task.mutant is not None:
            tree = place / "tree"
            shutil.copytree(self._base, tree, copy_function=os.link)
            _mutate(tree, task.mutant)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _work(tree, place, task.killers)
        with suppress(OSError):  # both do it, so that it is done whoever is first
            os.setpgid(pid, pid)
        self._running[pid] = (task, place, time.monotonic())

    def _ended(self, pid: int, code: int | None, cpu: float = math.nan) -> Outcome:
        task, place, begun = self._running.pop(pid)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what it may have left behind
        report, log = place / "report.json", place / "log"
        failures = json.loads(report.read_text()) if report.is_file() else {}
        text = log.read_text(errors="replace") if log.is_file() else ""
        shutil.rmtree(place, ignore_errors=True)
        return Outcome(task, code, time.monotonic() - begun, cpu, failures, text)


def _mutate(tree: Path, mutant: Mutant) -> None:
    file = tree / mutant.file
    text = file.read_text(encoding="utf-8").replace(mutant.old, mutant.new)
    file.unlink()  # a hard link
    file.write_text(text, encoding="utf-8")
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):  # of the file as it was
        compiled.unlink()


def _end_group(pid: int) -> None:
    """Let a child and what it started clear up, then kill what is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(pid, number)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    time.sleep(0.05)
                    continue
            return


class _Witness:
    """A pytest plugin that notes what failed and why."""

    def __init__(self) -> None:
        self.failures: dict[str, list[str]] = {}

    def pytest_exception_interact(self, node: Any, call: Any) -> None:
        lines = str(call.excinfo.value).strip().splitlines()
        self.failures[node.nodeid] = [call.excinfo.type.__name__, *lines[:1]][:2]
        self.failures[node.nodeid] += [""] * (2 - len(self.failures[node.nodeid]))


def _work(tree: Path, place: Path, killers: list[str]) -> None:
    """In the child: run the tests of `tree` and end with pytest's exit code."""
    code = 70
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        log = os.open(place / "log", os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(tree)
        sys.path[0] = str(tree)  # in place of this file's directory
        os.environ["PYTHONPATH"] = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])
        for name in PACKAGES:
            found = importlib.import_module(name).__file__ or ""
            assert Path(found).is_relative_to(tree), f"{name} is {found}, not the copy in {tree}"
        import pytest

        witness = _Witness()
        options = ["-q", "-Wignore", f"--basetemp={place / 'tmp'}", "--hypothesis-seed=0"]
        options += [f"-pno:{plugin}" for plugin in ("cacheprovider", "anyio", "typeguard")]
        code = int(pytest.main([*options, *killers], plugins=[witness]))
        (place / "report.json").write_text(json.dumps(witness.failures))
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        sys.stdout.flush()
        os._exit(code)  # an engine's destructors run in an order that can end in an abort


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill mutants of the training loop.")
    parser.add_argument("names", nargs="*", help="only mutants with one of these words in their name or file")
    parser.add_argument("--jobs", type=int, default=min(4, len(os.sched_getaffinity(0))))
    arguments = parser.parse_args()
    chosen = [
        one
        for one in MUTANTS
        if not arguments.names or any(word in f"{one.name} {one.file}" for word in arguments.names)
    ]
    if not chosen:
        parser.error(f"no mutant is called {' or '.join(arguments.names)}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # through `finally`
    return int(
        run(ROOT, chosen, lambda text: sys.stdout.write(f"{text}\n") and sys.stdout.flush(), jobs=arguments.jobs) > 0
    )


if __name__ == "__main__":
    sys.exit(main())
