"""Model families: one immutable table per Hugging Face architecture.

A family says which of Megatron's config fields follow from the architecture, and how parameters correspond. `*` in
a name stands for the layer number. Tied embeddings are a parameter of loading and export, never an edit of a table.
The last two rows are the names under which TransformerEngine fuses a norm into the linear layer that follows it
(rows `input_layernorm` and `pre_mlp_layernorm` of the local layer spec): a model has the one or the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from da3po_cli.errors import UsageError
from megatron_bridge.ops import Op

EMBEDDING = "embedding.word_embeddings.weight"
HEAD = "output_layer.weight"
HF_EMBEDDING = "model.embed_tokens.weight"
HF_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Row:
    """One Megatron parameter and the Hugging Face tensors that it is made of."""

    megatron: str
    hf: tuple[str, ...]
    op: Op = "copy"

    def hf_names(self, layer: int | None) -> tuple[str, ...]:
        """The Hugging Face names for one global layer number (None for a row without a layer)."""
        return tuple(name.replace("*", str(layer)) for name in self.hf)


@dataclass(frozen=True)
class Family:
    """What an architecture means for Megatron."""

    qkv_bias: bool
    qk_norm: bool
    rows: tuple[Row, ...]

    def row(self, name: str) -> tuple[Row, int | None]:
        """The row of a Megatron parameter and its layer number as written in `name` (local to the pipeline stage).

        Raises:
            KeyError: no row has this name.
        """
        found = re.fullmatch(r"(decoder\.layers\.)(\d+)(\..+)", name)
        pattern = f"{found[1]}*{found[3]}" if found else name
        for row in self.rows:
            if row.megatron == pattern:
                return row, int(found[2]) if found else None
        raise KeyError(name)


_L, _H = "decoder.layers.*.", "model.layers.*."
_QKV = ("q_proj", "k_proj", "v_proj")

_COMMON = (
    Row(EMBEDDING, (HF_EMBEDDING,)),
    Row(f"{_L}input_layernorm.weight", (f"{_H}input_layernorm.weight",)),
    Row(f"{_L}self_attention.linear_qkv.weight", tuple(f"{_H}self_attn.{p}.weight" for p in _QKV), "qkv"),
    Row(f"{_L}self_attention.linear_proj.weight", (f"{_H}self_attn.o_proj.weight",)),
    Row(f"{_L}pre_mlp_layernorm.weight", (f"{_H}post_attention_layernorm.weight",)),
    Row(f"{_L}mlp.linear_fc1.weight", (f"{_H}mlp.gate_proj.weight", f"{_H}mlp.up_proj.weight"), "gate_up"),
    Row(f"{_L}mlp.linear_fc2.weight", (f"{_H}mlp.down_proj.weight",)),
    Row("decoder.final_layernorm.weight", ("model.norm.weight",)),
    Row(HEAD, (HF_HEAD,)),
    Row(f"{_L}self_attention.linear_qkv.layer_norm_weight", (f"{_H}input_layernorm.weight",)),
    Row(f"{_L}mlp.linear_fc1.layer_norm_weight", (f"{_H}post_attention_layernorm.weight",)),
)
_QKV_BIAS = (Row(f"{_L}self_attention.linear_qkv.bias", tuple(f"{_H}self_attn.{p}.bias" for p in _QKV), "qkv"),)
_QK_NORM = (
    Row(f"{_L}self_attention.q_layernorm.weight", (f"{_H}self_attn.q_norm.weight",)),
    Row(f"{_L}self_attention.k_layernorm.weight", (f"{_H}self_attn.k_norm.weight",)),
)

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(qkv_bias=False, qk_norm=False, rows=_COMMON),
    "Qwen2ForCausalLM": Family(qkv_bias=True, qk_norm=False, rows=_COMMON + _QKV_BIAS),
    "Qwen3ForCausalLM": Family(qkv_bias=False, qk_norm=True, rows=_COMMON + _QK_NORM),
}


def family(architecture: str, where: str | None = None) -> Family:
    """The family of a Hugging Face architecture name.

    Raises:
        UsageError: the architecture is not in the table; names those that are.
    """
    if architecture not in FAMILIES:
        raise UsageError(
            f"architecture {architecture!r} is not supported",
            hint=f"use a model of one of: {', '.join(sorted(FAMILIES))}",
            where=where,
        )
    return FAMILIES[architecture]
