"""The config: frozen dataclasses, one section per concern. The text under a field is its documentation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from da3po_cli.algos.table import ALGORITHMS, AlgoConfig
from da3po_cli.errors import UsageError


@dataclass(frozen=True)
class RunConfig:
    name: str | None = None
    """Directory under DA3PO_RUNS; null makes one of the algorithm, the config and the time."""
    steps: int = 100
    """Training steps: one rollout batch and its updates each. At least 1."""
    seed: int = 0
    """Seed of the order of the prompts and of sampling. In [0, 4294967296)."""
    tensorboard: bool = True
    """Write TensorBoard files beside metrics.jsonl."""
    wandb_project: str | None = None
    """Weights & Biases project; needs the extra `wandb`."""
    save_rollouts: bool = True
    """Write rollouts/step_N.jsonl with every response, kept or dropped."""


@dataclass(frozen=True)
class ModelConfig:
    path: str = ""
    """A Hugging Face directory, a hub id, or `demo` for the model shipped in the package."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Precision of the weights and of the arithmetic, in the trainer and in the rollout engine."""


@dataclass(frozen=True)
class DataConfig:
    train: str = ""
    """Training prompts: .parquet, .jsonl or .json files, hub ids, or the generators `arith` (the demo's) and `sums`.
    Several are separated by commas; `FILE@[a:b]` takes a slice of rows, `FILE*3, OTHER*1` mixes them three to one."""
    validation: str | None = None
    """Held-out prompts in the same forms, without weights; null for none but validation.benches."""
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
    """Longer prompts (after the template) are dropped and counted. At least 1."""


@dataclass(frozen=True)
class RewardConfig:
    name: str = "math"
    """How responses are graded: math, dapo (DAPO's strict string rule), arith (the demo's task), or the import path
    package.module:function of a function (response, finish_reason, gold) -> Grade or bool."""
    by_source: str = ""
    """Other rewards for some data sources, such as gsm8k=math,aime=dapo."""
    correct: float = 1.0
    """Reward of a correct answer. Above reward.wrong."""
    wrong: float = -1.0
    """Reward of a wrong answer, and of one that the grader could not judge."""
    format_bonus: float = 0.0
    """Added where an answer was found in the form that the reward reads, right or wrong; below correct - wrong.
    At least 0."""
    deadline_s: float = 3.0
    """CPU seconds per answer; past it the grading worker is replaced and the answer is unknown. Above 0."""
    workers: int | None = None
    """Grading processes of each reward in use; null is one per core, at most 8. At least 1."""
    max_unknown: float = 0.05
    """Largest share of the answers of a generation round that the grader may leave unknown; above it, and above four
    answers, the run stops. In [0, 1]."""


@dataclass(frozen=True)
class RolloutConfig:
    prompts: int = 512
    """Groups trained on per step; a multiple of train.mini_batch_prompts. At least 1."""
    group_size: int = 16
    """Responses per prompt, G. At least 2."""
    max_tokens: int = 20480
    """Longest response, tokens. At least 1."""
    temperature: float = 1.0
    """Sampling temperature of training rollouts; log-probs are those of logits / temperature. At least 0.01."""
    tensor: int = 1
    """Tensor-parallel size of a rollout engine; any divisor of the world size. At least 1."""
    gpu_memory: float = 0.85
    """Share of the device memory that vLLM may use, beside the trainer, whose memory stays. In (0, 1]."""
    kv_cache_gib: int = 1
    """KV cache per rank of an engine on CPU, GiB. At least 1."""
    max_sequences: int = 256
    """Sequences that an engine decodes at a time. At least 1."""
    quantization: Literal["fp8"] | None = None
    """Weights of the rollout engine in FP8, quantised at each sync; needs bfloat16 and truncated importance
    sampling."""
    max_logprob_gap: float | None = None
    """Largest mean |trainer - engine| log-prob over the response tokens of an update, nats, and largest relative
    difference of their temperatures as the tokens show it; above it the run stops. By default 1e-4 in float32, 0.05 in
    bfloat16 and 0.1 with FP8. Above 0."""


@dataclass(frozen=True)
class TrainConfig:
    mini_batch_prompts: int = 32
    """Groups per optimizer step; rollout.prompts / this is the number of updates per step and epoch. At least 1."""
    micro_batch_tokens: int = 32768
    """Tokens per forward pass and data-parallel rank; sequences are packed up to it. At least 1."""
    epochs: int = 1
    """Passes over a step's batch. At least 1."""
    lr: float = 1e-6
    """Learning rate of AdamW, reached after the warm-up. Above 0."""
    weight_decay: float = 0.1
    """Decoupled weight decay of AdamW. At least 0."""
    adam_beta1: float = 0.9
    """Decay of the first moment. In [0, 1)."""
    adam_beta2: float = 0.999
    """Decay of the second moment. In [0, 1)."""
    adam_eps: float = 1e-8
    """Added to the root of the second moment. Above 0."""
    grad_clip: float = 1.0
    """Largest norm of the gradient over all parameters; above it the gradient is scaled down. Above 0."""
    warmup_steps: int = 10
    """Rollout steps over which the learning rate rises linearly to `lr`; then it is constant. At least 0."""
    recompute: bool = False
    """Full activation recomputation: less memory, one more forward pass."""


