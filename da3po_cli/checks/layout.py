"""Rules of `checks` about ranks, layouts and devices: what a model and a machine can take."""

from __future__ import annotations

from collections.abc import Iterator

from da3po_cli.algos.table import AlgoConfig
from da3po_cli.config.models import ModelFacts
from da3po_cli.config.plan import Layout
from da3po_cli.config.schema import Config, Fp8Config, ParallelConfig, RolloutConfig
from da3po_cli.errors import UsageError

FP8_CAPABILITY = {"delayed": 8.9, "tensorwise": 8.9, "blockwise": 9.0, "mxfp8": 10.0}
"""Lowest compute capability of a recipe's kernels in TransformerEngine: Ada, Hopper, Blackwell."""


def problem(message: str, key: str, fix: str) -> UsageError:
    """A problem of one key, with its fix."""
    return UsageError(message, where=key, hint=fix)


def layout_rules(where: Layout, devices: int, world: int | None) -> Iterator[UsageError]:
    product = f"tensor {where.tensor} x pipeline {where.pipeline} x data {where.data} = {where.world} ranks"
    model = where.tensor * where.pipeline
    if world is not None and where.world != world:
        fix = f"parallel.data={world // model}" if world % model == 0 else f"start a multiple of {model} ranks"
        yield problem(f"{product}, but the launcher started {world}", "parallel", fix)
    elif world is None and devices and where.world > devices:
        fix = (
            f"parallel.data={devices // model}" if model <= devices else "smaller parallel.tensor or parallel.pipeline"
        )
        yield problem(f"{product}, but {devices} CUDA device(s) are visible", "parallel", fix)
    if where.world % where.rollout_tensor:
        divisors = [size for size in range(1, where.world + 1) if where.world % size == 0]
        yield problem(
            f"rollout.tensor={where.rollout_tensor} does not divide the {where.world} ranks",
            "rollout.tensor",
            f"rollout.tensor= one of {', '.join(map(str, divisors))}",
        )


def parallel_rules(parallel: ParallelConfig, rollout: RolloutConfig, algo: AlgoConfig) -> Iterator[UsageError]:
    for key, value in (("parallel.context", parallel.context), ("parallel.expert", parallel.expert)):
        if value != 1:
            name = key.removeprefix("parallel.")
            yield problem(f"{key}={value}: {name} parallelism is not supported", key, f"{key}=1")
    if parallel.virtual_pipeline > 1 and parallel.pipeline == 1:
        yield problem(
            f"parallel.virtual_pipeline={parallel.virtual_pipeline} interleaves the stages of a pipeline, and "
            "parallel.pipeline=1",
            "parallel.virtual_pipeline",
            "parallel.virtual_pipeline=1, or parallel.pipeline=2 or more",
        )
    if parallel.sequence and parallel.tensor == 1:
        yield problem(
            "parallel.sequence=true splits the sequence over tensor-parallel ranks, and parallel.tensor=1",
            "parallel.sequence",
            "parallel.sequence=false, or parallel.tensor=2 or more",
        )
    if rollout.quantization is not None and algo.tis == "off":
        yield problem(
            f"rollout.quantization={rollout.quantization} samples from other weights than are trained, and "
            "algo.tis=off does not correct for it",
            "algo.tis",
            "algo.tis=on",
        )


def fp8_rules(
    fp8: Fp8Config, dtype: str, quantization: str | None, devices: int, capability: float | None
) -> Iterator[UsageError]:
    """FP8 of the trainer and of the rollout engine: the machine, then what does not go together."""
    wanted = {"fp8.format": (fp8.format != "none", FP8_CAPABILITY[fp8.recipe], f"fp8.recipe={fp8.recipe}")}
    wanted["rollout.quantization"] = (quantization is not None, FP8_CAPABILITY["tensorwise"], "FP8 weights")
    for key, (on, needed, what) in wanted.items():
        off = f"{key}={'none' if key == 'fp8.format' else 'null'}"
        if on and not devices:
            yield problem(f"{what} needs a CUDA device of compute capability {needed}, and this is a CPU", key, off)
        elif on and capability is not None and capability < needed:
            yield problem(
                f"{what} needs compute capability {needed}, and this device has {capability}",
                key,
                f"{off}, or another recipe: delayed and tensorwise from 8.9, blockwise from 9.0, mxfp8 from 10.0",
            )
    if fp8.bf16_layers < 0:
        yield problem(f"fp8.bf16_layers={fp8.bf16_layers} is negative", "fp8.bf16_layers", "fp8.bf16_layers=0 for none")
    for what, on in (
        ("FP8 training needs", fp8.format != "none"),
        ("FP8 rollout weights need", quantization is not None),
    ):
        if on and dtype != "bfloat16":
            yield problem(f"{what} model.dtype=bfloat16, not {dtype}", "model.dtype", "model.dtype=bfloat16")
    if fp8.format == "none":
        if fp8.param_gather:
            yield problem("fp8.param_gather=true without FP8 training", "fp8.param_gather", "fp8.format=hybrid")
        return
    if fp8.bf16_layers and fp8.recipe == "delayed":
        yield problem(
            f"fp8.bf16_layers={fp8.bf16_layers} does not go with the delayed recipe",
            "fp8.recipe",
            "fp8.recipe=tensorwise, or fp8.bf16_layers=0",
        )


def model_rules(facts: ModelFacts, where: Layout, config: Config) -> Iterator[UsageError]:
    for key, size in (("parallel.tensor", where.tensor), ("rollout.tensor", where.rollout_tensor)):
        bad = _not_divided(facts, size)
        if bad:
            fits = [n for n in range(1, facts.heads + 1) if not _not_divided(facts, n)]
            yield problem(
                f"{key}={size} does not divide the model's {' or '.join(bad)}",
                key,
                f"{key}= one of {', '.join(map(str, fits))}",
            )
    try:
        config.parallel.stage_layers(facts.layers)
    except UsageError as error:
        yield error
    longest = config.data.max_prompt_tokens + config.rollout.max_tokens
    if facts.max_positions is not None and longest > facts.max_positions:
        room = facts.max_positions - config.data.max_prompt_tokens
        fix = f"rollout.max_tokens={room} or less" if room > 0 else "a smaller data.max_prompt_tokens"
        yield problem(
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
