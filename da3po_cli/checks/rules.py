"""Rules that span several keys. Pure: values in, problems out, each with the key and the fix.

Every function below takes what it needs and yields `UsageError`s; `check` runs them all, so that a user sees every
problem at once. Nothing here imports torch: the model's numbers come from its config.json.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from da3po_cli.algos.table import AlgoConfig
from da3po_cli.checks.layout import fp8_rules, layout_rules, model_rules, parallel_rules, problem
from da3po_cli.config.durations import seconds
from da3po_cli.config.models import model_facts
from da3po_cli.config.paths import expanded
from da3po_cli.config.plan import layout
from da3po_cli.config.schema import (
    CheckpointConfig,
    Config,
    DataConfig,
    HealthConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    TrainConfig,
    ValidationConfig,
)
from da3po_cli.data.formats import check_columns
from da3po_cli.data.spec import BUILT_IN, FILE_SUFFIXES, FORMS, JINJA_SUFFIXES, TEMPLATES, parse_spec
from da3po_cli.errors import UsageError
from da3po_cli.evals.registry import choose, load_registry
from da3po_cli.rewards.registry import REWARDS, sources

_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")

SEEDS = 1 << 32  # vLLM also seeds numpy's generator, which takes 32 bits

COLDEST = 0.01  # vllm.sampling_params: a temperature above 0 and below it becomes this one


def check(
    config: Config, *, devices: int = 0, world: int | None = None, capability: float | None = None
) -> list[UsageError]:
    """All problems of a config on a machine with this many CUDA `devices` (0: CPU).

    `capability` is the lowest compute capability of the devices; None is unknown, and then not checked.

    `world` is the number of ranks that an outer launcher (torchrun, srun) has already started.
    """
    problems = [
        *_positive(config),
        *_run(config.run),
        *_batch(config.rollout, config.train),
        *_algorithm(config.algo, config.rollout),
        *_optimizer(config.train),
        *_schedules(config.validation, config.checkpoint),
        *_benches(config.validation),
        *_checkpoint(config.checkpoint, config.data.validation or config.validation.benches or None),
        *_health(config.health),
        *_data(config.data),
        *_reward(config.reward, config.data),
        *parallel_rules(config.parallel, config.rollout, config.algo),
        *fp8_rules(config.fp8, config.model.dtype, config.rollout.quantization, devices, capability),
    ]
    try:
        facts = model_facts(config.model.path)
    except UsageError as error:
        problems.append(error)
        facts = None
    parallel = config.parallel
    data = 1 if parallel.data is None else parallel.data
    sizes = (parallel.tensor, parallel.pipeline, parallel.virtual_pipeline, data, config.rollout.tensor)
    if min(sizes) < 1:
        return problems  # reported by _positive; no layout follows from it
    where = layout(config, devices=devices, world=world)
    problems += layout_rules(where, devices, world)
    if facts is not None:
        problems += model_rules(facts, where, config)
    return problems


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
        "health.max_skipped": config.health.max_skipped,
        "health.patience": config.health.patience,
        "algo.max_rounds": config.algo.max_rounds,
    }
    for key, value in least_one.items():
        if value < 1:
            yield problem(f"{key}={value} must be at least 1", key, f"{key}=1 or more")


def _run(run: RunConfig) -> Iterator[UsageError]:
    if not 0 <= run.seed < SEEDS:
        yield problem(f"run.seed={run.seed} is not in [0, 2^32), as numpy wants it", "run.seed", "run.seed=0")
    if run.name is not None and (run.name == "latest" or not _RUN_NAME.fullmatch(run.name)):
        fix = "--name of letters, digits and . _ + - only, 128 at most"
        yield problem(f"{run.name!r} cannot name a run", "run.name", fix)


def _batch(rollout: RolloutConfig, train: TrainConfig) -> Iterator[UsageError]:
    if rollout.group_size < 2:
        yield problem(
            f"rollout.group_size={rollout.group_size}: a group of one has no advantage, its mean is its reward",
            "rollout.group_size",
            "rollout.group_size=2 or more (the paper uses 16)",
        )
    mini = train.mini_batch_prompts
    if mini >= 1 and rollout.prompts >= 1 and rollout.prompts % mini:
        fitting = max(size for size in range(1, min(mini, rollout.prompts) + 1) if rollout.prompts % size == 0)
        yield problem(
            f"rollout.prompts={rollout.prompts} is not a multiple of train.mini_batch_prompts={mini}",
            "train.mini_batch_prompts",
            f"train.mini_batch_prompts={fitting} or rollout.prompts={-(-rollout.prompts // mini) * mini}",
        )
    if 0 < rollout.temperature < COLDEST:
        yield problem(
            f"rollout.temperature={rollout.temperature}: vLLM samples at {COLDEST} below that, and the log-probs would "
            "be of another temperature",
            "rollout.temperature",
            f"rollout.temperature={COLDEST} or more",
        )
    if not rollout.temperature > 0:
        yield problem(
            f"rollout.temperature={rollout.temperature} gives {rollout.group_size} equal responses and no log-probs",
            "rollout.temperature",
            "rollout.temperature=1.0",
        )
    if not 0 < rollout.gpu_memory <= 1:
        yield problem(f"rollout.gpu_memory={rollout.gpu_memory} is a share", "rollout.gpu_memory", "a value in (0, 1]")
    if rollout.max_logprob_gap is not None and not rollout.max_logprob_gap > 0:
        yield problem(
            f"rollout.max_logprob_gap={rollout.max_logprob_gap} would stop every run",
            "rollout.max_logprob_gap",
            "rollout.max_logprob_gap=0.05",
        )


def _algorithm(algo: AlgoConfig, rollout: RolloutConfig) -> Iterator[UsageError]:
    if not algo.daa_lambda > 0:
        yield problem(f"lambda={algo.daa_lambda} must be above 0", "algo.daa_lambda", "--lambda 2.0, or 1.0 for off")
    if not 0 < algo.daa_tau <= 1:
        yield problem(
            f"algo.daa_tau={algo.daa_tau} is a pass rate in (0, 1]", "algo.daa_tau", "algo.daa_tau=0.5 (the paper's)"
        )
    if not 0 < algo.clip_low < 1:
        yield problem(
            f"algo.clip_low={algo.clip_low}: the ratio is clipped at 1 - clip_low, so it lies in (0, 1)",
            "algo.clip_low",
            "algo.clip_low=0.2",
        )
    if not algo.clip_high > 0:
        yield problem(f"algo.clip_high={algo.clip_high} must be above 0", "algo.clip_high", "algo.clip_high=0.28")
    if algo.dual_clip is not None and not algo.dual_clip > 1:
        yield problem(
            f"algo.dual_clip={algo.dual_clip} must be above 1", "algo.dual_clip", "algo.dual_clip=10.0, or null for off"
        )
    if algo.kl_coef < 0:
        yield problem(f"algo.kl_coef={algo.kl_coef} rewards leaving the initial policy", "algo.kl_coef", "0 or more")
    if algo.std_ddof not in (0, 1):
        yield problem(f"algo.std_ddof={algo.std_ddof} is 0 or 1", "algo.std_ddof", "algo.std_ddof=1")
    if algo.std_power < 0:
        yield problem(f"algo.std_power={algo.std_power} must not be negative", "algo.std_power", "1 (GRPO) or 0")
    if not algo.tis_cap > 0:
        yield problem(f"algo.tis_cap={algo.tis_cap} must be above 0", "algo.tis_cap", "algo.tis_cap=2.0")
    if algo.carry_surplus and not algo.dynamic_sampling:
        yield problem(
            "algo.carry_surplus=true has no surplus to carry without dynamic sampling",
            "algo.carry_surplus",
            "algo.dynamic_sampling=true, or algo.carry_surplus=false",
        )
    yield from _overlong(algo, rollout)


def _overlong(algo: AlgoConfig, rollout: RolloutConfig) -> Iterator[UsageError]:
    if algo.overlong_factor < 0:
        yield problem(f"algo.overlong_factor={algo.overlong_factor} rewards length", "algo.overlong_factor", "1.0")
    if not 0 <= algo.overlong_share < 1:
        yield problem(
            f"algo.overlong_share={algo.overlong_share} is not in [0, 1)",
            "algo.overlong_share",
            "algo.overlong_share=0.2 (as in DAPO), or 0 for off",
        )
    if algo.overlong_cache is None:
        return
    if algo.overlong_cache < 0:
        yield problem(f"algo.overlong_cache={algo.overlong_cache} is negative", "algo.overlong_cache", "0 is off")
    elif algo.overlong_cache >= rollout.max_tokens > 0:
        yield problem(
            f"algo.overlong_cache={algo.overlong_cache} is not below rollout.max_tokens={rollout.max_tokens}",
            "algo.overlong_cache",
            f"algo.overlong_cache={rollout.max_tokens // 5} (a fifth, as in DAPO), or 0 for off",
        )


def _optimizer(train: TrainConfig) -> Iterator[UsageError]:
    if not train.lr > 0:
        yield problem(f"train.lr={train.lr} must be above 0", "train.lr", "train.lr=1e-6")
    if not train.grad_clip > 0:
        yield problem(f"train.grad_clip={train.grad_clip} must be above 0", "train.grad_clip", "train.grad_clip=1.0")
    if not train.adam_eps > 0:
        yield problem(f"train.adam_eps={train.adam_eps} must be above 0", "train.adam_eps", "train.adam_eps=1e-8")
    for key, value in (("train.weight_decay", train.weight_decay), ("train.warmup_steps", train.warmup_steps)):
        if value < 0:
            yield problem(f"{key}={value} is negative", key, f"{key}=0 for none")
    for key, value in (("train.adam_beta1", train.adam_beta1), ("train.adam_beta2", train.adam_beta2)):
        if not 0 <= value < 1:
            yield problem(f"{key}={value} is not in [0, 1)", key, f"{key}=0.9")


def _schedules(validation: ValidationConfig, checkpoint: CheckpointConfig) -> Iterator[UsageError]:
    for key, value in (("validation.every", validation.every), ("checkpoint.every", checkpoint.every)):
        if value < 0:
            yield problem(f"{key}={value} is negative", key, f"{key}=0 for never")
    if 0 < validation.temperature < COLDEST:
        yield problem(
            f"validation.temperature={validation.temperature}: vLLM samples at {COLDEST} below that",
            "validation.temperature",
            f"0, which is greedy, or {COLDEST} or more",
        )
    if validation.temperature < 0:
        yield problem(
            f"validation.temperature={validation.temperature} is negative", "validation.temperature", "0 is greedy"
        )
    if not 0 < validation.top_p <= 1:
        yield problem(f"validation.top_p={validation.top_p} is not in (0, 1]", "validation.top_p", "1.0 is off")


def _benches(validation: ValidationConfig) -> Iterator[UsageError]:
    if validation.benches:
        try:
            choose(validation.benches, load_registry())
        except UsageError as error:
            yield problem(error.message, "validation.benches", error.hint or "validation.benches=aime24")


def _checkpoint(checkpoint: CheckpointConfig, validation: str | None) -> Iterator[UsageError]:
    if checkpoint.before is not None:
        try:
            seconds(checkpoint.before)
        except ValueError as error:
            yield problem(
                f"checkpoint.before: {error}",
                "checkpoint.before",
                "checkpoint.before=23:30 is 23 hours and a half; in a YAML file put it in quotes",
            )
    metric = checkpoint.best_metric
    if metric is None:
        return
    if not metric.startswith("val/"):
        yield problem(
            f"checkpoint.best_metric={metric} is no metric of a validation",
            "checkpoint.best_metric",
            "checkpoint.best_metric=val/<bench>/avg@<k>, or null for the first one",
        )
    elif validation is None:
        yield problem(
            f"checkpoint.best_metric={metric} needs a validation, and data.validation is not set",
            "checkpoint.best_metric",
            "data.validation=FILE or validation.benches=NAME, or checkpoint.best_metric=null",
        )


def _health(health: HealthConfig) -> Iterator[UsageError]:
    for key, value in (("health.max_truncated", health.max_truncated), ("health.max_length", health.max_length)):
        if not 0 <= value <= 1:
            yield problem(f"{key}={value:g} is a share", key, f"{key}=0.9; 1 is off")
    for key, value in (("health.min_entropy", health.min_entropy), ("health.stall_timeout", health.stall_timeout)):
        if not value >= 0:
            yield problem(f"{key}={value:g} is negative", key, f"{key}=0 is off")


def _data(data: DataConfig) -> Iterator[UsageError]:
    yield from _data_spec("data.train", data.train, "--dataset", data)
    if data.validation is not None:
        yield from _data_spec("data.validation", data.validation, "data.validation=", data)
    yield from _template(data)


def _reward(reward: RewardConfig, data: DataConfig) -> Iterator[UsageError]:
    if reward.name == "arith" and data.train not in BUILT_IN:
        yield problem(
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
                yield problem(
                    f"{key}: no reward named {name!r}",
                    key,
                    f"one of {', '.join(REWARDS)}, or an import path package.module:function",
                )
    if not reward.correct > reward.wrong:
        yield problem(
            f"reward.correct={reward.correct:g} is not above reward.wrong={reward.wrong:g}",
            "reward.correct",
            "reward.correct=1 reward.wrong=-1 (or 0)",
        )
    if not 0 <= reward.format_bonus < reward.correct - reward.wrong:
        yield problem(
            f"reward.format_bonus={reward.format_bonus:g}: a wrong answer in form must earn less than a correct one",
            "reward.format_bonus",
            f"0 or more, and below {reward.correct - reward.wrong:g}",
        )
    if not reward.deadline_s > 0:
        yield problem(f"reward.deadline_s={reward.deadline_s:g} must be above 0", "reward.deadline_s", "3.0")
    if reward.workers is not None and reward.workers < 1:
        yield problem(f"reward.workers={reward.workers} must be at least 1", "reward.workers", "null is one per core")
    if not 0 <= reward.max_unknown <= 1:
        yield problem(f"reward.max_unknown={reward.max_unknown:g} is a share", "reward.max_unknown", "0.05; 1 is off")


def is_hub_data(spec: str | None) -> bool:
    """True for data of which a part is read from the Hugging Face hub."""
    try:
        return any(source.is_hub for source in parse_spec(spec or ""))
    except UsageError:
        return False


def _data_spec(key: str, spec: str, flag: str, data: DataConfig) -> Iterator[UsageError]:
    try:
        sources = parse_spec(spec)
    except UsageError as error:
        yield problem(error.message, key, error.hint or f"{flag} {FORMS}")
        return
    if not sources:
        yield problem(f"{key} is not set", key, f"{flag} {FORMS}")
    if key == "data.validation" and any(source.weight is not None for source in sources):
        yield problem(f"{key}={spec!r} has weights, and validation takes every prompt once", key, "leave them out")
    for source in sources:
        if source.name in BUILT_IN or source.is_hub:
            continue
        if not source.is_local:
            yield problem(f"{key}={source.name!r} names no file and no hub data set", key, f"{flag} {FORMS}")
        elif source.is_file and not source.is_pattern and not source.path.exists():
            yield problem(f"data file not found: {source.name!r}", key, f"{flag} {FORMS}")
        elif not source.is_file and source.path.is_file():
            yield problem(f"{key}={source.name!r} is none of {', '.join(FILE_SUFFIXES)}", key, f"{flag} {FORMS}")
        else:
            try:
                check_columns(source, data.prompt_key, data.answer_key)
            except UsageError as error:
                yield problem(error.message, key, f"{flag} {FORMS}") if error.where == "data" else error


def _template(data: DataConfig) -> Iterator[UsageError]:
    path = expanded(data.template)
    if data.template in TEMPLATES:
        if data.thinking is not None and data.template != "chat":
            yield problem(
                f"data.thinking={str(data.thinking).lower()} is a switch of chat templates, not of {data.template}",
                "data.thinking",
                "data.template=chat, or data.thinking=null",
            )
    elif path.suffix not in JINJA_SUFFIXES:
        near = difflib.get_close_matches(data.template, TEMPLATES, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        forms = f"{', '.join(TEMPLATES)}, or the path of a {' or '.join(JINJA_SUFFIXES)} file"
        yield problem(f"no template called {data.template!r}", "data.template", f"{guess}one of {forms}")
    elif not path.is_file():
        yield problem(f"template file not found: {data.template!r}", "data.template", "the path of an existing file")
