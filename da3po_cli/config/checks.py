"""Rules that span several keys. Pure: values in, problems out, each with the key and the fix.

Every function below takes what it needs and yields `UsageError`s; `check` runs them all, so that a user sees every
problem at once. Nothing here imports torch: the model's numbers come from its config.json.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from da3po_cli.algos.table import AlgoConfig
from da3po_cli.config.durations import seconds
from da3po_cli.config.models import ModelFacts, model_facts
from da3po_cli.config.plan import Layout, layout, stage_layers
from da3po_cli.config.schema import (
    CheckpointConfig,
    Config,
    DataConfig,
    Fp8Config,
    ParallelConfig,
    RewardConfig,
    RolloutConfig,
    TrainConfig,
    ValidationConfig,
)
from da3po_cli.data.spec import BUILT_IN, FILE_SUFFIXES, FORMS, JINJA_SUFFIXES, TEMPLATES, parse_spec
from da3po_cli.errors import UsageError
from da3po_cli.evals.registry import choose, load_registry
from da3po_cli.rewards.registry import REWARDS, sources

FP8_CAPABILITY = {"delayed": 8.9, "tensorwise": 8.9, "blockwise": 9.0, "mxfp8": 10.0}
"""Lowest compute capability of a recipe's kernels in TransformerEngine: Ada, Hopper, Blackwell."""
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def check(
    config: Config, *, devices: int = 0, world: int | None = None, capability: float | None = None
) -> list[UsageError]:
    """All problems of a config on a machine with this many CUDA `devices` (0: CPU).

    `capability` is the lowest compute capability of the devices; None is unknown, and then not checked.

    `world` is the number of ranks that an outer launcher (torchrun, srun) has already started.
    """
    problems = [
        *_positive(config),
        *_run(config.run.name),
        *_batch(config.rollout, config.train),
        *_algorithm(config.algo, config.rollout),
        *_optimizer(config.train),
        *_schedules(config.validation, config.checkpoint),
        *_benches(config.validation),
        *_checkpoint(config.checkpoint, config.data.validation or config.validation.benches or None),
        *_data(config.data),
        *_reward(config.reward, config.data),
        *_parallel(config.parallel, config.rollout, config.algo),
        *_fp8(config.fp8, config.model.dtype, config.rollout.quantization, devices, capability),
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
        "parallel.virtual_pipeline": config.parallel.virtual_pipeline,
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


def _benches(validation: ValidationConfig) -> Iterator[UsageError]:
    if validation.benches:
        try:
            choose(validation.benches, load_registry())
        except UsageError as error:
            yield _problem(error.message, "validation.benches", error.hint or "validation.benches=aime24")


def _checkpoint(checkpoint: CheckpointConfig, validation: str | None) -> Iterator[UsageError]:
    if checkpoint.before is not None:
        try:
            seconds(checkpoint.before)
        except ValueError as error:
            yield _problem(
                f"checkpoint.before: {error}",
                "checkpoint.before",
                "checkpoint.before=23:30 is 23 hours and a half; in a YAML file put it in quotes",
            )
    metric = checkpoint.best_metric
    if metric is None:
        return
    if not metric.startswith("val/"):
        yield _problem(
            f"checkpoint.best_metric={metric} is no metric of a validation",
            "checkpoint.best_metric",
            "checkpoint.best_metric=val/<bench>/avg@<k>, or null for the first one",
        )
    elif validation is None:
        yield _problem(
            f"checkpoint.best_metric={metric} needs a validation, and data.validation is not set",
            "checkpoint.best_metric",
            "data.validation=FILE or validation.benches=NAME, or checkpoint.best_metric=null",
        )


def _data(data: DataConfig) -> Iterator[UsageError]:
    yield from _data_spec("data.train", data.train, "--dataset")
    if data.validation is not None:
        yield from _data_spec("data.validation", data.validation, "data.validation=")
    yield from _template(data)


def _reward(reward: RewardConfig, data: DataConfig) -> Iterator[UsageError]:
    if reward.name == "arith" and data.train not in BUILT_IN:
        yield _problem(
            f"reward.name=arith grades the built-in arithmetic task, not {data.train!r}",
            "reward.name",
            "reward.name=math",
        )
    names = {"reward.name": [reward.name], "reward.by_source": []}
    try:
        names["reward.by_source"] = list(sources(reward.by_source).values())
    except UsageError as error:
        yield error
    for key, chosen in names.items():
        for name in chosen:
            if name not in REWARDS and not _IMPORT_PATH.fullmatch(name):
                yield _problem(
                    f"{key}: no reward named {name!r}",
                    key,
                    f"one of {', '.join(REWARDS)}, or an import path package.module:function",
                )
    if not reward.correct > reward.wrong:
        yield _problem(
            f"reward.correct={reward.correct:g} is not above reward.wrong={reward.wrong:g}",
            "reward.correct",
            "reward.correct=1 reward.wrong=-1 (or 0)",
        )
    if not 0 <= reward.format_bonus < reward.correct - reward.wrong:
        yield _problem(
            f"reward.format_bonus={reward.format_bonus:g}: a wrong answer in form must earn less than a correct one",
            "reward.format_bonus",
            f"0 or more, and below {reward.correct - reward.wrong:g}",
        )
    if not reward.deadline_s > 0:
        yield _problem(f"reward.deadline_s={reward.deadline_s:g} must be above 0", "reward.deadline_s", "3.0")
    if reward.workers is not None and reward.workers < 1:
        yield _problem(f"reward.workers={reward.workers} must be at least 1", "reward.workers", "null is one per core")
    if not 0 <= reward.max_unknown <= 1:
        yield _problem(f"reward.max_unknown={reward.max_unknown:g} is a share", "reward.max_unknown", "0.05; 1 is off")


def is_hub_data(spec: str | None) -> bool:
    """True for data of which a part is read from the Hugging Face hub."""
    try:
        return any(source.is_hub for source in parse_spec(spec or ""))
    except UsageError:
        return False


def _data_spec(key: str, spec: str, flag: str) -> Iterator[UsageError]:
    try:
        sources = parse_spec(spec)
    except UsageError as error:
        yield _problem(error.message, key, error.hint or f"{flag} {FORMS}")
        return
    if not sources:
        yield _problem(f"{key} is not set", key, f"{flag} {FORMS}")
    if key == "data.validation" and any(source.weight is not None for source in sources):
        yield _problem(f"{key}={spec!r} has weights, and validation takes every prompt once", key, "leave them out")
    for source in sources:
        if source.name in BUILT_IN or source.is_hub:
            continue
        if not source.is_file:
            what = (
                f"is none of {', '.join(FILE_SUFFIXES)}"
                if source.path.exists()
                else "names no file and no hub data set"
            )
            yield _problem(f"{key}={source.name!r} {what}", key, f"{flag} {FORMS}")
        elif not source.path.is_file():
            yield _problem(f"data file not found: {source.name!r}", key, f"{flag} {FORMS}")


def _template(data: DataConfig) -> Iterator[UsageError]:
    path = Path(data.template).expanduser()
    if data.template in TEMPLATES:
        if data.thinking is not None and data.template != "chat":
            yield _problem(
                f"data.thinking={str(data.thinking).lower()} is a switch of chat templates, not of {data.template}",
                "data.thinking",
                "data.template=chat, or data.thinking=null",
            )
    elif path.suffix not in JINJA_SUFFIXES:
        near = difflib.get_close_matches(data.template, TEMPLATES, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        forms = f"{', '.join(TEMPLATES)}, or the path of a {' or '.join(JINJA_SUFFIXES)} file"
        yield _problem(f"no template called {data.template!r}", "data.template", f"{guess}one of {forms}")
    elif not path.is_file():
        yield _problem(f"template file not found: {data.template!r}", "data.template", "the path of an existing file")


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


def _parallel(parallel: ParallelConfig, rollout: RolloutConfig, algo: AlgoConfig) -> Iterator[UsageError]:
    for key, value in (("parallel.context", parallel.context), ("parallel.expert", parallel.expert)):
        if value != 1:
            name = key.removeprefix("parallel.")
            yield _problem(f"{key}={value}: {name} parallelism is not supported", key, f"{key}=1")
    if parallel.virtual_pipeline > 1 and parallel.pipeline == 1:
        yield _problem(
            f"parallel.virtual_pipeline={parallel.virtual_pipeline} interleaves the stages of a pipeline, and "
            "parallel.pipeline=1",
            "parallel.virtual_pipeline",
            "parallel.virtual_pipeline=1, or parallel.pipeline=2 or more",
        )
    if parallel.sequence and parallel.tensor == 1:
        yield _problem(
            "parallel.sequence=true splits the sequence over tensor-parallel ranks, and parallel.tensor=1",
            "parallel.sequence",
            "parallel.sequence=false, or parallel.tensor=2 or more",
        )
    if rollout.quantization is not None and algo.tis == "off":
        yield _problem(
            f"rollout.quantization={rollout.quantization} samples from other weights than are trained, and "
            "algo.tis=off does not correct for it",
            "algo.tis",
            "algo.tis=on",
        )


def _fp8(
    fp8: Fp8Config, dtype: str, quantization: str | None, devices: int, capability: float | None
) -> Iterator[UsageError]:
    """FP8 of the trainer and of the rollout engine: the machine, then what does not go together."""
    wanted = {"fp8.format": (fp8.format != "none", FP8_CAPABILITY[fp8.recipe], f"fp8.recipe={fp8.recipe}")}
    wanted["rollout.quantization"] = (quantization is not None, FP8_CAPABILITY["tensorwise"], "FP8 weights")
    for key, (on, needed, what) in wanted.items():
        off = f"{key}={'none' if key == 'fp8.format' else 'null'}"
        if on and not devices:
            yield _problem(f"{what} needs a CUDA device of compute capability {needed}, and this is a CPU", key, off)
        elif on and capability is not None and capability < needed:
            yield _problem(
                f"{what} needs compute capability {needed}, and this device has {capability}",
                key,
                f"{off}, or another recipe: delayed and tensorwise from 8.9, blockwise from 9.0, mxfp8 from 10.0",
            )
    if fp8.format == "none":
        if fp8.param_gather:
            yield _problem("fp8.param_gather=true without FP8 training", "fp8.param_gather", "fp8.format=hybrid")
        return
    if dtype != "bfloat16":
        yield _problem(f"FP8 training needs model.dtype=bfloat16, not {dtype}", "model.dtype", "model.dtype=bfloat16")
    if fp8.bf16_layers and fp8.recipe == "delayed":
        yield _problem(
            f"fp8.bf16_layers={fp8.bf16_layers} does not go with the delayed recipe",
            "fp8.recipe",
            "fp8.recipe=tensorwise, or fp8.bf16_layers=0",
        )


def _model(facts: ModelFacts, where: Layout, config: Config) -> Iterator[UsageError]:
    for key, size in (("parallel.tensor", where.tensor), ("rollout.tensor", where.rollout_tensor)):
        bad = _not_divided(facts, size)
        if bad:
            fits = [n for n in range(1, facts.heads + 1) if not _not_divided(facts, n)]
            yield _problem(
                f"{key}={size} does not divide the model's {' or '.join(bad)}",
                key,
                f"{key}= one of {', '.join(map(str, fits))}",
            )
    try:
        stage_layers(facts.layers, config.parallel)
    except UsageError as error:
        yield error
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


def _not_divided(facts: ModelFacts, tensor: int) -> list[str]:
    """What does not split over `tensor` ranks. Key-value heads may be fewer than ranks: then ranks share a head."""
    counts = {"attention heads": facts.heads, "MLP columns": facts.intermediate}
    bad = [f"{count} {name}" for name, count in counts.items() if count % tensor]
    if facts.kv_heads % tensor and tensor % facts.kv_heads:
        bad.insert(1 if facts.heads % tensor else 0, f"{facts.kv_heads} key-value heads")
    return bad
