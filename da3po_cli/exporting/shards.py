"""Safetensors files, written tensor by tensor.

The format: 8 bytes with the length of the header (little endian), the header as JSON, padded with spaces to a multiple
of 8, then the tensors back to back, where the header says. Because names, shapes and dtypes are known beforehand, every
header can be written first and every tensor straight to its place, so that memory holds one tensor and not one file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from da3po_cli.errors import UsageError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True)
class Spec:
    """Dtype and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


def read_specs(directory: Path) -> dict[str, Spec]:
    """Every tensor of a Hugging Face directory, from the headers of the files that the index names.

    Raises:
        UsageError: there are no weights, a file of the index is missing or damaged, or a dtype is not a plain float.
    """
    index, single = directory / INDEX, directory / SINGLE
    if index.is_file():
        try:
            weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (ValueError, KeyError) as error:
            raise UsageError(f"cannot read {INDEX}: {error!r}", where=str(index), hint="download it again") from error
        files = sorted(set(weight_map.values()))
    elif single.is_file():
        weight_map, files = {}, [SINGLE]
    else:
        raise UsageError(f"no {SINGLE} and no {INDEX}", where=str(directory), hint="give a directory with the weights")
    specs: dict[str, Spec] = {}
    for name in files:
        specs |= _header(directory / name)
    if weight_map and weight_map.keys() != specs.keys():
        odd = sorted(weight_map.keys() ^ specs.keys())
        raise UsageError(f"{INDEX} and the files differ in {odd[0]}", where=str(directory), hint="download them again")
    return specs


def _header(file: Path) -> dict[str, Spec]:
    specs: dict[str, Spec] = {}
    try:
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a dict)
                view = tensors.get_slice(name)
                if view.get_dtype() not in _DTYPES:
                    raise UsageError(
                        f"{name} has dtype {view.get_dtype()}",
                        where=str(file),
                        hint=f"use weights in one of {', '.join(_DTYPES)}",
                    )
                specs[name] = Spec(_DTYPES[view.get_dtype()], tuple(view.get_shape()))
    except FileNotFoundError:
        raise UsageError(f"{file.name} is missing", where=str(file.parent), hint="download the model again") from None
    except (SafetensorError, OSError) as error:
        raise UsageError(f"cannot read {file.name}: {error}", where=str(file), hint="download it again") from error
    return specs


def parse_size(text: str) -> int:
    """Bytes of `5GB`, `500MB`, `1.5GiB` (the unit with i counts in 1024s, as in transformers).

    Raises:
        UsageError: not such a size, or 0.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", text.strip().upper())
    size = int(float(found[1]) * (1024 if found[3] else 1000) ** _UNITS[found[2]]) if found else 0
    if size < 1:
        raise UsageError(f"{text!r} is no file size", where="--max-shard-size", hint="such as 5GB, 500MB or 2GiB")
    return size


def size_text(nbytes: int) -> str:
    """Bytes for a reader: `1.6 MB`, `8.04 GB`."""
    unit, factor = ("GB", 1e9) if nbytes >= 1e9 else ("MB", 1e6)
    return f"{nbytes / factor:.3g} {unit}"


def plan_files(specs: Mapping[str, Spec], max_bytes: int) -> dict[str, list[str]]:
    """File name -> tensors, in the order of `specs`; a file exceeds `max_bytes` only with a single tensor that does."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, spec in specs.items():
        if groups[-1] and size + spec.nbytes > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += spec.nbytes
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    return {f"model-{i:05d}-of-{len(groups):05d}.safetensors": names for i, names in enumerate(groups, 1)}


def write_files(
    weights: Iterable[tuple[str, Tensor]],
    specs: Mapping[str, Spec],
    directory: Path,
    max_bytes: int,
    say: Callable[[str], None],
) -> list[str]:
    """Write a stream of tensors to files below `max_bytes` each and, where there are several, their index.

    Args:
        weights: CPU tensors in the order of `specs`, converted here to the dtypes there.
        say: is told of each file.

    Returns:
        The names of the files with weights.

    Raises:
        UsageError: the stream differs from `specs` in names, order or shapes; a number does not fit into its dtype.
    """
    stream = iter(weights)
    files = plan_files(specs, max_bytes)
    for file, names in files.items():
        wanted = {name: specs[name] for name in names}
        with _safetensors(directory / file, wanted) as put:
            for name in names:
                found, tensor = next(stream, ("nothing", torch.empty(0)))
                if found != name or tuple(tensor.shape) != specs[name].shape:
                    raise UsageError(
                        f"the checkpoint gives {found} {list(tensor.shape)} where the source has {name} {specs[name]}",
                        hint="check that the run was trained from this source model",
                    )
                put(name, _convert(name, tensor, specs[name].dtype))
        say(f"wrote {file} ({size_text(sum(spec.nbytes for spec in wanted.values()))})")
    if len(files) > 1:
        weight_map = {name: file for file, names in files.items() for name in names}
        total = {"total_size": sum(spec.nbytes for spec in specs.values())}
        text = json.dumps({"metadata": total, "weight_map": dict(sorted(weight_map.items()))}, indent=2)
        (directory / INDEX).write_text(text + "\n", encoding="utf-8")
    return list(files)


def _convert(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    out = tensor.to(dtype).contiguous()
    if dtype is torch.float16 and out.isinf().any() and not tensor.isinf().any():
        raise UsageError(
            f"{name} holds {float(tensor.abs().max()):.3g}, more than float16 can",
            where="--dtype",
            hint="--dtype bf16 or --dtype fp32",
        )
    return out


@contextmanager
def _safetensors(file: Path, specs: Mapping[str, Spec]) -> Iterator[Callable[[str, Tensor], None]]:
    """A file with the header of `specs`; the function that it gives puts one tensor into its place."""
    # Wide dtypes first keeps every tensor aligned, as in files of the safetensors library.
    order = sorted(specs, key=lambda name: -specs[name].dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    starts: dict[str, int] = {}
    end = 0
    for name in order:
        spec, starts[name] = specs[name], end
        end += spec.nbytes
        header[name] = {"dtype": _NAMES[spec.dtype], "shape": spec.shape, "data_offsets": (starts[name], end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)

        def put(name: str, tensor: Tensor) -> None:
            out.seek(8 + len(text) + starts[name])
            out.write(tensor.view(-1).view(torch.uint8).numpy().data)

        yield put
        out.flush()
        os.fsync(out.fileno())
