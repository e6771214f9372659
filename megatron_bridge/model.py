"""Hugging Face config -> TransformerConfig -> this rank's stage of a Megatron GPTModel, in Megatron's DDP."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer.module import Float16Module, MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from da3po_cli.errors import UsageError
from megatron_bridge.families import Family, family
from megatron_bridge.parallel import Parallel

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
VOCAB_MULTIPLE = 16  # rows per tensor-parallel rank: FP8 kernels want multiples of 16
# Megatron implements Llama 3's RoPE scaling with these three numbers fixed.
_LLAMA3_FIXED = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True)
class Arch:
    """What the bridge needs to know of a Hugging Face model."""

    path: Path
    family: Family
    layers: int
    hidden: int
    ffn: int
    heads: int
    groups: int
    head_dim: int
    vocab: int
    max_positions: int
    norm_eps: float
    rope_theta: float
    rope_factor: float | None  # of Llama 3's scaling; None is plain RoPE
    tied: bool

    def padded_vocab(self, tensor: int) -> int:
        """Rows of the embedding in Megatron, so that every tensor-parallel rank has a multiple of 16."""
        multiple = VOCAB_MULTIPLE * tensor
        return -(-self.vocab // multiple) * multiple


def read_arch(hf_dir: Path) -> Arch:
    """Read `config.json` of a Hugging Face directory.

    Raises:
        UsageError: no such file, an unknown architecture, or a feature that this bridge does not carry over.
    """
    file = hf_dir / "config.json"
    if not file.is_file():
        raise UsageError(f"no config.json in {hf_dir}", hint="set model.path to a Hugging Face model directory")
    names = json.loads(file.read_text(encoding="utf-8")).get("architectures") or ["(none named)"]
    kind = family(names[0], where=str(file))

    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(str(hf_dir), local_files_only=True)
    _refuse_unsupported(config, file)
    theta, factor = _rope(config, file)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Arch(
        path=hf_dir,
        family=kind,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        ffn=config.intermediate_size,
        heads=config.num_attention_heads,
        groups=config.num_key_value_heads,
        head_dim=head_dim,
        vocab=config.vocab_size,
        max_positions=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        rope_theta=theta,
        rope_factor=factor,
        tied=bool(config.tie_word_embeddings),
    )


def _refuse_unsupported(config: Any, file: Path) -> None:
    """Features that would be lost silently."""
    found = []
    if config.hidden_act != "silu":
        found.append(f"hidden_act={config.hidden_act!r}")
    if config.model_type != "qwen2" and getattr(config, "attention_bias", False):
        found.append("attention_bias=true")
    if getattr(config, "mlp_bias", False):
        found.append("mlp_bias=true")
    if "sliding_attention" in (getattr(config, "layer_types", None) or []):
        found.append("sliding-window attention")
    if found:
        raise UsageError(
            f"the model uses {', '.join(found)}, which this trainer does not carry over",
            hint="choose a dense model with full attention, SwiGLU and no such biases",
            where=str(file),
        )


def _rope(config: Any, file: Path) -> tuple[float, float | None]:
    """(theta, factor of Llama 3's scaling or None) from transformers 5's `rope_parameters`."""
    rope: dict[str, Any] = config.rope_parameters
    kind = rope.get("rope_type", "default")
    if kind == "default" and rope.get("partial_rotary_factor", 1.0) == 1.0:
        return float(rope["rope_theta"]), None
    if kind == "llama3" and all(float(rope[key]) == value for key, value in _LLAMA3_FIXED.items()):
        return float(rope["rope_theta"]), float(rope["factor"])
    raise UsageError(
        f"RoPE of type {kind!r} with {rope} is not supported",
        hint=f"plain RoPE works, and 'llama3' with {_LLAMA3_FIXED}",
        where=str(file),
    )


def check_layout(arch: Arch, tensor: int, pipeline: int) -> None:
    """Refuse a layout that the model does not divide into.

    Raises:
        UsageError: tensor does not divide heads, key/value heads or the feed-forward size; pipeline not the layers.
    """
    for name, value in (
        ("attention heads", arch.heads),
        ("key/value heads", arch.groups),
        ("feed-forward columns", arch.ffn),
    ):
        if value % tensor:
            raise UsageError(
                f"parallel.tensor={tensor} does not divide the model's {value} {name}",
                hint=f"set parallel.tensor to a divisor of {value}",
                where=str(arch.path),
            )
    if arch.layers % pipeline:
        raise UsageError(
            f"parallel.pipeline={pipeline} does not divide the model's {arch.layers} layers",
            hint=f"set parallel.pipeline to a divisor of {arch.layers}",
            where=str(arch.path),
        )


class SdpaAttention(MegatronModule):
    """Causal attention by torch's fused kernel, in place of the local spec's unfused one.

    Rows are right-padded, so the causal mask alone keeps padding out of every real position. Same constructor and
    call as Megatron's DotProductAttention.
    """

    def __init__(self, config: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config=config)
        self.head_dim = config.kv_channels

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """query [S, B, NH, D], key and value [S, B, G, D] (per rank) -> [S, B, NH * D]."""
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))  # [B, heads, S, D]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return out.permute(2, 0, 1, 3).flatten(2)


def transformer_engine_available() -> bool:
    """Whether Megatron's TransformerEngine layers can be used: a CUDA device and the package."""
    return torch.cuda.is_available() and importlib.util.find_spec("transformer_engine") is not None


def transformer_config(arch: Arch, dtype: torch.dtype, parallel: Parallel, recompute: bool) -> TransformerConfig:
    """Megatron's config of the model; everything that Megatron would default differently is set here."""
    cuda = parallel.device.type == "cuda"
    recompute_fields: dict[str, Any] = (
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1} if recompute else {}
    )
    return TransformerConfig(
        num_layers=arch.layers,
        hidden_size=arch.hidden,
        ffn_hidden_size=arch.ffn,
        num_attention_heads=arch.heads,
        num_query_groups=arch.groups,
        kv_channels=arch.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=arch.norm_eps,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=arch.family.qkv_bias,
        qk_layernorm=arch.family.qk_norm,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tensor_model_parallel_size=parallel.tensor_size,
        pipeline_model_parallel_size=parallel.pipeline_size,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        variable_seq_lengths=parallel.pipeline_size > 1,  # micro-batches differ in shape
        moe_token_dispatcher_type="alltoall",  # dense model: only there because the default refuses variable lengths
        calculate_per_token_loss=True,  # gradients are summed, see engine.py
        use_cpu_initialization=not cuda,
        # The weights are read from files: initialisation only has to set the tensor-parallel attributes.
        init_method=_keep,
        output_layer_init_method=_keep,
        embedding_init_method=_keep,
        # These fusions go through torch.compile, which on a CPU costs more than it gives.
        bias_activation_fusion=cuda,
        bias_dropout_fusion=cuda,
        masked_softmax_fusion=False,
        **recompute_fields,
    )


