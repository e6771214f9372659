"""`da3po eval`: an evaluation on all local devices, from its directory to its result.

evals/<model>-<fingerprint>/
  job.json          what is asked: model, problems, prompts, sampling (`da3po_cli.evals.tasks.Job`)
  partial/          samples as they come, one file per rank; a restart goes on from them
  samples.jsonl     all samples in order, with --save-samples
  result.json       the result
  engine.json       about the engines: how many, their context and device
  run.json, logs/   as in a run
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from da3po_cli.config.schema import Config
from da3po_cli.evals.result import Result, make_result, read_results, write_results
from da3po_cli.evals.samples import Record, SampleStore
from da3po_cli.evals.tasks import Job
from da3po_cli.evals.worker import FACTS, JOB
from da3po_cli.runs.claim import claim
from da3po_cli.runs.directory import RunDir, command_line, git_commit

WORKER = "da3po_cli.evals.worker:eval_worker"
RESULT = "result.json"


def directory_of(job: Job, root: Path) -> Path:
    """Where an evaluation lives: a function of all that its numbers depend on."""
    return root / f"{re.sub(r'[^A-Za-z0-9._@+-]+', '-', job.model.name)}-{job.fingerprint}"


def finished(job: Job, directory: Path, *, with_samples: bool) -> Result | None:
    """The result of an evaluation that has been made before; None where there is none."""
    if not (directory / RESULT).is_file() or (with_samples and not SampleStore(directory).merged.is_file()):
        return None
    result = read_results(directory / RESULT)[0]
    # the names may be new ones
    return result | {"model": result["model"] | {"name": job.model.name}}


def evaluate(
    job: Job,
    config: Config,
    directory: Path,
    *,
    keep_samples: bool,
    silent: bool,
    json: bool = False,
    isolated: bool = False,
) -> Result | None:
    """Sample and grade what is missing, and write the result.

    Args:
        config: engine settings; parallel.data is the number of ranks.
        keep_samples: leave samples.jsonl.
        silent: no progress.
        isolated: leave this process as it was, see `launch`.

    Returns:
        The result; None on the ranks above 0 of an outer launcher.

    Raises:
        UsageError: another process is at it.
        Da3poError: of the first rank that failed.
    """
    from da3po_cli.launching.launch import WorkerOptions, launch, outer_launcher

    run_dir, place = RunDir(directory), outer_launcher()
    if place is not None and place.rank > 0:
        launch(config, run_dir, WorkerOptions(attempt=run_dir.await_attempt(), quiet=True), worker=WORKER)
        return None
    with claim(directory, "da3po eval"):
        job.write(directory / JOB)
        store, begun = SampleStore(directory), time.monotonic()
        before = len(store.done())
        attempt = _begin(run_dir)
        launch(
            config, run_dir, WorkerOptions(attempt=attempt, quiet=silent, json=json), worker=WORKER, isolated=isolated
        )
        records = list(store.records())
        facts = {
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "seconds": time.monotonic() - begun,
            "samples_of_earlier_attempts": before,
            "command": command_line(),
            "commits": list(dict.fromkeys(one["git"] for one in run_dir.read()["attempts"])),
            "ran": job.facts | _read_json(directory / FACTS),
        }
        result = make_result(job, records, facts)
        if keep_samples:
            store.merge(_in_order(job, records))
        write_results([result], directory / RESULT)
        if not keep_samples:
            store.clear()
        return result


def forget(directory: Path) -> None:
    """Delete what an earlier evaluation has left."""
    SampleStore(directory).clear()
    (directory / RESULT).unlink(missing_ok=True)


def _begin(run_dir: RunDir) -> int:
    """Note an attempt in run.json. An evaluation is no run: it does not become the latest one."""
    started = {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "git": git_commit(), "argv": command_line()}
    attempts = [*run_dir.read().get("attempts", []), started]
    run_dir.attempt(len(attempts)).mkdir(parents=True, exist_ok=True)
    run_dir.update(kind="evaluation", name=run_dir.name, status="running", attempts=attempts)
    return len(attempts)


def _in_order(job: Job, records: Sequence[Record]) -> list[Record]:
    place = {task.name: number for number, task in enumerate(job.tasks)}
    return sorted(records, key=lambda record: (place[record["bench"]], record["index"], record["sample"]))


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text()) if file.is_file() else {}
