"""Entry point of one rank that `launch` started: `python -m da3po_cli.launching.rank SPEC`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from da3po_cli.errors import Da3poError, Terminated
from da3po_cli.launching.launch import AGAIN, WorkerOptions, read_spec, run_rank
from da3po_cli.launching.nodes import open_store, redirect

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(spec_file: str) -> int:
    """Run the rank. Returns its exit code."""
    rank = int(os.environ["RANK"])
    spec = read_spec(Path(spec_file))
    _die_with(spec.launcher)
    logs = spec.run_dir.attempt(spec.options.attempt)
    if rank > 0:
        redirect(logs / f"rank_{rank}.log")
    try:
        options = _started_again(logs, rank, spec.options)
        run_rank(spec.config, spec.run_dir, options, spec.worker, launched=True)
    except Da3poError as error:
        if rank > 0:
            traceback.print_exc()
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Terminated:
        return 143
    except Exception:
        if rank > 0 or os.environ.get("DA3PO_DEBUG") == "1":
            traceback.print_exc()
        return 1
    return 0


def _started_again(logs: Path, rank: int, options: WorkerOptions) -> WorkerOptions:
    """After a restart by torch elastic: the options to go on with. What a rank of before said of its end is over."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return options
    (logs / f"rank_{rank}.error.json").unlink(missing_ok=True)
    open_store(rank)
    return replace(options, resume=AGAIN)


def _die_with(launcher: int) -> None:
    """Have the kernel end this rank when the launcher is gone: ranks are in sessions of their own."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):  # not Linux
        return
    if os.getppid() != launcher:  # it died before the call
        os._exit(1)


if __name__ == "__main__":
    code = main(sys.argv[1])
    if code:
        # A failed rank may hold threads that wait for its peers: leave without joining them.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
