"""Imports packages in another process (`probe`) and keeps what it told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from da3po_cli.rollouts.process import engine_environment

SECONDS = 300.0  # for one package; vLLM takes up to a minute on a slow disk


class Probes:
    """`Prober` over one process for all packages; another one goes on where it dies.

    Args:
        packages: in the order in which they are imported. Nothing starts before the first question.
        say: told what is being waited for.
    """

    def __init__(
        self, packages: Sequence[str], say: Callable[[str], None], env: Mapping[str, str] = os.environ
    ) -> None:
        self._packages, self._say = list(packages), say
        self._env = {**engine_environment(), "PYTHONWARNINGS": "ignore", **env}
        self._facts: dict[str, Mapping[str, Any]] | None = None

    def __call__(self, package: str) -> Mapping[str, Any]:
        if self._facts is None:
            self._say(f"importing {', '.join(self._packages)}; this may take a minute")
            self._facts = {}
            while waiting := [name for name in self._packages if name not in self._facts]:
                self._run(waiting, self._facts)
        return self._facts[package]

    def _run(self, waiting: list[str], facts: dict[str, Mapping[str, Any]]) -> None:
        """Start a process for these packages and read what it tells; the one that it dies of gets an error."""
        command = [sys.executable, "-m", "da3po_cli.doctor.probe", *waiting]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=self._env
        )
        assert process.stdout is not None and process.stderr is not None
        talk: list[str] = []
        stderr = process.stderr
        listener = threading.Thread(target=lambda: talk.extend(stderr), daemon=True)
        listener.start()
        late = threading.Event()
        try:
            while len(facts) < len(self._packages):
                timer = threading.Timer(SECONDS, lambda: (late.set(), process.kill()))
                timer.start()
                line = process.stdout.readline()
                timer.cancel()
                if not line:  # it has ended, or is about to
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(timeout=10)
                    break
                told = json.loads(line)
                facts[told.pop("package")] = told
        finally:
            process.kill()
            process.wait()
            listener.join(timeout=5)
        left = [name for name in waiting if name not in facts]
        if left:
            facts[left[0]] = {"error": _death(process.returncode, late.is_set(), talk)}


def _death(code: int, late: bool, talk: list[str]) -> str:
    if late:
        return f"the import did not end within {SECONDS:.0f} s"
    how = f"the import ended the process with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
    said = [line.strip() for line in talk if line.strip()]
    return f"{how}: {said[-1]}" if said else how
