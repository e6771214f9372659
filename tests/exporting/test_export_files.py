"""Safetensors files: sizes, plans, bytes, and what is refused. The safetensors library is the witness."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from da3po_cli.config.models import DEMO_MODEL
from da3po_cli.errors import UsageError
from da3po_cli.exporting.shards import Spec, parse_size, plan_files, read_specs, write_files


def quiet(text: str) -> None:
    """Progress that nobody reads."""


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("500mb", 5 * 10**8), ("1.5GiB", 3 * 2**29), ("20 KB", 20_000), ("7", 7), ("2K", 2000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "5 apples", "0", "0.1B", "5PB"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="is no file size") as caught:
        parse_size(text)
    assert caught.value.where == "--max-shard-size"


def test_files_are_filled_in_order() -> None:
    specs = {name: Spec(torch.bfloat16, (size,)) for name, size in zip("abcdef", (4, 1, 5, 30, 1, 2), strict=True)}
    assert plan_files(specs, 1000) == {"model.safetensors": list("abcdef")}
    assert plan_files(specs, 10) == {  # bytes: 8 + 2, 10, 60 alone, 2 + 4
        "model-00001-of-00004.safetensors": ["a", "b"],
        "model-00002-of-00004.safetensors": ["c"],
        "model-00003-of-00004.safetensors": ["d"],
        "model-00004-of-00004.safetensors": ["e", "f"],
    }


def test_a_file_is_what_the_safetensors_library_writes(tmp_path: Path) -> None:
    """Same header and same bytes for float32 tensors in the order of their names; wide dtypes first otherwise."""
    generator = torch.Generator().manual_seed(1)
    plain = {
        name: torch.randn(shape, generator=generator) for name, shape in zip("abc", ((3, 5), (7,), ()), strict=True)
    }
    specs = {name: Spec(tensor.dtype, tuple(tensor.shape)) for name, tensor in plain.items()}
    write_files(plain.items(), specs, tmp_path, 10**9, quiet)
    save_file(plain, tmp_path / "library", metadata={"format": "pt"})
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "library").read_bytes()

    mixed = {"a": torch.randn(3).bfloat16(), "b": torch.randn(2, 2), "c": torch.randn(1).half(), "d": torch.randn(5)}
    specs = {name: Spec(tensor.dtype, tuple(tensor.shape)) for name, tensor in mixed.items()}
    write_files(mixed.items(), specs, tmp_path, 10**9, quiet)
    written = load_file(tmp_path / "model.safetensors")
    assert written.keys() == mixed.keys()
    assert all(
        written[name].dtype is tensor.dtype and torch.equal(written[name], tensor) for name, tensor in mixed.items()
    )
    raw = (tmp_path / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    for name, tensor in mixed.items():
        assert header[name]["data_offsets"][0] % tensor.element_size() == 0, "aligned"


def test_a_source_whose_files_are_not_whole(tmp_path: Path) -> None:
    source = Path(shutil.copytree(DEMO_MODEL, tmp_path / "source"))
    with pytest.raises(UsageError, match=r"no model\.safetensors"):
        read_specs(tmp_path / "nothing")
    whole = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(whole[:-5])
    with pytest.raises(UsageError, match=r"cannot read model\.safetensors"):
        read_specs(source)
    save_file({"w": torch.zeros(2, dtype=torch.int8)}, source / "model.safetensors")
    with pytest.raises(UsageError, match="w has dtype I8"):
        read_specs(source)
    index = {"weight_map": {"w": "model-00001-of-00002.safetensors"}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match=r"model-00001-of-00002\.safetensors is missing"):
        read_specs(source)
    save_file({"v": torch.zeros(2)}, source / "model-00001-of-00002.safetensors")
    with pytest.raises(UsageError, match=r"index\.json and the files differ in v"):
        read_specs(source)


def test_numbers_that_float16_cannot_hold(tmp_path: Path) -> None:
    stream = [("w", torch.tensor([1.0, 70000.0]))]
    with pytest.raises(UsageError, match=r"w holds 7e\+04, more than float16 can") as caught:
        write_files(stream, {"w": Spec(torch.float16, (2,))}, tmp_path, 10**9, quiet)
    assert "--dtype bf16" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "stream",
    [
        [("b", torch.zeros(2)), ("a", torch.zeros(2))],
        [("a", torch.zeros(2))],
        [("a", torch.zeros(2)), ("b", torch.zeros(1, 2))],
    ],
    ids=["order", "end", "shape"],
)
def test_a_stream_that_differs_is_refused(tmp_path: Path, stream: list[tuple[str, torch.Tensor]]) -> None:
    specs = {name: Spec(torch.float32, (2,)) for name in "ab"}
    with pytest.raises(UsageError, match=r"where the source has (a|b) float32 \[2\]"):
        write_files(stream, specs, tmp_path, 10**9, quiet)
