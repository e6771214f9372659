"""The config: frozen dataclasses, one section per concern. The text under a field is its documentation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from da3po_cli.algos.table import ALGORITHMS, AlgoConfig


@dataclass(frozen=True)
class RunConfig:
    name: str | None = None
    """Directory under DA3PO_RUNS; null makes one of the algorithm, the config and the time."""
    steps: int = 100
    """Training steps: one rollout batch and its updates each."""
    seed: int = 0
    tensorboard: bool = True
    wandb_project: str | None = None
    """Weights & Biases project; needs the extra `wandb`."""
    save_rollouts: bool = True
    """Write rollouts/step_N.jsonl with every response, kept or dropped."""


@dataclass(frozen=True)
class ModelConfig:
    path: str = ""
    """A Hugging Face directory, a hub id, or `demo` for the model shipped in the package."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"


@dataclass(frozen=True)
class DataConfig:
    train: str = ""
    """Training prompts: a .parquet or .jsonl file, a hub id, or `arith` for the demo's generator."""
    validation: str | None = None
    """Held-out prompts in the same forms; null turns validation off."""
    template: Literal["chat", "dapo", "boxed", "none"] = "chat"
    """How a problem becomes a prompt: the tokenizer's chat template, DAPO's instruction, boxed, or the bare text."""
    prompt_key: str | None = None
    """Column of the problem; null finds it among the usual names."""
    answer_key: str | None = None
    max_prompt_tokens: int = 2048
    """Longer prompts (after the template) are dropped and counted."""
    reward: Literal["math", "arith"] = "math"


@dataclass(frozen=True)
class RolloutConfig:
    prompts: int = 512
    """Groups trained on per step."""
    group_size: int = 16
    """Responses per prompt, G."""
    max_tokens: int = 20480
    """Longest response."""
    temperature: float = 1.0
    tensor: int = 1
    """Tensor-parallel size of a rollout engine; any divisor of the world size."""
    gpu_memory: float = 0.85
    """Share of the device memory that vLLM may use while the trainer sleeps."""
    kv_cache_gib: int = 1
    """KV cache per engine on CPU, GiB."""
    max_sequences: int = 256
    """Sequences that an engine decodes at a time."""
    max_logprob_gap: float = 0.05
    """Largest |trainer - engine| log-prob on the probe batch; above it the run stops."""


@dataclass(frozen=True)
class TrainConfig:
    mini_batch_prompts: int = 32
    """Groups per optimizer step; rollout.prompts / this is the number of updates per step."""
    micro_batch_tokens: int = 32768
    """Padded tokens per forward pass and data-parallel rank."""
    epochs: int = 1
    """Passes over a step's batch."""
    lr: float = 1e-6
    weight_decay: float = 0.1
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_eps: float = 1e-8
    grad_clip: float = 1.0
    warmup_steps: int = 10
    """Rollout steps over which the learning rate rises linearly to `lr`; then it is constant."""
    recompute: bool = False
    """Full activation recomputation."""


@dataclass(frozen=True)
class ParallelConfig:
    tensor: int = 1
    pipeline: int = 1
    data: int | None = None
    """Null: what is left of the ranks, of the visible CUDA devices, or on a CPU of two cores."""


@dataclass(frozen=True)
class ValidationConfig:
    every: int = 20
    """Steps between validations; also before the first and after the last step. 0 is never."""
    prompts: int | None = None
    """The first this many held-out prompts; null is all."""
    samples: int = 8
    """Samples per prompt, the k of avg@k and pass@k."""
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True)
class CheckpointConfig:
    every: int = 50
    """Steps between checkpoints; the last step is always saved. 0 saves the last only."""
    keep: int = 2
    """Newest checkpoints kept."""


@dataclass(frozen=True)
class Config:
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    algo: AlgoConfig = field(default_factory=lambda: ALGORITHMS["da3po"].defaults)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
