"""Layouts of a number of GPUs that a model divides into, whether they fit, and which comes first.

The rule: of the layouts that fit, those with the least model parallelism (tensor x pipeline) come first, and among
these the one that moves the fewest bytes per GPU and update. Model parallelism costs communication in every layer and,
in a pipeline, idle time; data parallelism costs one exchange per update, whatever its size. `RULE` tells the user.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from da3po_cli.checks.layout import layout_rules, model_rules, parallel_rules
from da3po_cli.config.models import ModelFacts
from da3po_cli.config.plan import layout
from da3po_cli.config.schema import Config
from da3po_cli.planning.batch import Measured
from da3po_cli.planning.estimate import Estimate, Machine, estimate, largest_share, with_share
from da3po_cli.planning.shape import Shape
from da3po_cli.planning.state import BYTES

RULE = "those that fit, least tensor x pipeline first, then fewest bytes moved per GPU and update"
_NODE = 8  # GPUs that a fast link joins: tensor parallelism stays within


@dataclass(frozen=True)
class Candidate:
    """A layout with what it takes.

    Attributes:
        moved: bytes that a GPU sends per update.
        bubble: share of an update in which a pipeline stage is idle.
        overrides: what to type for it.
    """

    found: Estimate
    moved: float
    bubble: float
    overrides: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return self.found.fits


def rank_layouts(
    config: Config, shape: Shape, facts: ModelFacts, machine: Machine, measured: Measured | None = None
) -> list[Candidate]:
    """All layouts of `machine.gpus` GPUs that the checks accept, best first by `RULE`; those that do not fit come last.

    With tensor parallelism the sequence is split too. The rollout engine is as small as it may be for its KV cache to
    hold a group at full length, and takes the share of memory that the config gives it or the most that fits.
    """
    found = [
        _candidate(config, option, shape, facts, machine, measured)
        for option in _options(config, machine.gpus)
        if _accepted(option, facts, machine.gpus)
    ]
    return sorted(found, key=_order)


def _order(candidate: Candidate) -> tuple[bool, int, float, int]:
    where = candidate.found.where
    shortage = 0 if candidate.fits else candidate.found.stage.most_peak
    return (not candidate.fits, shortage or where.tensor * where.pipeline, candidate.moved, where.pipeline)


def _options(config: Config, gpus: int) -> Iterator[Config]:
    for tensor in _divisors(min(gpus, _NODE)):
        for pipeline in _divisors(gpus):
            if gpus % (tensor * pipeline):
                continue
            same = config.parallel.pipeline == pipeline
            yield replace(
                config,
                parallel=replace(
                    config.parallel,
                    tensor=tensor,
                    pipeline=pipeline,
                    data=gpus // (tensor * pipeline),
                    sequence=tensor > 1,
                    virtual_pipeline=config.parallel.virtual_pipeline if same else 1,
                    pipeline_layers=config.parallel.pipeline_layers if same else None,
                ),
                rollout=replace(config.rollout, tensor=1),
            )


def _accepted(config: Config, facts: ModelFacts, gpus: int) -> bool:
    where = layout(config, devices=gpus)
    problems = [
        *layout_rules(where, gpus, None),
        *model_rules(facts, where, config),
        *parallel_rules(config.parallel, config.rollout, config.algo),
    ]
    return not problems


def _candidate(
    given: Config, option: Config, shape: Shape, facts: ModelFacts, machine: Machine, measured: Measured | None
) -> Candidate:
    found = None
    for tensor in _divisors(min(machine.gpus, _NODE)):
        wider = replace(option, rollout=replace(option.rollout, tensor=tensor))
        if not _accepted(wider, facts, machine.gpus):
            continue
        one = estimate(wider, shape, machine, measured)
        share = min(given.rollout.gpu_memory, largest_share(one))
        one = estimate(with_share(wider, share), shape, machine, measured)
        found = found or one
        if one.engine.sequences >= min(given.rollout.group_size, given.rollout.max_sequences):
            found = one
            break
    assert found is not None  # a rollout engine of one rank is always accepted
    stages, count = found.where.pipeline, found.batch.micro_batches
    bubble = (stages - 1) / (count * option.parallel.virtual_pipeline + stages - 1)
    return Candidate(found, bytes_moved(found, shape), bubble, _overrides(given, found.config))


def bytes_moved(found: Estimate, shape: Shape) -> float:
    """Bytes that a GPU sends per update: over tensor, pipeline and data-parallel ranks.

    Tensor: two all-reduces of T x H forward and two backward per layer (two more with recomputation), at
    2 (t - 1) / t each; sequence parallelism moves the same in halves. Pipeline: T x H to the next stage and its
    gradient back. Data: float32 gradients are reduce-scattered and weights gathered once, at (d - 1) / d each.
    """
    config, where = found.config, found.where
    width, t, d = BYTES[config.model.dtype], where.tensor, where.data
    tokens = found.batch.rank_responses * found.batch.mean
    row = tokens * shape.hidden * width
    times = 6 if config.train.recompute else 4
    tensor = times * 2 * (t - 1) / t * row * shape.layers / where.pipeline
    pipeline = 2 * row * config.parallel.virtual_pipeline if where.pipeline > 1 else 0
    state = max((stage.state for stage in found.stages), key=lambda state: state.gradients)
    data = (d - 1) / d * (state.gradients + state.weights)
    return tensor + pipeline + data


def _overrides(given: Config, config: Config) -> tuple[str, ...]:
    """The keys of a layout as they are typed; how layers are cut only where the given config says it."""
    parallel, rollout = config.parallel, config.rollout
    typed = [
        f"parallel.tensor={parallel.tensor}",
        f"parallel.pipeline={parallel.pipeline}",
        f"parallel.data={parallel.data}",
        f"parallel.sequence={str(parallel.sequence).lower()}",
    ]
    if given.parallel.virtual_pipeline != 1:
        typed.append(f"parallel.virtual_pipeline={parallel.virtual_pipeline}")
    if given.parallel.pipeline_layers is not None:
        typed.append(f"parallel.pipeline_layers={parallel.pipeline_layers or 'null'}")
    return (*typed, f"rollout.tensor={rollout.tensor}", f"rollout.gpu_memory={rollout.gpu_memory:g}")


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