def _keep(weight: Tensor) -> Tensor:
    return weight


def layer_spec(config: TransformerConfig, engine: Literal["local", "te"]) -> ModuleSpec:
    """The layer: TransformerEngine's, or Megatron's local one with torch's fused attention."""
    if engine == "te":
        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm)
    spec: Any = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = SdpaAttention
    return spec


def build_stage(arch: Arch, dtype: torch.dtype, parallel: Parallel, recompute: bool) -> MegatronModule:
    """This rank's pipeline stage, uninitialised, in `dtype`, on its device. Call it inside `parallel.megatron()`."""
    check_layout(arch, parallel.tensor_size, parallel.pipeline_size)
    config = transformer_config(arch, dtype, parallel, recompute)
    model: MegatronModule = GPTModel(
        config=config,
        transformer_layer_spec=layer_spec(config, "te" if transformer_engine_available() else "local"),
        vocab_size=arch.padded_vocab(parallel.tensor_size),
        max_sequence_length=arch.max_positions,
        pre_process=parallel.first_stage,
        post_process=parallel.last_stage,
        share_embeddings_and_output_weights=arch.tied,
        position_embedding_type="rope",
        rotary_base=arch.rope_theta,  # type: ignore[arg-type]  # annotated int, used as a number
        rope_scaling=arch.rope_factor is not None,
        rope_scaling_factor=arch.rope_factor or 8.0,
    )
    model.to(parallel.device)
    return Float16Module(config, model) if dtype is torch.bfloat16 else model


def wrap(stage: MegatronModule, parallel: Parallel) -> DistributedDataParallel:
    """Megatron's DDP: one flat gradient buffer (float32) per stage, reduce-scattered for the distributed optimizer."""
    return DistributedDataParallel(
        config=stage.config,
        ddp_config=DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=True,
            overlap_grad_reduce=False,  # one reduction per update, after the last micro-batch of the slowest rank
        ),
        module=stage,
    )
