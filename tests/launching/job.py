"""A command that starts a job with one of `workers`: `python job.py RUN_DIR RANKS WORKER`, with `main`'s errors."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])

from da3po_cli import main
from da3po_cli.config.schema import Config, ParallelConfig
from da3po_cli.launching.launch import WorkerOptions, launch, outer_launcher
from da3po_cli.runs.directory import RunDir


def start(directory: str, ranks: str, worker: str) -> None:
    config = replace(Config(), parallel=ParallelConfig(data=int(ranks)))
    run_dir = RunDir(Path(directory))
    place = outer_launcher()
    if place is None or place.rank == 0:
        attempt = run_dir.create("", "", sys.argv)
    else:
        attempt = run_dir.await_attempt()
    launch(config, run_dir, WorkerOptions(attempt=attempt), worker=f"workers:{worker}")


class _Job:
    def __call__(self, args: list[str], prog_name: str, standalone_mode: bool) -> None:
        start(*args)


main.make_app = lambda: _Job()  # type: ignore[assignment,return-value]
main.run()
