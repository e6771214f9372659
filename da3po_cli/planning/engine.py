"""Memory of the rollout engine on one rank: vLLM's weights, its workspace, its KV cache. Estimates."""

from __future__ import annotations

from dataclasses import dataclass

from da3po_cli.config.schema import RolloutConfig
from da3po_cli.planning.shape import Shape
from da3po_cli.planning.state import BYTES

_VOCAB_MULTIPLE = 64  # rows that vLLM pads the vocabulary to
_BATCHED_TOKENS = 16384  # vLLM's default of tokens per engine step in offline use, on 70 GiB or more
_CUDA_GRAPHS = 1 << 30  # allowance for captured graphs


@dataclass(frozen=True)
class EngineMemory:
    """Bytes on one rank, but `sequences`: those of full length that the KV cache holds at a time."""

    weights: int
    workspace: int
    kv_cache: int
    sequences: int


def engine_weights(shape: Shape, tensor: int, dtype: str, quantization: str | None, *, separate_head: bool) -> int:
    """Weights of a tensor-parallel rank. Key-value heads fewer than ranks are copied; FP8 is for the layers' matrices.

    Args:
        separate_head: the output layer has a copy of its own although it is tied, as in vLLM's CPU build.
    """
    width = BYTES[dtype]
    query = shape.query // tensor
    key = max(shape.kv_heads // tensor, 1) * shape.head_dim
    matrices = shape.hidden * (2 * query + 2 * key + 3 * shape.ffn // tensor)
    rows = -(-shape.vocab // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE // tensor
    tables = rows * shape.hidden * (1 if shape.tied and not separate_head else 2)
    layers = shape.layers * (matrices * (1 if quantization else width) + shape.vectors * width)
    return layers + (tables + shape.hidden) * width


def kv_bytes(shape: Shape, tensor: int, dtype: str) -> int:
    """Bytes of the KV cache per token on a rank: keys and values of every layer."""
    return 2 * shape.layers * max(shape.kv_heads // tensor, 1) * shape.head_dim * BYTES[dtype]


def gpu_engine(
    shape: Shape, rollout: RolloutConfig, dtype: str, longest: int, memory: int, reserved: int
) -> EngineMemory:
    """On a GPU of `memory` bytes: vLLM fills its share, `rollout.gpu_memory`, with KV cache.

    Args:
        reserved: bytes of the share that are the driver's and the communicators'.
    """
    width, tensor = BYTES[dtype], rollout.tensor
    weights = engine_weights(shape, tensor, dtype, rollout.quantization, separate_head=False)
    mlp = (3 * shape.ffn + shape.query + 2 * shape.key_value) // tensor + 2 * shape.hidden
    logits = 3 * 4 * rollout.max_sequences * shape.vocab  # float32: raw, processed, sampled from
    workspace = _BATCHED_TOKENS * mlp * width + logits + _CUDA_GRAPHS
    cache = max(0, int(rollout.gpu_memory * memory) - weights - workspace - reserved)
    return EngineMemory(weights, workspace, cache, cache // (kv_bytes(shape, tensor, dtype) * longest))


def cpu_engine(shape: Shape, rollout: RolloutConfig, dtype: str, longest: int) -> EngineMemory:
    """On a CPU, where the KV cache is filled with zeros at the start, and so is resident as a whole."""
    weights = engine_weights(shape, rollout.tensor, dtype, None, separate_head=True)
    space = rollout.kv_cache_gib << 30
    return EngineMemory(weights, 0, space, space // (kv_bytes(shape, rollout.tensor, dtype) * longest))
