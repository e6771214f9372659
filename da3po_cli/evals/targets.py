"""What an evaluation is of: `--model` and the other flags as a resolved job; and one job from start to result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from da3po_cli.config.devices import cuda_devices
from da3po_cli.config.load import load_config
from da3po_cli.config.models import is_hub_id
from da3po_cli.config.plan import layout, with_layout
from da3po_cli.config.schema import Config
from da3po_cli.errors import Da3poError, Terminated, UsageError
from da3po_cli.evals.asking import ask_in_child
from da3po_cli.evals.evaluation import directory_of, evaluate, finished, forget
from da3po_cli.evals.identity import checkpoint_fingerprint, code_fingerprint, directory_fingerprint
from da3po_cli.evals.problems import load_problems
from da3po_cli.evals.registry import Benchmark
from da3po_cli.evals.result import Result
from da3po_cli.evals.tasks import Asked, Job, Model, resolve
from da3po_cli.launching.models import local_model
from da3po_cli.launching.nodes import outer_launcher
from da3po_cli.output import Out
from da3po_cli.runs.directory import latest_run, runs_root, versions
from da3po_cli.runs.locate import Checkpoint, find_checkpoint


@dataclass(frozen=True)
class Target:
    """A model that is evaluated, with the config that says how."""

    name: str
    checkpoint: Checkpoint | None
    """None: the weights of config.model.path."""
    config: Config


def newest(talk: Out) -> str:
    """The newest run, for a command without --model.

    Raises:
        UsageError: there is none.
    """
    run = latest_run()
    if run is None:
        raise UsageError("no --model and no run to take", where="--model", hint="--model RUN or a model directory")
    talk.say(f"no --model: the newest run, {run.path}")
    return str(run.path)


def find_target(model: str, benches: list[Benchmark], overrides: list[str], config: Config | None = None) -> Target:
    """What `--model` means: a Hugging Face directory or hub id, else a run or one of its checkpoints.

    Args:
        config: in place of the run's own, or of the defaults for a model that is no run.

    Raises:
        UsageError: none of these.
        ConfigErrors: an override is wrong.
    """
    place, devices = outer_launcher(), cuda_devices().cuda
    checkpoint = None if (Path(model) / "config.json").is_file() or is_hub_id(model) else _checkpoint(model)
    name = Path(model).name if checkpoint is None else f"{checkpoint.run.name}@{checkpoint.step}"
    if config is None:
        config = _config_of(model, checkpoint, benches, overrides, devices)
    elif checkpoint is None:
        config = replace(config, model=replace(config.model, path=model))
    one_engine = replace(config.parallel, tensor=1, pipeline=1, virtual_pipeline=1, pipeline_layers=None)
    config = replace(config, parallel=one_engine)
    world = place.world if place else None
    if not any(token.startswith("parallel.data=") for token in overrides):
        config = _any_data(config)
    where = layout(config, devices=devices, world=world)
    config = with_layout(config, where)
    if where.world % config.rollout.tensor:
        raise UsageError(
            f"{where.world} ranks cannot be split into engines of {config.rollout.tensor}",
            where="rollout.tensor",
            hint=f"rollout.tensor=1, or another divisor of {where.world}",
        )
    return Target(name, checkpoint, config)


def _config_of(
    model: str, checkpoint: Checkpoint | None, benches: list[Benchmark], overrides: list[str], devices: int
) -> Config:
    """The run's config, or for a model that is no run the defaults, those of the demo for its task."""
    if checkpoint is not None:
        return load_config([str(checkpoint.run.config_file)], overrides).config
    demo = model == "demo" or {bench.name for bench in benches} == {"arith"}
    files, flags = ["demo"] if demo else [], {"model.path": model}
    loaded = load_config(files, overrides, flags)
    if not devices and loaded.sources.get("model.dtype", "default").startswith("default"):
        flags["model.dtype"] = "float32"  # few CPUs multiply bfloat16
        loaded = load_config(files, overrides, flags)
    return loaded.config


