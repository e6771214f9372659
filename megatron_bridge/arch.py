"""What the bridge needs to know of a Hugging Face model, read from its config.json, and the layouts that it fits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3po_cli.config.schema import ParallelConfig
from da3po_cli.errors import UsageError
from megatron_bridge.families import Family, family

VOCAB_MULTIPLE = 16  # rows per tensor-parallel rank: FP8 kernels want multiples of 16
_SCALED_ROPE = ("llama3", "linear")  # frequencies that follow from the config alone, and no scaling of attention


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
    rope_inv_freq: tuple[float, ...] | None  # [D / 2] of a scaled RoPE; None is plain RoPE, theta^(-2i/D)
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
    theta, inv_freq = _rope(config, file)
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
        rope_inv_freq=inv_freq,
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


def _rope(config: Any, file: Path) -> tuple[float, tuple[float, ...] | None]:
    """(theta, frequencies of a scaled RoPE or None) from transformers 5's `rope_parameters`."""
    rope: dict[str, Any] = config.rope_parameters
    kind, partial = rope.get("rope_type", "default"), rope.get("partial_rotary_factor", 1.0)
    if kind == "default" and partial == 1.0:
        return float(rope["rope_theta"]), None
    if kind in _SCALED_ROPE and partial == 1.0:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        inv_freq, _ = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        return float(rope["rope_theta"]), tuple(inv_freq.tolist())
    raise UsageError(
        f"RoPE of type {kind!r} with {rope} is not supported",
        hint=f"plain RoPE works, and {' and '.join(map(repr, _SCALED_ROPE))}",
        where=str(file),
    )


def check_layout(arch: Arch, layout: ParallelConfig) -> None:
    """Refuse a layout that the model does not divide into.

    Raises:
        UsageError: tensor does not divide heads or the feed-forward size, nor fits the key/value heads; fewer layers
            than pipeline stages; `pipeline_layers` that do not add up.
    """
    tensor = layout.tensor
    for name, value in (("attention heads", arch.heads), ("feed-forward columns", arch.ffn)):
        if value % tensor:
            raise UsageError(
                f"parallel.tensor={tensor} does not divide the model's {value} {name}",
                hint=f"set parallel.tensor to a divisor of {value}",
                where=str(arch.path),
            )
    if arch.groups % tensor and tensor % arch.groups:
        raise UsageError(
            f"parallel.tensor={tensor} is neither a divisor nor a multiple of the model's {arch.groups} "
            "key/value heads",
            hint=f"set parallel.tensor to a divisor or a multiple of {arch.groups}",
            where=str(arch.path),
        )
    layout.stage_layers(arch.layers)
