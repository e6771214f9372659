"""Training and evaluating from Python: `from da3po_cli import Config, evaluate, load_config, train`.

The same config, run directories and results as on the command line. What the command line prints as an error is raised
here as a `Da3poError`. All ranks, a single one too, are processes of their own that never import the calling script;
this one is left as it was.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3po_cli.config import load
from da3po_cli.config.schema import Config
from da3po_cli.errors import UsageError
from da3po_cli.evals.result import Result
from da3po_cli.output import Out, rank
from da3po_cli.runs.directory import RunDir
from da3po_cli.runs.metrics import read_metrics

__all__ = ["Config", "Result", "TrainResult", "evaluate", "load_config", "train"]


@dataclass(frozen=True)
class TrainResult:
    """A run that has ended.

    Attributes:
        run: its directory.
        status: `finished`; or `interrupted`, with a checkpoint: it stopped for `checkpoint.before`.
        step: the last one done.
        metrics: the record of that step, names such as train/loss.
    """

    run: Path
    status: str
    step: int
    metrics: dict[str, Any]

    @property
    def name(self) -> str:
        return self.run.name

    def history(self) -> list[dict[str, Any]]:
        """The record of every step; step 0 is the validation before training."""
        return read_metrics(RunDir(self.run).metrics_file)


def load_config(*files: str | Path, overrides: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Config:
    """The config of `--config FILE ... KEY=VALUE ...`.

    Args:
        files: presets such as demo, or YAML files; later ones win.
        overrides: such as train.lr=1e-6.
        env: where DA3PO_SECTION__KEY is looked up; the environment by default.

    Raises:
        ConfigErrors: every problem at once, in `.problems`.
    """
    return load.load_config([str(file) for file in files], overrides, env=os.environ if env is None else env).config


def train(
    config: Config | None = None,
    *,
    name: str | None = None,
    resume: bool | int = False,
    overwrite: bool = False,
    replay_rollouts: str | Path | None = None,
    restarts: int = 0,
    verbose: bool = False,
) -> TrainResult:
    """Train a model, as `da3po train` does, and wait for it.

    Under torchrun or srun every rank calls it, and the script is one rank.

    Args:
        config: None is the run's own on a resume, else the preset for this machine.
        name: of the run, a directory in DA3PO_RUNS; else `config.run.name`, else made of the algorithm and the time.
        resume: go on from the newest checkpoint, or from that of a step.
        overwrite: delete an earlier run of this name first.
        replay_rollouts: train on the rollouts that another run has saved.
        restarts: how often all ranks are started again, from the last checkpoint, when one fails.
        verbose: show progress on stderr.

    Raises:
        Da3poError: what `da3po train` would end with; `exit_code` is that of the command.
        KeyboardInterrupt, Terminated: a signal; the run goes on with `resume`.
    """
    from da3po_cli.training.job import run
    from da3po_cli.training.prepare import Request

    request = Request(
        config=config,
        flags={"run.name": name},
        resume=None if resume is False else "latest" if resume is True else str(resume),
        overwrite=overwrite,
        replay=None if replay_rollouts is None else Path(replay_rollouts),
        restarts=restarts,
        command=["python", *sys.argv],
    )
    with _same_environment():
        directory = run(_out(verbose), request, lambda job, attempt: None, isolated=True)
    return _result(directory.path.absolute())


def _result(path: Path) -> TrainResult:
    directory = RunDir(path)
    records = read_metrics(directory.metrics_file) if directory.metrics_file.is_file() else []
    last = records[-1] if records else {"step": 0}
    return TrainResult(path, str(directory.read().get("status")), int(last["step"]), last)


def evaluate(
    bench: str | Sequence[str],
    model: str | Path | TrainResult | None = None,
    *,
    config: Config | None = None,
    k: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    template: str | None = None,
    limit: int | None = None,
    seed: int = 1,
    bench_dir: str | Path | None = None,
    bench_files: Sequence[str | Path] = (),
    save_samples: bool = False,
    fresh: bool = False,
    verbose: bool = False,
) -> Result | None:
    """Evaluate one model on benchmarks, as `da3po eval` does.

    Args:
        bench: names of benchmarks, or data files.
        model: a Hugging Face directory or hub id, RUN, RUN@STEP, or what `train` returned; None is the newest run.
        config: settings of the engine, and of the sampling where the benchmark has none; None are the run's own.
        k, temperature, top_p, max_tokens, template, limit, seed: as the flags of the command.
        bench_dir: of benchmark files; None is DA3PO_BENCH_DIR, else the hub.
        bench_files: YAML with more benchmarks.
        save_samples: keep every response and its grade.
        fresh: do not use what an earlier evaluation left.

    Returns:
        The result, what `da3po eval --out` writes for a model: `result["benches"]["aime24"]["scores"]["avg@32"]`.
        None on the ranks above 0 of an outer launcher.

    Raises:
        Da3poError: what `da3po eval` would end with.
    """
    from da3po_cli.evals.registry import choose, load_registry
    from da3po_cli.evals.targets import find_target, make_job, newest, run
    from da3po_cli.evals.tasks import Asked

    for flag, value in (("k", k), ("max_tokens", max_tokens), ("limit", limit)):
        if value is not None and value < 1:
            raise UsageError(f"{flag}={value} must be at least 1", where=flag, hint=f"{flag}=1 or more")
    out = _out(verbose)
    names = bench if isinstance(bench, str) else ",".join(bench)
    benches = choose(names, load_registry([Path(file) for file in bench_files]))
    asked = Asked(k, temperature, top_p, max_tokens, template, limit, seed)
    which = model.run if isinstance(model, TrainResult) else model
    target = find_target(str(which or newest(out)), benches, [], config)
    job = make_job(target, benches, asked, [], None if bench_dir is None else Path(bench_dir))
    with _same_environment():
        return run(out, job, target.config, keep=save_samples, fresh=fresh, isolated=True)


def _out(verbose: bool) -> Out:
    return Out("plain" if verbose else "quiet", rank())


@contextmanager
def _same_environment() -> Iterator[None]:
    """What a launch sets for its ranks is not for the rest of the script."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
