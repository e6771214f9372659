"""A plan as lines for people and as values for --json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from da3po_cli.config.models import ModelFacts
from da3po_cli.config.plan import overlong_cache
from da3po_cli.planning.estimate import GIB, Estimate, Phase, largest_share
from da3po_cli.planning.layouts import RULE, Candidate
from da3po_cli.planning.shape import Shape

_SHOWN = 6  # layouts in the table


def model_text(facts: ModelFacts, shape: Shape, source: str) -> str:
    """What the model is, with its exact number of parameters."""
    return f"{facts.architecture}, {facts.layers} layers, {shape.parameters:,} parameters, from {source}"


def rows(found: Estimate) -> list[tuple[str, str]]:
    """Batch arithmetic, bytes moved and disk, as label and text."""
    batch, checkpoint, where = found.batch, found.config.checkpoint, found.where
    copies = checkpoint.keep + (1 if checkpoint.keep_best and checkpoint.every else 0) + 1
    sampled = f"{batch.generated} prompts sampled for {batch.prompts}" if batch.kept < 1 else "every group counts"
    most = "" if batch.most_tokens == batch.tokens else f", at most {batch.most_tokens}"
    return [
        ("kept", f"{batch.kept:.0%} of groups ({batch.kept_source}): {sampled}"),
        (
            "micro",
            f"{batch.micro_batches} micro-batch(es) per update and data-parallel rank, {batch.tokens} tokens{most}; "
            f"a sequence has {batch.mean} ({batch.mean_source}) of {batch.longest}",
        ),
        (
            "resharding",
            f"{_decimal(found.sync_bytes)} per sync to each of {where.engines} engine(s); largest tensor "
            f"{_decimal(found.buffer_bytes)}",
        ),
        (
            "disk",
            f"{_decimal(found.checkpoint_bytes)} per checkpoint, up to {_decimal(copies * found.checkpoint_bytes)} "
            f"while one of {copies} is written",
        ),
        *([("host", _host(found))] if found.machine.gpus else []),
    ]


def _host(found: Estimate) -> str:
    reference = ", and reference weights" if found.config.algo.kl_coef else ""
    first = f"{_gib(found.host_bytes)} of host memory on the first data-parallel rank while a checkpoint is gathered"
    return f"{first}{reference}; {_gib(found.where.tensor * found.where.pipeline * found.host_bytes)} for all stages"


def memory_lines(found: Estimate) -> list[str]:
    """Memory by part and phase of the fullest rank."""
    stage, gpus = found.stage, found.machine.gpus
    unit, scale, digits = ("GiB", GIB, 2) if stage.peak >= 4 * GIB else ("MiB", 1 << 20, 1)

    def cell(size: int | None) -> str:
        return "-" if size is None else f"{size / scale:.{digits}f}"

    place = f", pipeline stage {stage.number}" if found.where.pipeline > 1 else ""
    names = list(dict.fromkeys(part for phase in stage.phases for part in phase.parts))
    table = [[f"memory per {'GPU' if gpus else 'rank'}{place}, {unit}", *(phase.name for phase in stage.phases)]]
    for name in names:
        table.append([f"  {name}", *(cell(phase.parts.get(name)) for phase in stage.phases)])
    table.append(["  total", *(cell(phase.total) for phase in stage.phases)])
    if stage.most_peak != stage.peak:
        table.append(["  if all are the longest", *(cell(phase.total) for phase in stage.most_phases)])
    return _aligned(table)


def verdict(found: Estimate) -> str:
    """Whether it fits, and what to change if not."""
    stage, gpus = found.stage, found.machine.gpus
    if not gpus:
        return f"{found.where.world} rank(s) x {_gib(stage.peak)} = {_gib(found.where.world * stage.peak)} of memory"
    room = f"{_gib(found.limit)} ({found.limit / max(1, found.machine.memory):.0%} of {_gib(found.machine.memory)})"
    engine = found.engine
    if found.fits:
        return f"fits: {_gib(stage.most_peak)} of {room}; the KV cache holds {engine.sequences} longest sequence(s)"
    worst = max(stage.most_phases, key=lambda phase: phase.total)
    if worst.total > found.limit:
        return f"does not fit: the {worst.name} phase takes {_gib(worst.total)} of {room}; {_advice(found, worst)}"
    return (
        f"does not fit: the KV cache of {_gib(engine.kv_cache)} holds no sequence of {found.batch.longest} tokens; "
        "try a larger rollout.gpu_memory or rollout.tensor"
    )


def _advice(found: Estimate, worst: Phase) -> str:
    """What to change first; more GPUs help in any case."""
    share, train = largest_share(found), found.config.train
    engine = worst.parts.get("vLLM weights", 0) + worst.parts.get("vLLM workspace", 0)
    if worst.name == "rollout" and engine < share * found.machine.memory:
        return f"try rollout.gpu_memory={share:g}"
    if worst.name == "rollout":
        return "try a larger rollout.tensor, parallel.tensor or parallel.pipeline, or more GPUs"
    wishes = [] if train.recompute else ["train.recompute=true"]
    if train.micro_batch_tokens > found.batch.longest:
        wishes.append(f"train.micro_batch_tokens={found.batch.longest}")
    return f"try {', '.join([*wishes, 'a larger parallel.tensor or parallel.pipeline'])}, or more GPUs"


def layout_lines(candidates: Sequence[Candidate]) -> list[str]:
    """The first few layouts as a table."""
    table = [["tensor", "pipeline", "data", "rollout", "share", "GiB", "KV seqs", "moved GB", "idle", ""]]
    for candidate in candidates[:_SHOWN]:
        found = candidate.found
        where = found.where
        table.append(
            [
                *(str(size) for size in (where.tensor, where.pipeline, where.data, where.rollout_tensor)),
                f"{found.config.rollout.gpu_memory:.2f}",
                f"{found.stage.most_peak / GIB:.1f}",
                str(found.engine.sequences),
                f"{candidate.moved / 1e9:.1f}",
                f"{candidate.bubble:.0%}",
                "fits" if candidate.fits else "too big",
            ]
        )
    fitting = sum(candidate.fits for candidate in candidates)
    head = f"layouts: {fitting} of {len(candidates)} fit ({RULE})"
    return [head, *("  " + line for line in _aligned(table, left=0))]


def values(found: Estimate) -> dict[str, Any]:
    """The same as values; bytes."""
    return {
        "fits": found.fits,
        "layout": asdict(found.where),
        "machine": asdict(found.machine),
        "batch": asdict(found.batch),
        "overlong_cache": overlong_cache(found.config),
        "engine": asdict(found.engine),
        "memory": [
            {
                "stage": stage.number,
                "phases": {phase.name: {**phase.parts, "total": phase.total} for phase in stage.phases},
                "at_most": {phase.name: phase.total for phase in stage.most_phases},
                "state": asdict(stage.state),
            }
            for stage in found.stages
        ],
        "limit": found.limit,
        "sync_bytes": found.sync_bytes,
        "buffer_bytes": found.buffer_bytes,
        "checkpoint_bytes": found.checkpoint_bytes,
        "host_bytes": found.host_bytes,
    }


def candidate_values(candidate: Candidate) -> dict[str, Any]:
    """One line of the table of layouts."""
    found = candidate.found
    return {
        "layout": asdict(found.where),
        "fits": candidate.fits,
        "gpu_memory": found.config.rollout.gpu_memory,
        "peak": found.stage.most_peak,
        "sequences": found.engine.sequences,
        "moved": round(candidate.moved),
        "bubble": candidate.bubble,
        "overrides": list(candidate.overrides),
    }


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.0f} MiB"


def _decimal(size: float) -> str:
    """As disks and networks are sold."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.2f} MB"


def _aligned(table: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Columns of like width; the first `left` ones start at their left edge."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(
            text.ljust(width) if column < left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
