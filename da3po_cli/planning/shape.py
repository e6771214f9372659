"""Parameters of a model, counted from the numbers of its config.json: in all, and on each rank of a layout.

Names of dimensions: H hidden, F feed-forward, D head size, N query heads, G key-value heads, V vocabulary, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from da3po_cli.config.models import ModelFacts
from da3po_cli.config.schema import ParallelConfig
from da3po_cli.errors import UsageError

VOCAB_MULTIPLE = 16  # rows per tensor-parallel rank, as in megatron_bridge.arch (which needs torch)


@dataclass(frozen=True)
class Shape:
    """A dense decoder with grouped-query attention and SwiGLU."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    qkv_bias: bool
    qk_norm: bool

    @property
    def query(self) -> int:
        """Columns of all query heads, N x D."""
        return self.heads * self.head_dim

    @property
    def key_value(self) -> int:
        """Columns of all keys, and of all values, G x D."""
        return self.kv_heads * self.head_dim

    @property
    def matrices(self) -> int:
        """Elements of the matrices of one layer: query, key, value, output, gate, up and down projections."""
        return self.hidden * (2 * self.query + 2 * self.key_value + 3 * self.ffn)

    @property
    def vectors(self) -> int:
        """Elements of the norms and biases of one layer."""
        bias = self.query + 2 * self.key_value if self.qkv_bias else 0
        return 2 * self.hidden + bias + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def parameters(self) -> int:
        """All parameters of the Hugging Face checkpoint; a tied output layer counts once."""
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * (self.matrices + self.vectors) + self.hidden + embeddings

    @property
    def largest_tensor(self) -> int:
        """Elements of the largest tensor that is gathered at a time in resharding: the embedding, or gate and up."""
        qkv = (self.query + 2 * self.key_value) * self.hidden
        return max(self.vocab * self.hidden, 2 * self.ffn * self.hidden, qkv)

    def padded_vocab(self, tensor: int) -> int:
        """Rows of the embedding in Megatron over all tensor-parallel ranks."""
        multiple = VOCAB_MULTIPLE * tensor
        return -(-self.vocab // multiple) * multiple


def shape_of(facts: ModelFacts) -> Shape:
    """The shape of a model.

    Raises:
        UsageError: config.json lacks the hidden size or the vocabulary size.
    """
    for key, value in (("hidden_size", facts.hidden), ("vocab_size", facts.vocab), ("head_dim", facts.head_dim)):
        if value is None:
            raise UsageError(
                f"config.json gives no {key}, and the memory of a run follows from it",
                where=str(facts.directory or "model.path"),
                hint="download the checkpoint again",
            )
    return Shape(
        layers=facts.layers,
        hidden=facts.hidden or 0,
        ffn=facts.intermediate,
        heads=facts.heads,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim or 0,
        vocab=facts.vocab or 0,
        tied=facts.tied,
        qkv_bias=facts.architecture == "Qwen2ForCausalLM",
        qk_norm=facts.architecture == "Qwen3ForCausalLM",
    )


@dataclass(frozen=True)
class Parameter:
    """One Megatron parameter on a rank.

    Attributes:
        size: elements of this rank's shard.
        matrix: it is the weight of a linear layer, which FP8 training computes in FP8.
        layer: number in the model; None outside the layers.
        shared: the embedding of a tied model in a pipeline, which the first and the last stage both hold.
    """

    size: int
    matrix: bool = False
    layer: int | None = None
    shared: bool = False


def rank_parameters(shape: Shape, parallel: ParallelConfig, stage: int, *, fused: bool) -> list[list[Parameter]]:
    """The parameters of the ranks of a pipeline stage, by model chunk, in Megatron's order of registration.

    The order decides which data-parallel rank holds what of the optimizer, nothing else.

    Args:
        stage: pipeline rank.
        fused: TransformerEngine's layers, whose norms are part of the linear layers after them, and come in another
            place than in Megatron's own.
    """
    counts = parallel.stage_layers(shape.layers)
    chunks: list[list[Parameter]] = []
    for chunk in range(stage, len(counts), parallel.pipeline):
        first = sum(counts[:chunk])
        found: list[Parameter] = []
        rows = shape.padded_vocab(parallel.tensor) // parallel.tensor
        table = Parameter(rows * shape.hidden, shared=shape.tied and len(counts) > 1)
        if chunk == 0:
            found.append(table)
        for layer in range(first, first + counts[chunk]):
            found += _layer(shape, parallel.tensor, layer, fused)
        if chunk == len(counts) - 1:
            found.append(Parameter(shape.hidden))
            if not shape.tied or len(counts) > 1:
                found.append(table)
        chunks.append(found)
    return chunks


def _layer(shape: Shape, tensor: int, layer: int, fused: bool) -> list[Parameter]:
    """One layer's parameters on a tensor-parallel rank. Key-value heads fewer than ranks are cut, not copied."""
    hidden = shape.hidden
    qkv = (shape.query + 2 * shape.key_value) // tensor
    norm = Parameter(hidden, layer=layer)
    proj = Parameter(hidden * shape.query // tensor, matrix=True, layer=layer)
    attention = [Parameter(qkv * hidden, matrix=True, layer=layer)]
    attention += [Parameter(qkv, layer=layer)] if shape.qkv_bias else []
    attention += [Parameter(shape.head_dim, layer=layer)] * 2 if shape.qk_norm else []
    mlp = [
        Parameter(2 * shape.ffn * hidden // tensor, matrix=True, layer=layer),
        Parameter(hidden * shape.ffn // tensor, matrix=True, layer=layer),
    ]
    return [proj, norm, *attention, norm, *mlp] if fused else [norm, proj, *attention, norm, *mlp]