def _checkpoint(model: str) -> Checkpoint | None:
    """The run's checkpoint that `model` names; None for `demo` where no run is called so: the shipped model."""
    try:
        return find_checkpoint(model)
    except UsageError as error:
        if model == "demo" and "no run called" in error.message:
            return None
        raise UsageError(
            f"{model!r} is no model: no directory with a config.json, no hub id, and {error.message}",
            where="--model",
            hint=error.hint,
        ) from error


def _any_data(config: Config) -> Config:
    """Without the run's own number of ranks: an evaluation takes what this machine has."""
    return replace(config, parallel=replace(config.parallel, data=None))


def make_job(
    target: Target, benches: list[Benchmark], asked: Asked, overrides: list[str], bench_dir: Path | None
) -> Job:
    """The evaluation of one model, nothing left open. It reads all weights and starts a child for the prompts."""
    config, checkpoint = target.config, target.checkpoint
    asked = _with_overrides(asked, config, overrides)
    tasks = []
    for bench in benches:
        own = config.validation.prompts if bench.k is None else None  # with the sampling also its size is the config's
        problems = load_problems(bench, bench_dir, asked.limit or own)
        tasks.append(resolve(bench, problems, config, asked, is_run=checkpoint is not None))
    hf_dir = local_model(config.model.path).absolute()
    if checkpoint is None:
        model = Model(target.name, str(hf_dir), directory_fingerprint(hf_dir))
    else:
        weights = checkpoint_fingerprint(checkpoint.path, hf_dir)
        path = str(checkpoint.path.absolute())
        model = Model(target.name, str(hf_dir), weights, checkpoint.run.name, checkpoint.step, path)
    engine = {
        "dtype": config.model.dtype,
        "quantization": config.rollout.quantization,
        "deadline_s": config.reward.deadline_s,
        "versions": versions(),
        "code": code_fingerprint(),
    }
    return ask_in_child(model, tasks, engine, config.data.stop_tokens)


def _with_overrides(asked: Asked, config: Config, overrides: list[str]) -> Asked:
    """`validation.samples=4` and the like count as the flags --k and so on: benchmarks have values of their own."""
    given = {token.partition("=")[0].strip() for token in overrides}
    values = {
        "k": ("validation.samples", config.validation.samples),
        "temperature": ("validation.temperature", config.validation.temperature),
        "top_p": ("validation.top_p", config.validation.top_p),
        "limit": ("validation.prompts", config.validation.prompts),
        "max_tokens": ("rollout.max_tokens", config.rollout.max_tokens),
        "template": ("data.template", config.data.template),
    }
    chosen = {field: value for field, (key, value) in values.items() if key in given and getattr(asked, field) is None}
    return replace(asked, **chosen)


def run(talk: Out, job: Job, config: Config, *, keep: bool, fresh: bool, isolated: bool = False) -> Result | None:
    """Evaluate, or take what an earlier evaluation has found; see `evaluation.evaluate`.

    Args:
        fresh: forget what there is.
    """
    directory = directory_of(job, runs_root() / "evals")
    if fresh and talk.rank == 0:
        forget(directory)
    # a rank above 0 must not look at what rank 0 is deleting
    earlier = None if fresh and talk.rank > 0 else finished(job, directory, with_samples=keep)
    if earlier is not None:
        talk.say(f"{job.model.name}: evaluated before, {directory / 'result.json'}; --fresh repeats it")
        return earlier
    samples = sum(len(task.problems) * task.sampling.n for task in job.tasks)
    about = ", ".join(f"{task.title} {len(task.problems)} x {task.sampling.n}" for task in job.tasks)
    talk.say(f"{job.model.name}: {samples} responses ({about}), in {directory}")
    silent = talk.mode in ("json", "quiet")
    try:
        result = evaluate(
            job, config, directory, keep_samples=keep, silent=silent, json=talk.mode == "json", isolated=isolated
        )
    except (KeyboardInterrupt, Terminated):
        talk.say("\ninterrupted; the same command goes on from here")
        raise
    except Da3poError as error:
        error.where = f"{job.model.name}: {error.where}" if error.where else job.model.name
        raise
    if result is not None:
        for note in result["ran"].get("notes", []):
            talk.warn(note)
        if keep:
            talk.say(f"samples: {directory / 'samples.jsonl'}")
    return result
