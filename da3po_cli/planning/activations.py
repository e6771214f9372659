"""Memory of activations in the training pass: an estimate, per packed micro-batch of T tokens.

The count is that of Korthikanti et al. 2022 (arXiv 2205.05198, section 4) for this architecture: no dropout, fused
attention over packed sequences (nothing of size T x T), RMSNorm, grouped-query attention, SwiGLU. It counts what
backward needs, per token and layer, in elements of the model's dtype, with H, F as in `shape`, Q and K the columns of
queries and keys, t tensor-parallel ranks, s = t with sequence parallelism and else 1:

* TransformerEngine's layers on a GPU: inputs of the two norms and of the two linear layers behind them, 4H/s; the
  fused query-key-value matrix Q + 2K, queries and keys after RoPE Q + K, the attention's output Q (all /t); the input
  of SwiGLU 2F and its output F (/t). In FP8 the inputs of the four linear layers are kept in one byte.
* Megatron's local layers, on a CPU: torch's norms and SwiGLU are several operations, each with its own copy: 6H/s, and
  5F for the MLP. Attention pads neighbouring sequences: Q + 2K padded, and the output Q twice, padded and not; cosine
  and sine of RoPE 4D; with norms of queries and keys also the projection Q + 2K, a copy of its queries Q, and what is
  normed, Q + K. That is the sum of the tensors that autograd keeps, but for the padding (about a tenth of Q and K).

With full recomputation a layer keeps its input, H/s, and all of the above once, for the layer that is recomputed.
"""

from __future__ import annotations

from dataclasses import dataclass

from da3po_cli.config.schema import Fp8Config, ParallelConfig
from da3po_cli.planning.shape import Shape
from da3po_cli.planning.state import BYTES

_LOGIT_CHUNK = 1 << 24  # float32 elements that megatron_bridge.logprobs works on at a time
_LOGIT_COPIES = 3  # of such a chunk: converted, scaled, exponentials


@dataclass(frozen=True)
class Activations:
    """Bytes on one rank.

    Attributes:
        kept: for backward, of all micro-batches that are in flight.
        working: the most that comes and goes: logits with their gradient, or the backward pass of one layer.
    """

    kept: int
    working: int

    @property
    def total(self) -> int:
        return self.kept + self.working


def layer_bytes(shape: Shape, parallel: ParallelConfig, dtype: str, fp8: Fp8Config, *, fused: bool) -> float:
    """Bytes per token that one layer keeps for backward on a rank."""
    width, t = BYTES[dtype], parallel.tensor
    s = t if parallel.sequence else 1
    query, key = shape.query / t, max(shape.key_value / t, shape.head_dim)
    ffn = shape.ffn / t
    if not fused:
        norms = 3 * query + 3 * key if shape.qk_norm else 0
        attention = 3 * query + 2 * key + norms + 4 * shape.head_dim
        return width * (6 * shape.hidden / s + attention + 5 * ffn)
    attention, mlp, narrow = 2 * query + 3 * key, 2 * ffn, 2 * shape.hidden / s + query + ffn
    wide = 2 * shape.hidden / s + attention + mlp
    if fp8.format == "none":
        return width * (wide + narrow)
    return width * (wide + query) + narrow  # attention's own backward reads its output in bf16


def in_flight(parallel: ParallelConfig, stage: int) -> int:
    """Chunks of micro-batches whose activations a stage holds at a time (Narayanan et al. 2021, arXiv 2104.04473).

    1F1B: as many as there are stages from here on. Interleaved: Megatron's warm-up, and the one that is running.
    """
    remaining = parallel.pipeline - stage
    if parallel.virtual_pipeline == 1:
        return remaining
    return 2 * (remaining - 1) + (parallel.virtual_pipeline - 1) * parallel.pipeline + 1


def activations(
    shape: Shape,
    parallel: ParallelConfig,
    stage: int,
    tokens: int,
    micro_batches: int,
    dtype: str,
    fp8: Fp8Config,
    *,
    recompute: bool,
    fused: bool,
) -> Activations:
    """Of a rank of pipeline stage `stage`, for micro-batches of `tokens` tokens."""
    width, t = BYTES[dtype], parallel.tensor
    s = t if parallel.sequence else 1
    counts = parallel.stage_layers(shape.layers)
    layers = max(counts[stage :: parallel.pipeline])
    full = layer_bytes(shape, parallel, dtype, fp8, fused=fused)
    per_layer = width * shape.hidden / s if recompute else full
    flying = min(in_flight(parallel, stage), micro_batches * parallel.virtual_pipeline)
    kept = flying * layers * per_layer * tokens

    gradients = (3 if fused else 4) * shape.ffn / t + 2 * shape.hidden
    working = tokens * (width * gradients + (full if recompute else 0))
    if stage == parallel.pipeline - 1:
        columns = shape.padded_vocab(t) // t
        kept += tokens * width * (2 if fused else 3) * shape.hidden / s  # the last norm, and the input of the head
        chunk = _LOGIT_COPIES * 4 * min(tokens * columns, _LOGIT_CHUNK)
        working = max(working, tokens * columns * width * 2 + chunk)
    largest = max(shape.padded_vocab(t) * shape.hidden, 2 * shape.ffn * shape.hidden) // t
    return Activations(int(kept), int(working) + width * largest)  # and the gradient of a weight, before it is added
