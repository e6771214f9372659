"""`da3po` as a user types it, in this very process: what a command says and leaves, without starting an interpreter.

Starting Python and its libraries takes ten times as long as a step of the demo. Tests of what only a process can show
(signals, several ranks, what a shell sees) start one by `demo_runs`.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from da3po_cli.main import execute, normalise

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def da3po(root: Path, *arguments: str, path: Path | None = None) -> tuple[int, str, str]:
    """Run `da3po ARGUMENTS` with its runs below `root`: (exit code, stdout, stderr).

    Environment, signal handlers and search path are left as they were. `path` holds modules that it may import.
    """
    environment, handlers, found = dict(os.environ), {one: signal.getsignal(one) for one in SIGNALS}, list(sys.path)
    out, err = io.StringIO(), io.StringIO()
    try:
        os.environ["DA3PO_RUNS"] = str(root)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            os.environ.pop(name, None)
        if path is not None:
            sys.path.insert(0, str(path))
            os.environ["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
            patch.setattr("da3po_cli.reports.build.report_after", lambda out, run: None)  # it has tests of its own
            code = execute(normalise(list(arguments)))
    finally:
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = found
        for one, handler in handlers.items():
            signal.signal(one, handler)
    return code, out.getvalue(), err.getvalue()


def train(root: Path, *arguments: str, code: int = 0, path: Path | None = None) -> str:
    """Run `da3po train ARGUMENTS`, which must end with `code`; what it says."""
    ended, out, err = da3po(root, "train", *arguments, path=path)
    assert ended == code, f"exit code {ended}, not {code}:\n{out}{err}"
    return err


@contextlib.contextmanager
def one_engine() -> Iterator[None]:
    """One world and one engine for all runs inside: starting them takes ten times as long as two steps.

    The runs must agree in model, dtype and engine; the first one's is kept.
    """
    import da3po_cli.rollouts.engine as rollouts
    import megatron_bridge.parallel as place

    made: dict[str, Any] = {}
    initialize, engine = place.initialize, rollouts.VllmGenerator

    def same_world(*arguments: Any, **options: Any) -> Any:
        if "world" not in made:
            made["world"] = initialize(*arguments, **options)
        return made["world"]

    def same_engine(hf_dir: Any, *arguments: Any, **options: Any) -> Any:
        if "engine" not in made:
            made["engine"], made["is"] = engine(hf_dir, *arguments, **options), (str(hf_dir), options["dtype"])
        assert made["is"] == (str(hf_dir), options["dtype"]), "this needs an engine of its own"
        return made["engine"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "initialize", same_world)
        patch.setattr(place.Parallel, "shutdown", lambda self: None)
        patch.setattr(engine, "close", lambda self: None)
        patch.setattr(rollouts, "VllmGenerator", same_engine)
        yield
    if "engine" in made:
        made["engine"].close()
    if "world" in made:
        made["world"].shutdown()
