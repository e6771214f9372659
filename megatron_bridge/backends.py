"""What the model's layers are made of. The CPU path and the GPU path differ here and nowhere else.

`TransformerEngine` where it can run: its layers with fused norms, its attention over packed sequences, FP8. `Local`
otherwise: Megatron's own layers with torch's attention, and NVIDIA Apex's fused norm where that is installed. Megatron
by itself takes the fused Adam of TransformerEngine, else of Apex, else torch's.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Literal, Protocol

import torch
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from da3po_cli.config.schema import Fp8Config
from da3po_cli.errors import EnvironmentProblem, UsageError
from megatron_bridge.packing import PackedAttention

FP8_TOKENS = {"delayed": 16, "tensorwise": 16, "mxfp8": 32, "blockwise": 128}
"""Number of tokens of which FP8 kernels take multiples, by recipe."""


class Backend(Protocol):
    """One way to build the layers."""

    @property
    def lengths_on(self) -> torch.device:
        """Where the attention reads the cumulative lengths of packed sequences."""
        ...

    def config_fields(self) -> dict[str, Any]:
        """Fields of TransformerConfig."""
        ...

    def block_spec(self, config: TransformerConfig, layers: int) -> TransformerBlockSubmodules:
        """The decoder of a model chunk of this many layers, and the norm after the last layer of the model."""
        ...

    def token_multiple(self, sequence_parallel: int) -> int:
        """What the number of packed tokens must be a multiple of; `sequence_parallel` ranks split them (1: none)."""
        ...

    def values(self, param: Tensor) -> Tensor:
        """The weights of a parameter as plain numbers."""
        ...


class Local:
    """Megatron's layers, on a CPU or without TransformerEngine."""

    lengths_on = torch.device("cpu")

    def config_fields(self) -> dict[str, Any]:
        return {}

    def block_spec(self, config: TransformerConfig, layers: int) -> TransformerBlockSubmodules:
        spec: Any = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
        layer = spec.submodules
        layer.input_layernorm = layer.pre_mlp_layernorm = RMSNorm
        attention = layer.self_attention.submodules
        attention.core_attention = PackedAttention
        if config.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = RMSNorm
        return _block(spec, layers, RMSNorm)

    def token_multiple(self, sequence_parallel: int) -> int:
        return sequence_parallel

    def values(self, param: Tensor) -> Tensor:
        return param.detach()


class TransformerEngine:
    """TransformerEngine's layers in bf16, and FP8 on request."""

    def __init__(self, device: torch.device, fp8: Fp8Config) -> None:
        self.lengths_on, self.fp8 = device, fp8

    def config_fields(self) -> dict[str, Any]:
        return {"apply_rope_fusion": True, **fp8_fields(self.fp8)}

    def block_spec(self, config: TransformerConfig, layers: int) -> TransformerBlockSubmodules:
        from megatron.core.extensions.transformer_engine import TENorm

        spec = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm)
        return _block(spec, layers, TENorm)

    def token_multiple(self, sequence_parallel: int) -> int:
        return sequence_parallel * (FP8_TOKENS[self.fp8.recipe] if self.fp8.format != "none" else 1)

    def values(self, param: Tensor) -> Tensor:
        from megatron.core.fp8_utils import dequantize_fp8_tensor, is_float8tensor

        return dequantize_fp8_tensor(param) if is_float8tensor(param) else param.detach()


def _block(layer: Any, layers: int, norm: Any) -> TransformerBlockSubmodules:
    return TransformerBlockSubmodules(layer_specs=[layer] * layers, layer_norm=norm)


def choose_backend(device: torch.device, dtype: torch.dtype, fp8: Fp8Config) -> Backend:
    """TransformerEngine on CUDA in bfloat16 where it is installed (its packed attention has no float32), else Local.

    Raises:
        UsageError: FP8 in another dtype than bfloat16.
        EnvironmentProblem: FP8 without a GPU or without TransformerEngine.
    """
    if fp8.format != "none":
        require_fp8(device, dtype)
    if device.type == "cuda" and dtype is torch.bfloat16 and _installed("transformer_engine"):
        return TransformerEngine(device, fp8)
    return Local()


def require_fp8(device: torch.device, dtype: torch.dtype) -> None:
    """Raises what `choose_backend` does."""
    if dtype is not torch.bfloat16:
        raise UsageError("FP8 training needs model.dtype=bfloat16", where="fp8.format", hint="model.dtype=bfloat16")
    missing = "a CUDA device" if device.type != "cuda" else "TransformerEngine"
    if device.type != "cuda" or not _installed("transformer_engine"):
        raise EnvironmentProblem(
            f"FP8 training needs {missing}, and there is none here",
            where="fp8.format",
            hint="fp8.format=none, or on a GPU: pip install 'transformer-engine[pytorch]'",
        )


def fp8_fields(fp8: Fp8Config) -> dict[str, Any]:
    """The FP8 fields of Megatron's TransformerConfig; none when FP8 is off."""
    if fp8.format == "none":
        return {}
    return {
        "fp8": fp8.format,
        "fp8_recipe": fp8.recipe,
        "fp8_param": fp8.param_gather,
        "first_last_layers_bf16": fp8.bf16_layers > 0,
        "num_layers_at_start_in_bf16": fp8.bf16_layers,
        "num_layers_at_end_in_bf16": fp8.bf16_layers,
    }


class RMSNorm(torch.nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * weight, with Megatron's constructor, and fit for sequence parallelism.

    Megatron's wrapper of torch's norm refuses that: under it every tensor-parallel rank norms other tokens, and the
    gradients of the weight must be summed over the ranks, for which Megatron looks at the mark set here.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.fused = apex_kind() == "nvidia" and torch.cuda.is_available()

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        if not self.fused:
            return super().forward(x)
        from apex.normalization.fused_layer_norm import fused_rms_norm_affine  # pyright: ignore[reportMissingImports]

        return fused_rms_norm_affine(x, self.weight, self.normalized_shape, self.eps)


def apex_kind() -> Literal["nvidia", "impostor"] | None:
    """Which `apex` is installed: NVIDIA's (from its git repository), or the unrelated web toolkit of that name on PyPI.

    NVIDIA's brings the compiled extension `amp_C`.
    """
    if not _installed("apex"):
        return None
    return "nvidia" if _installed("amp_C") else "impostor"


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
