"""What one config takes on one layout: memory by part and phase, bytes that resharding moves, disk of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from da3po_cli.config.plan import Layout, layout
from da3po_cli.config.schema import Config, Fp8Config, ParallelConfig
from da3po_cli.planning.activations import Activations, activations
from da3po_cli.planning.batch import Batch, Measured, batch_of
from da3po_cli.planning.engine import EngineMemory, cpu_engine, gpu_engine
from da3po_cli.planning.shape import Shape, rank_parameters
from da3po_cli.planning.state import BYTES, TrainerState, largest_state, saving

GIB = 1 << 30
CPU_LIBRARIES = 560 << 20
"""Resident size of a rank that has imported torch, transformers, Megatron-Core and vLLM's CPU build, and nothing else:
509 and 612 MiB measured with the versions of requirements/cpu.txt, without and with other packages beside them. Four
fifths of it are Python's heap, the rest pages of the libraries."""
CPU_FIRST_USE = 160 << 20
"""What comes on top when these are used, whatever the model: 70 MiB when the engine and the process groups start, and
90 MiB of kernels and caches in the first training pass (what is left at 0 tokens of two passes of unlike length)."""
GPU_RESERVED = 2 * GIB
"""Allowance on a GPU for the CUDA context, the kernels, the buffers of NCCL, and what a sleeping engine keeps."""
HEADROOM = 0.03
"""Share of a GPU that stays free: for the fragments of the allocator, and for what these estimates do not see."""


@dataclass(frozen=True)
class Machine:
    """Where a plan is for. `memory` is bytes per GPU; with 0 GPUs the ranks are processes on a CPU."""

    gpus: int
    memory: int = 0


@dataclass(frozen=True)
class Phase:
    """What a rank holds at its fullest moment of a phase, by part, in bytes. The parts add up."""

    name: str
    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Stage:
    """The memory of the ranks of one pipeline stage."""

    number: int
    state: TrainerState
    expected: Activations
    most: Activations
    phases: tuple[Phase, ...]
    most_phases: tuple[Phase, ...]  # as `phases`, with every sequence of the longest length

    @property
    def peak(self) -> int:
        return max(phase.total for phase in self.phases)

    @property
    def most_peak(self) -> int:
        return max(phase.total for phase in self.most_phases)


@dataclass(frozen=True)
class Estimate:
    """One config on one layout.

    Attributes:
        stage: the pipeline stage whose ranks need most.
        stages: all of them.
        fused: whether TransformerEngine's layers are counted, or Megatron's local ones.
        sync_bytes: of the weights that go to the rollout engine at each sync, each once.
        buffer_bytes: of the largest tensor in that stream.
        checkpoint_bytes: on disk.
        host_bytes: in host memory of the first data-parallel rank while a checkpoint is saved; with a KL term also the
            initial weights, and the current ones while these are in their place.
    """

    config: Config
    where: Layout
    machine: Machine
    batch: Batch
    engine: EngineMemory
    stages: tuple[Stage, ...]
    fused: bool
    sync_bytes: int
    buffer_bytes: int
    checkpoint_bytes: int
    host_bytes: int

    @property
    def stage(self) -> Stage:
        return max(self.stages, key=lambda stage: (stage.most_peak, stage.peak))

    @property
    def limit(self) -> int:
        """Bytes that a rank may use; 0 is no limit known."""
        return int(self.machine.memory * (1 - HEADROOM))

    @property
    def fits(self) -> bool:
        """Whether every phase of every rank fits in a GPU, and the KV cache holds a sequence; a CPU is not judged."""
        if not self.machine.gpus:
            return True
        return self.engine.sequences >= 1 and self.stage.most_peak <= self.limit


def estimate(config: Config, shape: Shape, machine: Machine, measured: Measured | None = None) -> Estimate:
    """Estimate a config that `config.checks` accepts."""
    where = layout(config, devices=machine.gpus)
    batch = batch_of(config, where.data, measured)
    dtype, width = config.model.dtype, BYTES[config.model.dtype]
    fused = machine.gpus > 0 and dtype == "bfloat16"  # as megatron_bridge.backends.choose_backend
    gathered = 2 if where.tensor > 1 else 1  # the shards of all ranks and what they are joined to, or a part's copy
    if machine.gpus:
        engine = gpu_engine(shape, config.rollout, dtype, batch.longest, machine.memory, GPU_RESERVED)
    else:
        engine = cpu_engine(shape, config.rollout, dtype, batch.longest)
    stages = tuple(
        _stage(number, config, shape, where, machine, batch, engine, gathered * shape.largest_tensor * width, fused)
        for number in range(where.pipeline)
    )
    return Estimate(
        config=config,
        where=where,
        machine=machine,
        batch=batch,
        engine=engine,
        stages=stages,
        fused=fused,
        sync_bytes=shape.parameters * width,
        buffer_bytes=shape.largest_tensor * width,
        checkpoint_bytes=checkpoint_bytes(shape, where.tensor, dtype),
        host_bytes=max(saving(stage.state, where.data) + _reference(config, stage.state.weights) for stage in stages),
    )


