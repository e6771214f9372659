"""Rules that span several keys. Pure: values in, problems out, each with the key and the fix.

Every function below takes what it needs and yields `UsageError`s; `check` runs them all, so that a user sees every
problem at once. Nothing here imports torch: the model's numbers come from its config.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from da3po_cli.algos.table import AlgoConfig
from da3po_cli.config.models import ModelFacts, is_hub_id, model_facts
from da3po_cli.config.plan import Layout, layout
from da3po_cli.config.schema import CheckpointConfig, Config, DataConfig, RolloutConfig, TrainConfig, ValidationConfig
from da3po_cli.data.formats import FILE_SUFFIXES
from da3po_cli.errors import UsageError

BUILT_IN_DATA = ("arith",)
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def check(config: Config, *, devices: int = 0, world: int | None = None) -> list[UsageError]:
    """All problems of a config on a machine with this many CUDA `devices` (0: CPU).

    `world` is the number of ranks that an outer launcher (torchrun, srun) has already started.
    """
    problems = [
        *_positive(config),
        *_run(config.run.name),
        *_batch(config.rollout, config.train),
        *_algorithm(config.algo, config.rollout),
        *_optimizer(config.train),
        *_schedules(config.validation, config.checkpoint),
        *_data(config.data),
    ]
    try:
        facts = model_facts(config.model.path)
    except UsageError as error:
        problems.append(error)
        facts = None
    if min(config.parallel.tensor, config.parallel.pipeline, config.parallel.data or 1, config.rollout.tensor) < 1:
        return problems  # reported by _positive; no layout follows from it
    where = layout(config, devices=devices, world=world)
    problems += _layout(where, config, devices, world)
    if facts is not None:
        problems += _model(facts, where, config)
    return problems


def _problem(message: str, key: str, fix: str) -> UsageError:
    return UsageError(message, where=key, hint=fix)


def _positive(config: Config) -> Iterator[UsageError]:
    least_one = {
        "run.steps": config.run.steps,
        "data.max_prompt_tokens": config.data.max_prompt_tokens,
        "rollout.prompts": config.rollout.prompts,
        "rollout.max_tokens": config.rollout.max_tokens,
        "rollout.tensor": config.rollout.tensor,
        "rollout.kv_cache_gib": config.rollout.kv_cache_gib,
        "rollout.max_sequences": config.rollout.max_sequences,
        "train.mini_batch_prompts": config.train.mini_batch_prompts,
        "train.micro_batch_tokens": config.train.micro_batch_tokens,
        "train.epochs": config.train.epochs,
        "parallel.tensor": config.parallel.tensor,
        "parallel.pipeline": config.parallel.pipeline,
        "parallel.data": 1 if config.parallel.data is None else config.parallel.data,
        "validation.samples": config.validation.samples,
        "validation.prompts": 1 if config.validation.prompts is None else config.validation.prompts,
        "checkpoint.keep": config.checkpoint.keep,
        "algo.max_rounds": config.algo.max_rounds,
    }
    for key, value in least_one.items():
        if value < 1:
            yield _problem(f"{key}={value} must be at least 1", key, f"{key}=1 or more")


def _run(name: str | None) -> Iterator[UsageError]:
    if name is None:
        return
    if name == "latest" or not _RUN_NAME.fullmatch(name):
        yield _problem(f"{name!r} cannot name a run", "run.name", "--name of letters, digits and . _ + - only")


def _batch(rollout: RolloutConfig, train: TrainConfig) -> Iterator[UsageError]:
    if rollout.group_size < 2:
        yield _problem(
            f"rollout.group_size={rollout.group_size}: a group of one has no advantage, its mean is its reward",
            "rollout.group_size",
            "rollout.group_size=2 or more (the paper uses 16)",
        )
    mini = train.mini_batch_prompts
    if mini >= 1 and rollout.prompts >= 1 and rollout.prompts % mini:
        fitting = max(size for size in range(1, min(mini, rollout.prompts) + 1) if rollout.prompts % size == 0)
        yield _problem(
            f"rollout.prompts={rollout.prompts} is not a multiple of train.mini_batch_prompts={mini}",
            "train.mini_batch_prompts",
            f"train.mini_batch_prompts={fitting} or rollout.prompts={-(-rollout.prompts // mini) * mini}",
        )
    if not rollout.temperature > 0:
        yield _problem(
            f"rollout.temperature={rollout.temperature} gives {rollout.group_size} equal responses and no log-probs",
            "rollout.temperature",
            "rollout.temperature=1.0",
        )
    if not 0 < rollout.gpu_memory <= 1:
        yield _problem(f"rollout.gpu_memory={rollout.gpu_memory} is a share", "rollout.gpu_memory", "a value in (0, 1]")
    if not rollout.max_logprob_gap > 0:
        yield _problem(
            f"rollout.max_logprob_gap={rollout.max_logprob_gap} would stop every run",
            "rollout.max_logprob_gap",
            "rollout.max_logprob_gap=0.05",
        )


def _algorithm(algo: AlgoConfig, rollout: RolloutConfig) -> Iterator[UsageError]:
    if not algo.daa_lambda > 0:
        yield _problem(f"lambda={algo.daa_lambda} must be above 0", "algo.daa_lambda", "--lambda 2.0, or 1.0 for off")
    if not 0 < algo.daa_tau <= 1:
        yield _problem(
            f"algo.daa_tau={algo.daa_tau} is a pass rate in (0, 1]", "algo.daa_tau", "algo.daa_tau=0.5 (the paper's)"
        )
    if not 0 < algo.clip_low < 1:
        yield _problem(
            f"algo.clip_low={algo.clip_low}: the ratio is clipped at 1 - clip_low, so it lies in (0, 1)",
            "algo.clip_low",
            "algo.clip_low=0.2",
        )
    if not algo.clip_high > 0:
        yield _problem(f"algo.clip_high={algo.clip_high} must be above 0", "algo.clip_high", "algo.clip_high=0.28")
    if algo.dual_clip is not None and not algo.dual_clip > 1:
        yield _problem(
            f"algo.dual_clip={algo.dual_clip} must be above 1", "algo.dual_clip", "algo.dual_clip=10.0, or null for off"
        )
    if algo.kl_coef < 0:
        yield _problem(f"algo.kl_coef={algo.kl_coef} rewards leaving the initial policy", "algo.kl_coef", "0 or more")
    if algo.std_ddof not in (0, 1):
        yield _problem(f"algo.std_ddof={algo.std_ddof} is 0 or 1", "algo.std_ddof", "algo.std_ddof=1")
    if algo.std_power < 0:
        yield _problem(f"algo.std_power={algo.std_power} must not be negative", "algo.std_power", "1 (GRPO) or 0")
    if not algo.tis_cap > 0:
        yield _problem(f"algo.tis_cap={algo.tis_cap} must be above 0", "algo.tis_cap", "algo.tis_cap=2.0")
    if algo.carry_surplus and not algo.dynamic_sampling:
        yield _problem(
            "algo.carry_surplus=true has no surplus to carry without dynamic sampling",
            "algo.carry_surplus",
            "algo.dynamic_sampling=true, or algo.carry_surplus=false",
        )
    yield from _overlong(algo, rollout)


def _overlong(algo: AlgoConfig, rollout: RolloutConfig) -> Iterator[UsageError]:
    if algo.overlong_factor < 0:
        yield _problem(f"algo.overlong_factor={algo.overlong_factor} rewards length", "algo.overlong_factor", "1.0")
    if algo.overlong_cache < 0:
        yield _problem(f"algo.overlong_cache={algo.overlong_cache} is negative", "algo.overlong_cache", "0 is off")
    elif algo.overlong_cache >= rollout.max_tokens > 0:
        yield _problem(
            f"algo.overlong_cache={algo.overlong_cache} is not below rollout.max_tokens={rollout.max_tokens}",
            "algo.overlong_cache",
            f"algo.overlong_cache={rollout.max_tokens // 5} (a fifth, as in DAPO), or 0 for off",
        )


def _optimizer(train: TrainConfig) -> Iterator[UsageError]:
    if not train.lr > 0:
        yield _problem(f"train.lr={train.lr} must be above 0", "train.lr", "train.lr=1e-6")
    if not train.grad_clip > 0:
        yield _problem(f"train.grad_clip={train.grad_clip} must be above 0", "train.grad_clip", "train.grad_clip=1.0")
    if not train.adam_eps > 0:
        yield _problem(f"train.adam_eps={train.adam_eps} must be above 0", "train.adam_eps", "train.adam_eps=1e-8")
    for key, value in (("train.weight_decay", train.weight_decay), ("train.warmup_steps", train.warmup_steps)):
        if value < 0:
            yield _problem(f"{key}={value} is negative", key, f"{key}=0 for none")
    for key, value in (("train.adam_beta1", train.adam_beta1), ("train.adam_beta2", train.adam_beta2)):
        if not 0 <= value < 1:
            yield _problem(f"{key}={value} is not in [0, 1)", key, f"{key}=0.9")


def _schedules(validation: ValidationConfig, checkpoint: CheckpointConfig) -> Iterator[UsageError]:
    for key, value in (("validation.every", validation.every), ("checkpoint.every", checkpoint.every)):
        if value < 0:
            yield _problem(f"{key}={value} is negative", key, f"{key}=0 for never")
    if validation.temperature < 0:
        yield _problem(
            f"validation.temperature={validation.temperature} is negative", "validation.temperature", "0 is greedy"
        )
    if not 0 < validation.top_p <= 1:
        yield _problem(f"validation.top_p={validation.top_p} is not in (0, 1]", "validation.top_p", "1.0 is off")


def _data(data: DataConfig) -> Iterator[UsageError]:
    yield from _data_file("data.train", data.train, "--dataset")
    if data.validation is not None:
        yield from _data_file("data.validation", data.validation, "data.validation=")
    if data.reward == "arith" and data.train not in BUILT_IN_DATA:
        yield _problem(
            f"data.reward=arith grades the built-in arithmetic task, not {data.train!r}",
            "data.reward",
            "data.reward=math",
        )


def is_hub_data(source: str | None) -> bool:
    """True for data that are read from the Hugging Face hub."""
    if not source or source in BUILT_IN_DATA or Path(source).suffix in FILE_SUFFIXES:
        return False
    return is_hub_id(source)


def _data_file(key: str, value: str, flag: str) -> Iterator[UsageError]:
    forms = "a .jsonl or .parquet file, a hub id such as org/name, or arith"
    path = Path(value).expanduser()
    if not value:
        yield _problem(f"{key} is not set", key, f"{flag} {forms}")
    elif value in BUILT_IN_DATA:
        return
    elif path.suffix in FILE_SUFFIXES:
        if not path.is_file():
            yield _problem(f"data file not found: {value!r}", key, f"{flag} {forms}")
    elif not is_hub_data(value):
        what = "is none of .jsonl, .json and .parquet" if path.exists() else "names no file and no hub data set"
        yield _problem(f"{key}={value!r} {what}", key, f"{flag} {forms}")


def _layout(where: Layout, config: Config, devices: int, world: int | None) -> Iterator[UsageError]:
    product = f"tensor {where.tensor} x pipeline {where.pipeline} x data {where.data} = {where.world} ranks"
    model = where.tensor * where.pipeline
    if world is not None and where.world != world:
        fix = f"parallel.data={world // model}" if world % model == 0 else f"start a multiple of {model} ranks"
        yield _problem(f"{product}, but the launcher started {world}", "parallel", fix)
    elif world is None and devices and where.world > devices:
        fix = (
            f"parallel.data={devices // model}" if model <= devices else "smaller parallel.tensor or parallel.pipeline"
        )
        yield _problem(f"{product}, but {devices} CUDA device(s) are visible", "parallel", fix)
    if where.world % where.rollout_tensor:
        divisors = [size for size in range(1, where.world + 1) if where.world % size == 0]
        yield _problem(
            f"rollout.tensor={where.rollout_tensor} does not divide the {where.world} ranks",
            "rollout.tensor",
            f"rollout.tensor= one of {', '.join(map(str, divisors))}",
        )
    sequences = config.train.mini_batch_prompts * config.rollout.group_size
    if sequences > 0 and sequences % where.data:
        yield _problem(
            f"a mini batch of {config.train.mini_batch_prompts} x {config.rollout.group_size} = {sequences} responses "
            f"does not split over {where.data} data-parallel ranks",
            "train.mini_batch_prompts",
            f"train.mini_batch_prompts= a multiple of {where.data}, or another parallel.data",
        )


def _model(facts: ModelFacts, where: Layout, config: Config) -> Iterator[UsageError]:
    counts = {"attention heads": facts.heads, "key-value heads": facts.kv_heads, "MLP columns": facts.intermediate}
    for key, size in (("parallel.tensor", where.tensor), ("rollout.tensor", where.rollout_tensor)):
        bad = [f"{count} {name}" for name, count in counts.items() if count % size]
        if bad:
            fits = [n for n in range(1, facts.kv_heads + 1) if not any(count % n for count in counts.values())]
            yield _problem(
                f"{key}={size} does not divide the model's {' or '.join(bad)}",
                key,
                f"{key}= one of {', '.join(map(str, fits))}",
            )
    if facts.layers % where.pipeline:
        fits = [n for n in range(1, facts.layers + 1) if facts.layers % n == 0]
        yield _problem(
            f"parallel.pipeline={where.pipeline} does not divide the model's {facts.layers} layers",
            "parallel.pipeline",
            f"parallel.pipeline= one of {', '.join(map(str, fits))}",
        )
    longest = config.data.max_prompt_tokens + config.rollout.max_tokens
    if facts.max_positions is not None and longest > facts.max_positions:
        room = facts.max_positions - config.data.max_prompt_tokens
        fix = f"rollout.max_tokens={room} or less" if room > 0 else "a smaller data.max_prompt_tokens"
        yield _problem(
            f"data.max_prompt_tokens={config.data.max_prompt_tokens} + rollout.max_tokens={config.rollout.max_tokens} "
            f"is above the model's {facts.max_positions} positions",
            "rollout.max_tokens",
            fix,
        )