@dataclass(frozen=True)
class ParallelConfig:
    tensor: int = 1
    """Tensor-parallel ranks: attention heads, MLP columns and vocabulary are split. At least 1."""
    pipeline: int = 1
    """Pipeline stages: layers are split. At least 1."""
    data: int | None = None
    """Data-parallel ranks. Null: what is left of the ranks, of the visible CUDA devices, or on a CPU of at most two
    cores. At least 1."""
    virtual_pipeline: int = 1
    """Model chunks per pipeline rank; above 1 Megatron's interleaved schedule runs. At least 1."""
    pipeline_layers: str | None = None
    """Layers of each stage (with virtual_pipeline: chunk) in model order, such as 8,10,10,8; null spreads them."""
    sequence: bool = False
    """Sequence parallelism: norms and residuals are split over the tensor-parallel ranks."""
    context: int = 1
    """Context parallelism, which is not built yet. Only 1."""
    expert: int = 1
    """Expert parallelism, which is not built yet. Only 1."""

    def stage_layers(self, layers: int) -> list[int]:
        """Layers of each pipeline stage, in model order; with a virtual pipeline, of each of its chunks.

        Chunk i is on pipeline rank i modulo `pipeline`. Layers that do not divide go to the stages in the middle: the
        first also holds the embedding and the last the output layer.

        Raises:
            UsageError: `pipeline_layers` is no such list, or there are more chunks than layers.
        """
        chunks = self.pipeline * self.virtual_pipeline
        if self.pipeline_layers is not None:
            return self._given_layers(self.pipeline_layers, layers, chunks)
        if chunks > layers:
            raise UsageError(
                f"parallel.pipeline={self.pipeline} x parallel.virtual_pipeline={self.virtual_pipeline} are more "
                f"stages than the model's {layers} layers",
                where="parallel.pipeline",
                hint=f"parallel.pipeline={layers} or less",
            )
        counts = [layers // chunks] * chunks
        middle_first = sorted(range(chunks), key=lambda chunk: (abs(2 * chunk - chunks + 1), chunk))
        for chunk in middle_first[: layers % chunks]:
            counts[chunk] += 1
        return counts

    def _given_layers(self, text: str, layers: int, chunks: int) -> list[int]:
        parts = [part.strip() for part in text.split(",")]
        counts = [int(part) for part in parts if part.isdecimal()]
        if len(counts) != len(parts) or len(counts) != chunks or sum(counts) != layers or 0 in counts:
            even = (
                "null" if chunks > layers else ",".join(map(str, ParallelConfig(pipeline=chunks).stage_layers(layers)))
            )
            raise UsageError(
                f"parallel.pipeline_layers={text} is not {chunks} numbers above 0 that add up to the model's {layers} "
                "layers",
                where="parallel.pipeline_layers",
                hint=f"one number per stage, such as parallel.pipeline_layers={even}; null is even",
            )
        return counts


@dataclass(frozen=True)
class Fp8Config:
    format: Literal["none", "hybrid", "e4m3"] = "none"
    """FP8 matrix products of TransformerEngine; hybrid is E4M3 forward and E5M2 for gradients."""
    recipe: Literal["delayed", "tensorwise", "blockwise", "mxfp8"] = "tensorwise"
    """How scales are found; blockwise needs Hopper, mxfp8 Blackwell."""
    param_gather: bool = False
    """Keep the weights in FP8 and gather them so; the optimizer's main parameters stay in float32."""
    bf16_layers: int = 0
    """This many layers at each end of the model stay in bf16; not with the delayed recipe. At least 0."""


@dataclass(frozen=True)
class ValidationConfig:
    every: int = 20
    """Steps between validations; also before the first and after the last step. 0 is never.
    At least 0."""
    prompts: int | None = None
    """The first this many held-out prompts (of data.validation and of each benchmark); null is all. At least 1."""
    benches: str = ""
    """Benchmarks of `da3po eval` beside data.validation, such as aime24,math500, graded as they are there."""
    bench_dir: str | None = None
    """Directory of benchmark files; null is DA3PO_BENCH_DIR, and without that the Hugging Face hub."""
    samples: int = 8
    """Samples per prompt, the k of avg@k and pass@k. At least 1."""
    temperature: float = 1.0
    """Sampling temperature of validation; 0 is greedy. At least 0."""
    top_p: float = 1.0
    """Nucleus sampling of validation: the smallest set of tokens with this probability; 1 is off. In (0, 1]."""


@dataclass(frozen=True)
class CheckpointConfig:
    every: int = 50
    """Steps between checkpoints; the last step is always saved. 0 saves the last only. At least 0."""
    keep: int = 2
    """Newest checkpoints kept. At least 1."""
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
class HealthConfig:
    max_skipped: int = 3
    """Updates in a row that are skipped for a loss, log-prob or gradient that is not finite; then the run stops with
    exit code 5. At least 1."""
    patience: int = 5
    """Steps in a row beyond a limit below before a warning or the stop; a warning comes again after as many. At least
    1."""
    min_entropy: float = 0.005
    """Lowest train/entropy, nats per token. At least 0."""
    on_entropy: Literal["warn", "stop", "off"] = "warn"
    """What follows where the entropy is below it: stop is exit code 5."""
    max_truncated: float = 0.5
    """Largest share of responses that reach rollout.max_tokens. In [0, 1]."""
    max_length: float = 0.9
    """Largest mean length of responses, as a share of rollout.max_tokens. In [0, 1]."""
    on_length: Literal["warn", "stop", "off"] = "warn"
    """What follows where responses are longer than one of these two."""
    on_uniform: Literal["warn", "stop", "off"] = "warn"
    """What follows where all answers of a step are right, or all are wrong."""
    stall_timeout: float = 1800.0
    """Seconds in which no rank gets on with anything (before the first step at least 600); then the stacks of all ranks
    are written and the run ends with exit code 3. 0 is never. At least 0."""


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
    health: HealthConfig = field(default_factory=HealthConfig)
