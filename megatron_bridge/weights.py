"""Weights between Hugging Face files and Megatron shards.

Loading reads of every tensor only the slice that this rank needs. Export streams full tensors in Hugging Face's names
and layout, one at a time, the same sequence on every rank: an all-gather over the tensor-parallel ranks of the stage
that owns the tensor, then a broadcast over the pipeline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, Parameter

from da3po_cli.errors import UsageError
from megatron_bridge.arch import Arch
from megatron_bridge.families import EMBEDDING, HEAD, HF_EMBEDDING, HF_HEAD, Row
from megatron_bridge.ops import merge, shard, split, unshard
from megatron_bridge.parallel import Parallel

_IGNORED = (".rotary_emb.inv_freq",)  # buffers that old checkpoints carry; they follow from the config


@dataclass(frozen=True)
class Bound:
    """One parameter of this rank, with its row and its layer number in the whole model."""

    param: Parameter
    row: Row
    layer: int | None

    @property
    def hf(self) -> tuple[str, ...]:
        return self.row.hf_names(self.layer)

    @property
    def axis(self) -> int | None:
        """The axis cut by tensor parallelism; None is replicated."""
        parallel = getattr(self.param, "tensor_model_parallel", False)
        return int(self.param.partition_dim) if parallel else None  # type: ignore[attr-defined]

    @property
    def stride(self) -> int:
        """Blocks per rank along `axis`: gate and up are cut each."""
        return 2 if self.row.op == "gate_up" else 1

    @property
    def vocabulary(self) -> bool:
        """Whether the rows are vocabulary entries, of which Megatron holds some more than there are."""
        return self.row.megatron in (EMBEDDING, HEAD)


def bind(chunks: Sequence[Module], arch: Arch) -> list[Bound]:
    """The parameters of this rank's model chunks, in model order, each with its row.

    Raises:
        KeyError: a parameter that the family's table does not know (a bug of the table).
    """
    bound = []
    for chunk in chunks:
        model: Any = chunk
        while hasattr(model, "module"):  # DDP and Float16Module
            model = model.module
        layers = model.decoder.layers
        before = layers[0].layer_number - 1 if layers else 0  # Megatron counts layers of the whole model from 1
        for name, param in model.named_parameters():
            row, layer = arch.family.row(name)
            bound.append(Bound(param, row, None if layer is None else layer + before))
    return bound


class HFFiles:
    """The safetensors files of a Hugging Face directory, single or sharded, opened when first read.

    As transformers does, of an index whose files are not there and a model.safetensors it reads the latter.

    Raises:
        UsageError: there are none, the index names a file that does not exist, or there are two sets of weights.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = ExitStack()
        self._open: dict[str, Any] = {}
        index, single = directory / "model.safetensors.index.json", directory / "model.safetensors"
        named: dict[str, str] = {}
        if index.is_file():
            named = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        there = [name for name in sorted(set(named.values())) if (directory / name).is_file()]
        if single.is_file() and there and single.name not in there:
            raise UsageError(
                f"{directory} has two sets of weights: {single.name}, and {there[0]} by its index",
                where=str(directory),
                hint=f"remove the older one: {single.name}, or {index.name} and its files",
            )
        if named and (there or not single.is_file()):
            self.files: dict[str, str] = named
            absent = sorted(set(named.values()) - set(there))
            if absent:
                raise UsageError(
                    f"the index names {absent[0]}, which is not there", hint="download it again", where=str(index)
                )
        elif single.is_file():
            self.files = dict.fromkeys(self._file(single.name).keys(), single.name)
        else:
            raise UsageError(
                f"no model.safetensors or model.safetensors.index.json in {directory}",
                hint="set model.path to a Hugging Face directory with safetensors weights",
            )

    def __enter__(self) -> HFFiles:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _file(self, name: str) -> Any:
        from safetensors import SafetensorError, safe_open

        if name not in self._open:
            try:
                handle = safe_open(str(self.directory / name), framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise UsageError(
                    f"cannot read {name}: {error}", where=str(self.directory / name), hint="download it again"
                ) from error
            self._open[name] = self._stack.enter_context(handle)
        return self._open[name]

    def shape(self, name: str) -> list[int]:
        """Shape of a tensor, without reading it."""
        return self._file(self.files[name]).get_slice(name).get_shape()

    def read(self, name: str, axis: int | None, rank: int, size: int, length: int | None = None) -> Tensor:
        """Part `rank` of `size` along `axis` (the whole tensor for None).

        Args:
            length: rows per part, when it is not an even share: the last parts then come out short or empty.
        """
        view = self._file(self.files[name]).get_slice(name)
        if axis is None:
            return view[:]
        total = view.get_shape()[axis]
        part = total // size if length is None else length
        cut = slice(min(rank * part, total), min((rank + 1) * part, total))
        return view[cut] if axis == 0 else view[:, cut]


def check_names(found: set[str], arch: Arch) -> None:
    """The checkpoint has exactly the tensors of the architecture (a tied model may carry its head).

    Raises:
        UsageError: names tensors that are missing or unexpected.
    """
    wanted = {
        name
        for row in arch.family.rows
        for layer in (range(arch.layers) if "*" in row.megatron else [None])
        for name in row.hf_names(layer)
    }
    if arch.tied:
        wanted.discard(HF_HEAD)
    missing = sorted(wanted - found)
    surplus = sorted(
        name for name in found - wanted if not name.endswith(_IGNORED) and not (arch.tied and name == HF_HEAD)
    )
    for kind, names in (("lacks", missing), ("has unexpected", surplus)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UsageError(
                f"the checkpoint {kind} {', '.join(names[:3])}{more}",
                hint="check that config.json belongs to these weights (architecture, layers, tie_word_embeddings)",
                where=str(arch.path),
            )


@torch.no_grad()
def load_hf(chunks: Sequence[Module], arch: Arch, parallel: Parallel) -> None:
    """Fill this rank's parameters from the Hugging Face directory of `arch`, in the parameters' own dtype.

    Raises:
        UsageError: a tensor is missing, unexpected, or has another shape than the config says.
    """
    with HFFiles(arch.path) as files:
        check_names(set(files.files), arch)
        for bound in bind(chunks, arch):
            names = bound.hf
            if arch.tied and bound.row.megatron == HEAD:  # the last pipeline stage's copy of the embedding
                names = arch.family.row(EMBEDDING)[0].hf
            if bound.vocabulary:
                _check_rows(files, names[0], arch)
            value = _read(files, names, bound, arch, parallel)
            if value.shape != bound.param.shape:
                raise UsageError(
                    f"{' + '.join(names)} gives shape {list(value.shape)}, the config says {list(bound.param.shape)}",
                    hint="check that config.json belongs to these weights",
                    where=str(arch.path),
                )
            bound.param.copy_(value)
            _set_origin(bound.param, value)


def _set_origin(param: Tensor, value: Tensor) -> None:
    """What an FP8 parameter was made from, which TransformerEngine keeps and Megatron takes the main parameter from.

    `copy_` does not change it. Other parameters have none, and a model has none after its optimizer was built.
    """
    origin: Any = getattr(param, "get_high_precision_init_val", lambda: None)()
    if origin is not None:
        origin.copy_(value)


def _read(files: HFFiles, names: Sequence[str], bound: Bound, arch: Arch, parallel: Parallel) -> Tensor:
    """This rank's value of a parameter; vocabulary padding is 0."""
    rank, size = parallel.tensor_rank, parallel.tensor_size
    if bound.row.op == "qkv" and arch.groups < size:  # a group's heads are cut: only the merged rows can be
        merged = merge("qkv", [files.read(name, None, 0, 1) for name in names], arch.head_dim)
        return shard(merged, dim=0, stride=1, rank=rank, size=size)
    rows = bound.param.shape[0] if bound.vocabulary else None
    value = merge(bound.row.op, [files.read(name, bound.axis, rank, size, rows) for name in names], arch.head_dim)
    if rows is None or len(value) == rows:
        return value
    return torch.cat([value, value.new_zeros(rows - len(value), *value.shape[1:])])


def _check_rows(files: HFFiles, name: str, arch: Arch) -> None:
    rows = files.shape(name)[0]
    if rows != arch.vocab:
        raise UsageError(
            f"{name} has {rows} rows, config.json says vocab_size={arch.vocab}",
            hint="check that config.json belongs to these weights",
            where=str(arch.path),
        )


@dataclass(frozen=True)
class _Piece:
    """What every rank of a pipeline knows of one parameter: its owner and the full Hugging Face tensors it gives."""

    stage: int
    index: int  # among the owner's bound parameters
    tensors: tuple[tuple[str, tuple[int, ...]], ...]  # (name, full shape)


class Exporter:
    """Streams the weights of a sharded model. Making one is collective over the pipeline.

    Args:
        plain: a parameter's weights as numbers of the model's dtype, however the backend stores them.
    """

    def __init__(
        self,
        chunks: Sequence[Module],
        arch: Arch,
        parallel: Parallel,
        plain: Callable[[Tensor], Tensor] = Tensor.detach,
    ) -> None:
        self.arch, self.parallel, self.plain = arch, parallel, plain
        self.bound = bind(chunks, arch)
        mine = [
            _Piece(parallel.pipeline_rank, index, tuple(zip(bound.hf, self._full_shapes(bound), strict=True)))
            for index, bound in enumerate(self.bound)
            if not (arch.tied and bound.row.megatron == HEAD)
        ]
        self.plan = mine
        if parallel.pipeline_size > 1:
            stages: list[list[_Piece]] = [[]] * parallel.pipeline_size
            dist.all_gather_object(stages, mine, group=parallel.pipeline_group)
            self.plan = [piece for pieces in stages for piece in pieces]

    def _parts(self, bound: Bound, full: Tensor) -> list[Tensor]:
        return split(bound.row.op, full, self.arch.head_dim, self.arch.heads // self.arch.groups)

    def _full_shapes(self, bound: Bound) -> list[tuple[int, ...]]:
        shape = list(bound.param.shape)
        if bound.axis is not None:
            shape[bound.axis] *= self.parallel.tensor_size
        if bound.vocabulary:
            shape[0] = self.arch.vocab
        return [tuple(part.shape) for part in self._parts(bound, torch.empty(shape, device="meta"))]

    @torch.no_grad()
    def tensors(
        self, include_tied_head: bool = True, values: Callable[[Parameter], Tensor] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, full tensor) for every weight, on every rank; all ranks must consume it in step.

        Tensors are on the rank's device in the model's dtype. They may be views of the live weights: use or copy them
        before the next one is drawn.

        Args:
            include_tied_head: yield `lm_head.weight` of a tied model too (the same tensor as the embedding). Inference
                engines that keep their own copy of the head need it; a Hugging Face checkpoint must not have it.
            values: what to stream of a parameter, a tensor of its shape; the weights by default.
        """
        values = values or self.plain
        sample = values(self.bound[0].param)
        for piece in self.plan:
            parts: list[Tensor] | None = None
            if piece.stage == self.parallel.pipeline_rank:
                bound = self.bound[piece.index]
                full = self._gather(values(bound.param), bound)
                parts = self._parts(bound, full[: self.arch.vocab] if bound.vocabulary else full)
            for position, (name, shape) in enumerate(piece.tensors):
                tensor = parts[position] if parts is not None else sample.new_empty(shape)
                if self.parallel.pipeline_size > 1:
                    tensor = tensor.contiguous()
                    source = self.parallel.pipeline_ranks[piece.stage]
                    dist.broadcast(tensor, src=source, group=self.parallel.pipeline_group)
                yield name, tensor
                if include_tied_head and self.arch.tied and name == HF_EMBEDDING:
                    yield HF_HEAD, tensor

    def _gather(self, mine: Tensor, bound: Bound) -> Tensor:
        """The full Megatron parameter from the shards of all tensor-parallel ranks."""
        if bound.axis is None or self.parallel.tensor_size == 1:
            return mine
        mine = mine.contiguous()
        shards = [torch.empty_like(mine) for _ in range(self.parallel.tensor_size)]
        dist.all_gather(shards, mine, group=self.parallel.tensor_group)
        return unshard(shards, bound.axis, bound.stride)
