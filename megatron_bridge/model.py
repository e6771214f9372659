"""Hugging Face config -> TransformerConfig -> this rank's chunks of a Megatron GPTModel, in Megatron's DDP."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.module import Float16Module, MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from da3po_cli.config.schema import Fp8Config, ParallelConfig
from megatron_bridge.arch import Arch
from megatron_bridge.backends import Backend
from megatron_bridge.parallel import Parallel

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def transformer_config(
    arch: Arch,
    dtype: torch.dtype,
    parallel: Parallel,
    layout: ParallelConfig,
    fields: dict[str, Any],
    recompute: bool = False,
) -> TransformerConfig:
    """Megatron's config of the model; everything that Megatron would default differently is set here.

    Args:
        fields: of the backend, `Backend.config_fields`.
    """
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
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline if layout.virtual_pipeline > 1 else None,
        pipeline_model_parallel_layout=_stages(arch, layout) if parallel.pipeline_size > 1 else None,
        sequence_parallel=layout.sequence and parallel.tensor_size > 1,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        # With two stages, an interleaved pipeline sends activations and gradients between the same two ranks at a time;
        # Megatron keeps them apart only when it overlaps.
        overlap_p2p_comm=layout.virtual_pipeline > 1,
        batch_p2p_comm=layout.virtual_pipeline == 1,
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
        **fields,
    )


def _stages(arch: Arch, layout: ParallelConfig) -> list[list[str]]:
    """What each chunk of the pipeline holds, in Megatron's words."""
    stages = [["decoder"] * count for count in layout.stage_layers(arch.layers)]
    stages[0].insert(0, "embedding")
    stages[-1].append("loss")
    return stages


def _keep(weight: Tensor) -> Tensor:
    return weight


def build_chunks(
    config: TransformerConfig, arch: Arch, parallel: Parallel, layout: ParallelConfig, backend: Backend
) -> list[MegatronModule]:
    """This rank's model chunks (one without a virtual pipeline), uninitialised, in `config.params_dtype`.

    They are on the rank's device. Call it inside `parallel.megatron()`.
    """
    counts = layout.stage_layers(arch.layers)[parallel.pipeline_rank :: parallel.pipeline_size]
    chunks: list[MegatronModule] = []
    for number, layers in enumerate(counts):
        model: Any = GPTModel(
            config=config,
            transformer_layer_spec=backend.block_spec(config, layers),  # type: ignore[arg-type]  # Megatron takes both
            vocab_size=arch.padded_vocab(parallel.tensor_size),
            max_sequence_length=arch.max_positions,
            pre_process=parallel.first_stage and number == 0,
            post_process=parallel.last_stage and number == len(counts) - 1,
            share_embeddings_and_output_weights=arch.tied,
            position_embedding_type="rope",
            rotary_base=arch.rope_theta,  # type: ignore[arg-type]  # annotated int, used as a number
            vp_stage=number if len(counts) > 1 else None,
        )
        if arch.rope_inv_freq is not None:  # Megatron knows Llama 3's scaling with fixed constants only
            model.rotary_pos_emb.inv_freq = torch.tensor(arch.rope_inv_freq, dtype=torch.float32)
        model.to(parallel.device)
        chunks.append(Float16Module(config, model) if config.params_dtype is torch.bfloat16 else model)
    return chunks


def wrap(chunk: MegatronModule, fp8: Fp8Config) -> DistributedDataParallel:
    """Megatron's DDP: one flat gradient buffer (float32) per chunk, reduce-scattered for the distributed optimizer."""
    return DistributedDataParallel(
        config=chunk.config,
        ddp_config=DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=True,
            overlap_grad_reduce=False,  # one reduction per update, after the last micro-batch of the slowest rank
            fp8_param_gather=fp8.param_gather,
        ),
        module=chunk,
    )
