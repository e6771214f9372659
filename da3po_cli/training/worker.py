"""What every rank of a training run executes: build the parts, then run the loop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from da3po_cli.algos.sampling import DynamicSampler
from da3po_cli.config.schema import Config
from da3po_cli.errors import DivergedError
from da3po_cli.launching.launch import AGAIN, WorkerOptions
from da3po_cli.launching.models import local_model
from da3po_cli.launching.stop import Stop, deadline, listener
from da3po_cli.launching.watchdog import collective_timeout
from da3po_cli.protocols import Sampling
from da3po_cli.runs.checkpoints import recover, saved_steps
from da3po_cli.runs.directory import RunDir
from da3po_cli.runs.display import Display, make_display
from da3po_cli.runs.heartbeat import DOWNLOAD, beat
from da3po_cli.runs.log import RunLog
from da3po_cli.runs.metrics import MetricsWriter
from da3po_cli.runs.validations import read_validation, validation_file
from da3po_cli.training.build import PROBE_PROMPTS, Engine, make_policy
from da3po_cli.training.checkpoint import CheckpointStore
from da3po_cli.training.collect import LiveRollouts, ReplayedRollouts
from da3po_cli.training.health import Health
from da3po_cli.training.loop import Parts, due, train

if TYPE_CHECKING:
    from megatron_bridge.parallel import Parallel

SEED_STRIDE = 1_000_003  # between the sampling seeds of two runs' seeds; the step is added to them


def train_worker(config: Config, run_dir: Path, options: WorkerOptions) -> None:
    """Train; one call per rank. Rank 0 reports."""
    from megatron_bridge.parallel import initialize

    parallel = initialize(
        config.parallel.tensor,
        config.parallel.pipeline,
        config.run.seed,
        config.parallel.virtual_pipeline,
        timeout=collective_timeout(config.health.stall_timeout),
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
        beat(DOWNLOAD, config.model.path)
        hf_dir = local_model(config.model.path)
        if options.replay is None:
            beat("start", "the rollout engine")
            display.phase("start", "the rollout engine (vLLM)")
            engine = Engine.start(config, hf_dir, parallel)
            for note in engine.notes():
                display.say(note)
        _train(config, run_dir, options, parallel, display, engine, hf_dir)
    finally:
        display.close()
        if engine:
            engine.grade.close()
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
    beat("start", "the policy")
    display.phase("start", "the policy (Megatron-Core)")
    policy = make_policy(config, hf_dir, parallel)
    sync = validate = None
    begins = _begins(run_dir, options, parallel)
    if engine is None:
        source = ReplayedRollouts(Path(options.replay or ""))
    else:
        sync = engine.connect(policy, engine.prompts.all(PROBE_PROMPTS))
        start = {} if begins else None
        if not begins and validation_file(run_dir, 0).is_file():
            start = read_validation(validation_file(run_dir, 0))
        validate = engine.validator(start)
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
    if not begins:
        step = options.resume or ""
        first_step = 1 + checkpoints.load(int(step) if step.isdecimal() else None)
    log = _run_log(config, run_dir, options, display, parallel.rank, first_step, checkpoints.record)
    signals = listener()
    limit = deadline(config.checkpoint.before, RunDir(run_dir).read()["attempts"][-1])
    stop = Stop(parallel, signals, display.notice, limit)
    try:
        health = Health(config.health, config.rollout.max_tokens)
        parts = Parts(parallel, policy, source, sync, validate, log, checkpoints, stop, health)
        due_then = due(first_step - 1, config.validation.every, config.run.steps)
        missing = parallel.broadcast(due_then and not validation_file(run_dir, first_step - 1).is_file())
        last = train(config, parts, first_step=first_step, validation_due=missing)
        if last >= config.run.steps:
            log.finish(last)
            return
        asked = signals.asked if signals else None
        if parallel.rank == 0:
            RunDir(run_dir).finish("interrupted", step=last, signal=asked.name if asked else None)
        log.interrupted(last, "a signal" if asked else f"checkpoint.before={config.checkpoint.before}")
    except DivergedError:  # on every rank
        checkpoints.wait()
        raise
    finally:
        stop.close()
        log.close()


def _begins(run_dir: Path, options: WorkerOptions, parallel: Parallel) -> bool:
    """Whether training begins at step 1: also for ranks that were started again before the first checkpoint."""
    if options.resume != AGAIN:
        return options.resume is None
    if parallel.rank == 0:
        recover(run_dir / "checkpoints")
    return not parallel.broadcast(saved_steps(run_dir / "checkpoints"))


def _run_log(
    config: Config,
    run_dir: Path,
    options: WorkerOptions,
    display: Display,
    rank: int,
    first_step: int,
    resumed: dict[str, Any],
) -> RunLog:
    """The log; on a resume without the records of steps that are done again, and with that of the checkpoint."""
    writer = None
    if rank == 0:
        kept = first_step - 1 if first_step > 1 else -1
        writer = MetricsWriter(
            run_dir,
            resume_step=None if options.resume is None else kept,
            resume_record=resumed,
            tensorboard=config.run.tensorboard,
            wandb_project=config.run.wandb_project,
        )
        if writer.cut:
            display.say(f"warning: metrics.jsonl ended in the middle of a line, which is cut off: {writer.cut[:60]!r}")
    return RunLog(run_dir, display, writer, save_rollouts=config.run.save_rollouts and options.replay is None)
