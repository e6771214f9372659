"""A checkpoint of a run as a Hugging Face directory, checked against the source before it says done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from da3po_cli.config.schema import Config
from da3po_cli.errors import UsageError
from da3po_cli.runtime.checkpoint import checkpoint_path
from da3po_cli.runtime.models import local_model

# Beside the weights, a Hugging Face directory is taken over as it is: config, generation config, tokenizer, template.
_COPIED = ("*.json", "*.jinja", "*.txt", "*.model")
_WEIGHT_INDEX = "model.safetensors.index.json"


def export(config: Config, run_dir: Path, out: Path, step: int | None, max_shard_bytes: int = 5 * 10**9) -> int:
    """Write checkpoint `step` (None: the latest) of `run_dir` to `out`; returns the step.

    Weights get the dtype, names and shapes of the source checkpoint, so `out` is a drop-in replacement for it.

    Raises:
        UsageError: `out` exists, there is no such checkpoint, or the result differs from the source in names or shapes.
    """
    from megatron_bridge import build_policy
    from megatron_bridge.parallel import initialize

    if out.exists():
        raise UsageError(f"{out} exists", where="OUT", hint="give a new directory, or remove it")
    step, checkpoint = checkpoint_path(run_dir / "checkpoints", step)
    source = local_model(config.model.path)
    parallel = initialize(1, 1, config.run.seed)
    try:
        policy = build_policy(
            source,
            dtype=config.model.dtype,
            parallel=parallel,
            train=config.train,
            temperature=1.0,
            seed=config.run.seed,
        )
        policy.load(checkpoint / "policy")
        layout = source_layout(source)
        partial = out.with_name(out.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        written = write_shards(policy.iter_hf_weights(include_tied_head=False), layout, partial, max_shard_bytes)
    finally:
        parallel.shutdown()
    compare(layout, written, source)
    for pattern in _COPIED:
        for file in source.glob(pattern):
            if file.name != _WEIGHT_INDEX:
                shutil.copy2(file, partial)
    partial.rename(out)
    return step


def source_layout(source: Path) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Dtype and shape of every tensor of a Hugging Face directory, read from the headers."""
    layout: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for file in sorted(source.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a dict)
                view = tensors.get_slice(name)
                layout[name] = (getattr(torch, _DTYPES[view.get_dtype()]), tuple(view.get_shape()))
    return layout


_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def write_shards(
    weights: Iterable[tuple[str, torch.Tensor]],
    layout: dict[str, tuple[torch.dtype, tuple[int, ...]]],
    out: Path,
    max_bytes: int,
) -> dict[str, tuple[int, ...]]:
    """Stream `weights` into safetensors files of at most `max_bytes`; returns the shapes written."""
    shards: list[list[str]] = []
    shapes: dict[str, tuple[int, ...]] = {}
    pending: dict[str, torch.Tensor] = {}
    size = total = 0

    def flush() -> None:
        save_file(pending, str(out / f"part-{len(shards)}"), metadata={"format": "pt"})
        shards.append(list(pending))
        pending.clear()

    for name, tensor in weights:
        dtype = layout[name][0] if name in layout else tensor.dtype
        copy = tensor.detach().to("cpu", dtype, copy=True).contiguous()
        if pending and size + copy.nbytes > max_bytes:
            flush()
            size = 0
        pending[name] = copy
        shapes[name] = tuple(copy.shape)
        size += copy.nbytes
        total += copy.nbytes
    flush()
    if len(shards) == 1:
        (out / "part-0").rename(out / "model.safetensors")
        return shapes
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (out / f"part-{number}").rename(out / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (out / _WEIGHT_INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
    return shapes


def compare(
    layout: dict[str, tuple[torch.dtype, tuple[int, ...]]], written: dict[str, tuple[int, ...]], source: Path
) -> None:
    """The exported tensors are those of the source, by name and shape.

    Raises:
        UsageError: lists up to three tensors that differ.
    """
    wanted = {name: shape for name, (_, shape) in layout.items()}
    if written == wanted:
        return
    if set(wanted) - set(written) == {"lm_head.weight"}:  # the source stored the alias of a tied head
        return
    names = sorted(name for name in wanted.keys() | written.keys() if wanted.get(name) != written.get(name))
    shown = ", ".join(f"{name}: {wanted.get(name)} -> {written.get(name)}" for name in names[:3])
    raise UsageError(
        f"the export differs from {source} in {len(names)} tensor(s): {shown}", hint="report this as a bug"
    )