def checkpoint_bytes(shape: Shape, tensor: int, dtype: str) -> int:
    """Weights in the model's dtype, float32 main parameters and two moments; headers of the files come on top."""
    padding = shape.padded_vocab(tensor) - shape.vocab
    elements = shape.parameters + padding * shape.hidden * (1 if shape.tied else 2)
    return elements * (BYTES[dtype] + 12)


def _stage(
    number: int,
    config: Config,
    shape: Shape,
    where: Layout,
    machine: Machine,
    batch: Batch,
    engine: EngineMemory,
    buffer: int,
    fused: bool,
) -> Stage:
    state = _state(number, config.parallel, shape, where.data, config.model.dtype, config.fp8, fused)
    sizes = [
        activations(
            shape,
            config.parallel,
            number,
            tokens,
            batch.micro_batches,
            config.model.dtype,
            config.fp8,
            recompute=config.train.recompute,
            fused=fused,
        )
        for tokens in (batch.tokens, batch.most_tokens)
    ]
    host = _reference(config, state.weights), saving(state, where.data)
    phases = _gpu_phases if machine.gpus else partial(_cpu_phases, *host)
    expected, most = (tuple(phases(state, size, engine, buffer)) for size in sizes)
    return Stage(number, state, sizes[0], sizes[1], expected, most)


@lru_cache(maxsize=512)  # a search tries several rollout engines on one layout of the trainer
def _state(
    number: int, parallel: ParallelConfig, shape: Shape, data: int, dtype: str, fp8: Fp8Config, fused: bool
) -> TrainerState:
    chunks = rank_parameters(shape, parallel, number, fused=fused)
    return largest_state(chunks, data, dtype, fp8, shape.layers)


def _reference(config: Config, weights: int) -> int:
    return 2 * weights if config.algo.kl_coef else 0


def _trainer(state: TrainerState) -> dict[str, int]:
    parts = {
        "weights": state.weights,
        "FP8 copies of weights": state.fp8_copies,
        "gradients (float32)": state.gradients,
        "main parameters (float32)": state.main,
        "Adam moments (float32)": state.moments,
    }
    return {name: size for name, size in parts.items() if size}


def _gpu_phases(state: TrainerState, size: Activations, engine: EngineMemory, buffer: int) -> Iterator[Phase]:
    """The engine sleeps in training only; the trainer's memory stays. The KV cache wakes after the sync.

    A save takes host memory.
    """
    common = {"CUDA, NCCL, allowance": GPU_RESERVED, **_trainer(state)}
    yield Phase("train", {**common, "activations": size.kept, "logits, working memory": size.working})
    yield Phase("sync", {**common, "vLLM weights": engine.weights, "resharding buffer": buffer})
    rollout = {"vLLM weights": engine.weights, "vLLM workspace": engine.workspace, "KV cache": engine.kv_cache}
    yield Phase("rollout", {**common, **rollout})


def _cpu_phases(
    reference: int, save: int, state: TrainerState, size: Activations, engine: EngineMemory, buffer: int
) -> Iterator[Phase]:
    """Nothing sleeps on a CPU, and the C library keeps the pieces that activations were made of."""
    common = {
        "Python and libraries": CPU_LIBRARIES,
        "engine and kernels at first use": CPU_FIRST_USE,
        **_trainer(state),
        "vLLM weights": engine.weights,
        "KV cache": engine.kv_cache,
        **({"reference weights": reference} if reference else {}),
    }
    yield Phase("train", {**common, "activations": size.kept, "logits, working memory": size.working})
    yield Phase("sync", {**common, "resharding buffer": buffer})
    yield Phase("rollout", common)
    yield Phase("save", {**common, "activations": size.kept, "gathered to be saved": save})


def largest_share(found: Estimate) -> float:
    """The largest `rollout.gpu_memory` at which the rollout fits beside the trainer's memory, 0.01 at least.

    vLLM's share counts the CUDA context and NCCL (`GPU_RESERVED`), which are the trainer's too.
    """
    taken = max(stage.state.total for stage in found.stages)
    return max(1, int(100 * (found.limit - taken) / max(1, found.machine.memory))) / 100


def with_share(config: Config, share: float) -> Config:
    """`config` with another `rollout.gpu_memory`."""
    return replace(config, rollout=replace(config.rollout, gpu_memory=share))
