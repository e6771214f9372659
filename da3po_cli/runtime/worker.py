"""What every rank of a training run executes: build the parts, then run the loop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from da3po_cli.algos.sampling import DynamicSampler
from da3po_cli.config.schema import Config
from da3po_cli.runs import RunDir
from da3po_cli.runs.display import Display, make_display
from da3po_cli.runs.log import RunLog
from da3po_cli.runs.metrics import MetricsWriter
from da3po_cli.runtime import Sampling
from da3po_cli.runtime.build import PROBE_PROMPTS, Engine, make_policy
from da3po_cli.runtime.checkpoint import CheckpointStore
from da3po_cli.runtime.collect import LiveRollouts, ReplayedRollouts
from da3po_cli.runtime.loop import Parts, train
from da3po_cli.runtime.models import local_model
from da3po_cli.runtime.stop import Stop, deadline, listener

if TYPE_CHECKING:
    from da3po_cli.runtime.launch import WorkerOptions
    from megatron_bridge.parallel import Parallel

SEED_STRIDE = 1_000_003  # between the sampling seeds of two runs' seeds; the step is added to them


def train_worker(config: Config, run_dir: Path, options: WorkerOptions) -> None:
    """Train; one call per rank. Rank 0 reports."""
    from megatron_bridge.parallel import initialize

    parallel = initialize(
        config.parallel.tensor, config.parallel.pipeline, config.run.seed, config.parallel.virtual_pipeline
    )
    display = make_display(
        rank=parallel.rank,
        json=options.json,
        quiet=options.quiet,
        steps=config.run.steps,
        title=f"{run_dir.name}: {config.algo.name} on {config.model.path}",
    )
    engine = None
    try:
        hf_dir = local_model(config.model.path)
        if options.replay is None:
            display.phase("start", "the rollout engine (vLLM)")
            engine = Engine.start(config, hf_dir, parallel)
            for note in engine.notes():
                display.say(note)
        _train(config, run_dir, options, parallel, display, engine, hf_dir)
    finally:
        display.close()
        if engine:
            engine.generator.close()
        parallel.shutdown()


def _train(
    config: Config,
    run_dir: Path,
    options: WorkerOptions,
    parallel: Parallel,
    display: Display,
    engine: Engine | None,
    hf_dir: Path,
) -> None:
    display.phase("start", "the policy (Megatron-Core)")
    policy = make_policy(config, hf_dir, parallel)
    sync = validate = None
    if engine is None:
        source = ReplayedRollouts(Path(options.replay or ""))
    else:
        sync = engine.connect(policy, engine.prompts.all(PROBE_PROMPTS))
        validate = engine.validator()
        sampling = Sampling(
            n=config.rollout.group_size,
            max_tokens=config.rollout.max_tokens,
            temperature=config.rollout.temperature,
            seed=config.run.seed * SEED_STRIDE,
        )
        sampler = DynamicSampler(config.algo, config.rollout.prompts)
        source = LiveRollouts(engine.prompts, engine.generator, engine.grade, sampler, sampling, display.phase)
    checkpoints = CheckpointStore(run_dir / "checkpoints", config.checkpoint, policy, source, parallel)
    checkpoints.open()
    first_step = 1
    if options.resume is not None:
        first_step = 1 + checkpoints.load(None if options.resume == "latest" else int(options.resume))
    log = _run_log(config, run_dir, options, display, parallel.rank, first_step)
    signals = listener()
    limit = deadline(config.checkpoint.before, RunDir(run_dir).read()["attempts"][-1])
    stop = Stop(parallel, signals, display.notice, limit)
    try:
        parts = Parts(parallel, policy, source, sync, validate, log, checkpoints, stop)
        last = train(config, parts, first_step=first_step)
        if last >= config.run.steps:
            log.finish(last)
            return
        asked = signals.asked if signals else None
        if parallel.rank == 0:
            RunDir(run_dir).finish("interrupted", step=last, signal=asked.name if asked else None)
        log.interrupted(last, "a signal" if asked else f"checkpoint.before={config.checkpoint.before}")
    finally:
        stop.close()
        log.close()


def _run_log(
    config: Config, run_dir: Path, options: WorkerOptions, display: Display, rank: int, first_step: int
) -> RunLog:
    """The log; on a resume without the records of steps that are done again."""
    writer = None
    if rank == 0:
        kept = first_step - 1 if first_step > 1 else -1
        writer = MetricsWriter(
            run_dir,
            resume_step=None if options.resume is None else kept,
            tensorboard=config.run.tensorboard,
            wandb_project=config.run.wandb_project,
        )
    return RunLog(run_dir, display, writer, save_rollouts=config.run.save_rollouts and options.replay is None)
