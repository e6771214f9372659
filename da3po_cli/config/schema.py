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
    """Training prompts: .parquet, .jsonl or .json files, hub ids, or `arith` for the demo's generator. Several are
    separated by commas; `FILE@[a:b]` takes a slice of rows, and `FILE*3, OTHER*1` mixes them three to one."""
    validation: str | None = None
    """Held-out prompts in the same forms, without weights; null turns validation off."""
    template: str = "chat"
    """How a problem becomes a prompt: `chat` (the tokenizer's chat template), `dapo` (DAPO's instruction), `boxed`,
    `none` (the bare text), or the path of a .jinja file."""
    thinking: bool | None = None
    """`enable_thinking` of a chat template that has this switch; null leaves it to the template."""
    prompt_key: str | None = None
    """Column of the problem, `a.b` for a field in a struct; null finds it among the usual names."""
    answer_key: str | None = None
    """Column of the gold answer, in the same way."""
    stop_tokens: str | None = None
    """More tokens that end a response, as texts or ids with commas between; EOS and generation_config always do."""
    max_prompt_tokens: int = 2048
    """Longer prompts (after the template) are dropped and counted."""


@dataclass(frozen=True)
class RewardConfig:
    name: str = "math"
    """How responses are graded: math, dapo (DAPO's strict string rule), arith (the demo's task), or the import path
    package.module:function of a function (response, finish_reason, gold) -> Grade or bool."""
    by_source: str = ""
    """Other rewards for some data sources, such as gsm8k=math,aime=dapo."""
    correct: float = 1.0
    wrong: float = -1.0
    """Reward of a wrong answer, and of one that the grader could not judge."""
    format_bonus: float = 0.0
    """Added where an answer was found in the form that the reward reads, right or wrong."""
    deadline_s: float = 3.0
    """CPU seconds per answer; past it the grading worker is replaced and the answer is unknown."""
    workers: int | None = None
    """Grading processes; null is one per core, at most 8."""
    max_unknown: float = 0.05
    """Largest share of a step's answers that the grader may leave unknown; above it the run stops."""


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
    quantization: Literal["fp8"] | None = None
    """Weights of the rollout engine in FP8, quantised at each sync; needs truncated importance sampling."""
    max_logprob_gap: float = 0.05
    """Largest |trainer - engine| log-prob on the probe batch; above it the run stops."""


@dataclass(frozen=True)
class TrainConfig:
    mini_batch_prompts: int = 32
    """Groups per optimizer step; rollout.prompts / this is the number of updates per step."""
    micro_batch_tokens: int = 32768
    """Tokens per forward pass and data-parallel rank; sequences are packed up to it."""
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
    virtual_pipeline: int = 1
    """Model chunks per pipeline rank; above 1 Megatron's interleaved schedule runs."""
    pipeline_layers: str | None = None
    """Layers of each stage (with virtual_pipeline: chunk) in model order, such as 8,10,10,8; null spreads them."""
    sequence: bool = False
    """Sequence parallelism: norms and residuals are split over the tensor-parallel ranks."""
    context: int = 1
    """Context parallelism; not built yet, so only 1."""
    expert: int = 1
    """Expert parallelism; not built yet, so only 1."""


@dataclass(frozen=True)
class Fp8Config:
    format: Literal["none", "hybrid", "e4m3"] = "none"
    """FP8 matrix products of TransformerEngine; hybrid is E4M3 forward and E5M2 for gradients."""
    recipe: Literal["delayed", "tensorwise", "blockwise", "mxfp8"] = "tensorwise"
    """How scales are found; blockwise needs Hopper, mxfp8 Blackwell."""
    param_gather: bool = False
    """Keep the weights in FP8 and gather them so; the optimizer's main parameters stay in float32."""
    bf16_layers: int = 0
    """This many layers at each end of the model stay in bf16."""


@dataclass(frozen=True)
class ValidationConfig:
    every: int = 20
    """Steps between validations; also before the first and after the last step. 0 is never."""
    prompts: int | None = None
    """The first this many held-out prompts (of data.validation and of each benchmark); null is all."""
    benches: str = ""
    """Benchmarks of `da3po eval` beside data.validation, such as aime24,math500, graded as they are there."""
    bench_dir: str | None = None
    """Directory of benchmark files; null is DA3PO_BENCH_DIR, and without that the Hugging Face hub."""
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
    keep_best: bool = True
    """Keep the best one too: a validation that beats every checkpoint makes one, unless `every` is 0."""
    best_metric: str | None = None
    """The val/... metric that it is best by, higher is better; null is the first avg@k of the validation."""
    async_save: bool = False
    """Write in the background, from a copy in host memory; training waits for the copy only."""
    before: str | None = None
    """HH:MM[:SS] from the start of the job (Slurm's, where it tells, else the command's): where another step might not
    be through by then, save and end with exit code 0."""


@dataclass(frozen=True)
class Config:
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    algo: AlgoConfig = field(default_factory=lambda: ALGORITHMS["da3po"].defaults)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    fp8: Fp8Config = field(default_factory=Fp8Config)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
