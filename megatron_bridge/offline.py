"""A checkpoint's weights as Hugging Face tensors, read straight from its files.

A checkpoint is in the format of torch.distributed.checkpoint: `.metadata` lists global tensors and where their chunks
lie. Global tensors do not depend on the layout that wrote them (except for the padding of the vocabulary): a parameter
of the layers is one tensor [layers, ...], query/key/value rows are in group order, and gate and up are [gate; up]. So
this reads any layout without a model, a process group, a GPU or Megatron, one parameter of one layer at a time, and
leaves the optimizer's state where it is.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, LoadPlan, Metadata
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from da3po_cli.errors import UsageError
from megatron_bridge.families import EMBEDDING, HEAD, HF_EMBEDDING, HF_HEAD, Row
from megatron_bridge.ops import split

if TYPE_CHECKING:
    from megatron_bridge.arch import Arch

_ANOTHER_STEP = "take another step: this checkpoint is incomplete or damaged"


def hf_names(arch: Arch, include_tied_head: bool = False) -> list[str]:
    """The names that `iter_checkpoint_weights` yields, in its order, which is a function of the architecture alone."""
    names = [name for rows, layer in _parameters(arch) for name in rows[0].hf_names(layer)]
    if arch.tied and include_tied_head:
        names.insert(names.index(HF_EMBEDDING) + 1, HF_HEAD)
    return names


def iter_checkpoint_weights(
    directory: Path, arch: Arch, include_tied_head: bool = False, *, prefix: str = ""
) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, full tensor) for every weight of a checkpoint, in the dtype that the trainer holds it in.

    Tensors are on the CPU. One parameter of one layer (or the embedding) is in memory, twice while it is read.

    Args:
        directory: the checkpoint's policy/, as `Policy.save` wrote it.
        arch: of the source model.
        include_tied_head: yield `lm_head.weight` of a tied model too (the same tensor as the embedding).
        prefix: read what the optimizer keeps of each weight instead, under the weight's name: "optimizer.state.param."
            (float32 weights), "optimizer.state.exp_avg." or "optimizer.state.exp_avg_sq.".

    Raises:
        UsageError: the checkpoint is incomplete or damaged, or belongs to another model. All that shows without reading
            the tensors is raised before the first one is yielded.
    """
    reader = _Reader(directory)
    for stored in [reader.locate(rows, layer, arch, prefix) for rows, layer in _parameters(arch)]:
        tensor = reader.read(stored)
        parts = split(stored.row.op, tensor, arch.head_dim, arch.heads // arch.groups)
        yield from zip(stored.row.hf_names(stored.layer), parts, strict=True)
        if stored.row.megatron == EMBEDDING and arch.tied and include_tied_head:
            yield HF_HEAD, tensor


def _parameters(arch: Arch) -> Iterator[tuple[list[Row], int | None]]:
    """Every parameter as (rows, layer) in a fixed order: that of the family's table, layer by layer.

    There are two rows where the local and the fused layers have different names for the same Hugging Face tensors.
    """
    by_hf: dict[tuple[str, ...], list[Row]] = {}
    for row in arch.family.rows:
        if not (arch.tied and row.megatron == HEAD):
            by_hf.setdefault(row.hf, []).append(row)
    layered = [rows for rows in by_hf.values() if "*" in rows[0].megatron]
    for rows in by_hf.values():
        if rows is layered[0]:
            yield from ((one, layer) for layer in range(arch.layers) for one in layered)
        elif "*" not in rows[0].megatron:
            yield rows, None


@dataclass(frozen=True)
class _Stored:
    """One parameter of one layer in a checkpoint: what it is, and what to read from where."""

    row: Row
    layer: int | None
    block: torch.Size  # of the global tensor: [1, *shape] where the layers are stacked
    shape: torch.Size
    dtype: torch.dtype
    reads: list[ReadItem]


class _Into(DefaultLoadPlanner):
    """Directs every read to one tensor."""

    def __init__(self, target: Tensor) -> None:
        super().__init__()
        self.target = target

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self.target


class _Reader:
    """Random access to the global tensors of a checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        metadata = read_metadata(directory)
        self._files = FileSystemReader(directory)
        self._files.set_up_storage_reader(metadata, is_coordinator=True)
        self._places: dict[MetadataIndex, Any] = metadata.storage_data  # -> relative_path, offset, length
        self._tensors = {
            key: value
            for key, value in metadata.state_dict_metadata.items()
            if isinstance(value, TensorStorageMetadata)
        }
        self._sizes: dict[str, int] = {}

    def locate(self, rows: list[Row], layer: int | None, arch: Arch, prefix: str = "") -> _Stored:
        """Where a parameter is. Megatron stacks the layers under one key, or, if they differ in kind, numbers the keys.

        Raises:
            UsageError: there is no such parameter, it has another size than `arch` says, or files are not whole.
        """
        for row in rows:
            stacked = prefix + row.megatron.replace(".*.", ".")
            numbered = prefix + row.megatron.replace("*", str(layer))
            if stacked in self._tensors:
                return self._stored(row, layer, stacked, arch, index=layer)
            if numbered in self._tensors:
                return self._stored(row, layer, numbered, arch, index=None)
        raise self._foreign(f"no parameter {rows[0].megatron.replace('*', str(layer))}", arch)

    def _stored(self, row: Row, layer: int | None, key: str, arch: Arch, index: int | None) -> _Stored:
        info = self._tensors[key]
        stack = [] if index is None else [info.size[0]]
        shape = list(info.size[len(stack) :])
        if stack not in ([], [arch.layers]):
            raise self._foreign(f"{stack[0]} layers, not {arch.layers}", arch)
        wanted = shape[0]
        if row.op == "qkv":
            wanted = (arch.heads + 2 * arch.groups) * arch.head_dim
        elif row.op == "gate_up":
            wanted = 2 * arch.ffn
        elif row.megatron in (EMBEDDING, HEAD):
            wanted, shape[0] = arch.vocab, min(arch.vocab, shape[0])  # more is padding
        if shape[0] != wanted:
            raise self._foreign(f"{shape[0]} rows in {key}, not {wanted}", arch)
        first = ([] if index is None else [index]) + [0] * len(shape)
        block = ChunkStorageMetadata(torch.Size(first), torch.Size([*([] if index is None else [1]), *shape]))
        reads = create_read_items_for_chunk_list(key, info, [block])
        self._check_files(key, reads, prod(shape))
        return _Stored(row, layer, block.sizes, torch.Size(shape), info.properties.dtype, reads)

    def _foreign(self, found: str, arch: Arch) -> UsageError:
        return UsageError(
            f"the checkpoint has {found}",
            where=str(self.directory),
            hint=f"check that the run was trained from the model in {arch.path}",
        )

    def _check_files(self, key: str, reads: list[ReadItem], elements: int) -> None:
        """The chunks cover the parameter, and the files are as long as they must be."""
        covered = sum(read.lengths.numel() for read in reads)
        if covered != elements:
            raise self._damaged(f"only {covered} of {elements} elements of {key} were saved")
        for read in reads:
            place = self._places[read.storage_index]
            name, end = place.relative_path, place.offset + place.length
            if name not in self._sizes:
                file = self.directory / name
                self._sizes[name] = file.stat().st_size if file.is_file() else -1
            if self._sizes[name] < 0:
                raise self._damaged(f"{name} is missing")
            if self._sizes[name] < end:
                raise self._damaged(f"{name} has {self._sizes[name]} bytes and {key} ends at {end}")

    def _damaged(self, found: str) -> UsageError:
        return UsageError(found, where=str(self.directory), hint=_ANOTHER_STEP)

    def read(self, stored: _Stored) -> Tensor:
        """The parameter.

        Raises:
            UsageError: the file does not hold it.
        """
        block = torch.empty(stored.block, dtype=stored.dtype)
        try:
            self._files.read_data(LoadPlan(stored.reads), _Into(block)).wait()
        except (RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:  # torch.load of a damaged chunk
            name = self._places[stored.reads[0].storage_index].relative_path
            reason = str(error).splitlines()[0]
            raise self._damaged(f"cannot read {stored.row.megatron} from {name}: {reason}") from error
        return block.reshape(stored.shape)


def read_metadata(directory: Path) -> Metadata:
    """The index of a checkpoint.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    file = directory / ".metadata"
    try:
        with file.open("rb") as stream:
            metadata = _MetadataUnpickler(stream).load()
    except FileNotFoundError:
        raise UsageError("no .metadata, so no whole checkpoint", where=str(directory), hint=_ANOTHER_STEP) from None
    except (pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        raise UsageError(f"{file.name} cannot be read: {error}", where=str(directory), hint=_ANOTHER_STEP) from error
    if not isinstance(metadata, Metadata) or not metadata.storage_data:
        raise UsageError(f"{file.name} is no index of a checkpoint", where=str(directory), hint=_ANOTHER_STEP)
    return metadata


class _Inert:
    """Stands in for every class of a pickle that is not needed: takes anything, does nothing."""

    def __init__(self, *args: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


_RESOLVED = {
    "torch": {"Size", *(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
}


class _MetadataUnpickler(pickle.Unpickler):
    """`.metadata` is a pickle, and a checkpoint may come from anywhere: only a few names are resolved."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if global_name in _RESOLVED.get(module_name, ()):
            return super().find_class(module_name, global_name)
        return _Inert
