"""A checkpoint of a run as a Hugging Face directory, checked against the source before it says done.

Streams: no model, no process group, no GPU; memory holds one parameter of one layer at a time.
"""

from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from da3po_cli.config.schema import Config
from da3po_cli.errors import Da3poError, EnvironmentProblem, UsageError
from da3po_cli.exporting.model_card import Facts, model_card
from da3po_cli.exporting.shards import Spec, read_specs, size_text, write_files
from da3po_cli.launching.models import local_model
from da3po_cli.runs.locate import Checkpoint
from da3po_cli.runs.metrics import read_metrics
from megatron_bridge.arch import read_arch
from megatron_bridge.families import HF_HEAD
from megatron_bridge.offline import hf_names, iter_checkpoint_weights

if TYPE_CHECKING:
    from da3po_cli.exporting.verify import Verification

DType = Literal["source", "bf16", "fp32"]
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# Taken over from the source as they are: how to generate, every form of tokenizer and chat template, and the licence.
_COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "tekken.json",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "LICENSE*",
    "NOTICE*",
)
_DERIVED = ".rotary_emb.inv_freq"  # buffers that old checkpoints carry; they follow from the config


@dataclass(frozen=True)
class Exported:
    """What was written."""

    tensors: int
    parameters: int
    nbytes: int  # of the tensors
    files: list[str]  # with weights
    seconds: float  # without verification
    verification: Verification | None


def export(
    config: Config,
    checkpoint: Checkpoint,
    out: Path,
    *,
    dtype: DType = "source",
    max_shard_bytes: int = 5 * 10**9,
    verify: bool = False,
    say: Callable[[str], None],
) -> Exported:
    """Write `checkpoint` to the new directory `out`, with the names and shapes of the source model.

    The bytes depend on the weights, the source and the arguments, not on the layout that wrote the checkpoint.

    Args:
        config: of the run.
        dtype: of every tensor; `source` is that of each in the source.
        max_shard_bytes: size of a file; a larger tensor has a file of its own.
        verify: compare with the trainer's policy, see export_verify.py. Builds the model twice.
        say: progress.

    Raises:
        UsageError: `out` exists, the source is gone, or the checkpoint is damaged or of another model.
        EnvironmentProblem: the disk is full.
        GateError: `verify` found a difference.
    """
    if out.exists():
        raise UsageError(f"{out} exists", where="OUT", hint="give a new directory, or remove it")
    source = _source(config, checkpoint)
    start = time.perf_counter()
    found = {name: spec for name, spec in read_specs(source).items() if not name.endswith(_DERIVED)}
    arch = read_arch(source)
    tied_head = arch.tied and HF_HEAD in found  # a tied source may store its head as well
    specs = _wanted(found, hf_names(arch, tied_head), source, dtype)
    with _new_directory(out, sum(spec.nbytes for spec in specs.values()), say) as partial:
        weights = iter_checkpoint_weights(checkpoint.policy, arch, tied_head)
        files = write_files(weights, specs, partial, max_shard_bytes, say)
        _write_config(source, partial, dtype)
        _copy(source, partial)
        parameters = sum(spec.elements for name, spec in specs.items() if not (arch.tied and name == HF_HEAD))
        facts = _facts(checkpoint, _dtype_names(specs), _architecture(source), parameters)
        (partial / "README.md").write_text(model_card(config, facts), encoding="utf-8")
        compare(specs, read_specs(partial), source)
        seconds, verification = time.perf_counter() - start, None
        if verify:
            from da3po_cli.exporting.verify import verify as check

            verification = check(config, checkpoint.policy, source, partial, say)
    nbytes = sum(spec.nbytes for spec in specs.values())
    return Exported(len(specs), parameters, nbytes, files, seconds, verification)


def _source(config: Config, checkpoint: Checkpoint) -> Path:
    """The directory of the model that the run was trained from."""
    try:
        return local_model(config.model.path)
    except Da3poError as error:
        raise type(error)(
            f"the source model of the run is gone: {error.message}",
            where=f"{checkpoint.run.config_file} model.path",
            hint="its config and tokenizer are needed: put it back there, or set model.path in that file to its place",
        ) from error


def _wanted(found: Mapping[str, Spec], names: list[str], source: Path, dtype: DType) -> dict[str, Spec]:
    """What to write, in the order of `names`.

    Raises:
        UsageError: the source's weights are not those of its config.json.
    """
    if found.keys() != set(names):
        odd = sorted(found.keys() ^ set(names))
        lacks = "lacks" if odd[0] in names else "has unexpected"
        more = f" and {len(odd) - 1} more tensor(s)" if len(odd) > 1 else ""
        raise UsageError(
            f"the source model {lacks} {odd[0]}{more}",
            where=str(source),
            hint="check that config.json belongs to these weights (architecture, layers, tie_word_embeddings)",
        )
    return {name: Spec(_DTYPES.get(dtype, found[name].dtype), found[name].shape) for name in names}


def compare(wanted: Mapping[str, Spec], written: Mapping[str, Spec], source: Path) -> None:
    """The files hold the tensors of the source: names, shapes, dtypes, and so the number of parameters.

    Raises:
        UsageError: lists up to three tensors that differ.
    """
    names = sorted(name for name in wanted.keys() | written.keys() if wanted.get(name) != written.get(name))
    if names:
        shown = "; ".join(f"{name}: {wanted.get(name)} -> {written.get(name)}" for name in names[:3])
        raise UsageError(
            f"the export differs from {source} in {len(names)} tensor(s): {shown}", hint="report this as a bug"
        )


@contextmanager
def _new_directory(out: Path, nbytes: int, say: Callable[[str], None]) -> Iterator[Path]:
    """OUT.partial, renamed to OUT at the end; after any failure there is neither.

    Raises:
        EnvironmentProblem: `nbytes` do not fit on the disk, or it ran full.
    """
    partial = out.with_name(out.name + ".partial")
    if partial.exists():
        say(f"removing {partial}, which an interrupted export left")
        shutil.rmtree(partial)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"cannot make {partial}: {error.strerror}", where="OUT", hint="give another OUT") from error
    try:
        free = shutil.disk_usage(partial).free
        if free < nbytes:
            raise _disk_full(out, f"{size_text(nbytes)} to write and {size_text(free)} free")
        yield partial
        partial.rename(out)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(out, str(error)) from error
        raise
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _disk_full(out: Path, reason: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"the disk of {out} is full: {reason}",
        where="OUT",
        hint="free space, give OUT on another disk, or --dtype bf16",
    )


def _write_config(source: Path, out: Path, dtype: DType) -> None:
    """config.json as it is but for its dtype, under the source's key: `torch_dtype` before transformers 5."""
    file = source / "config.json"
    if dtype == "source":
        shutil.copyfile(file, out / file.name)
        return
    raw = json.loads(file.read_text(encoding="utf-8"))
    keys = [key for key in ("dtype", "torch_dtype") if key in raw] or ["dtype"]
    raw |= dict.fromkeys(keys, str(_DTYPES[dtype]).removeprefix("torch."))
    (out / file.name).write_text(json.dumps(raw, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _copy(source: Path, out: Path) -> None:
    for pattern in _COPIED:
        for file in source.glob(pattern):
            if file.is_file():
                target = out / file.relative_to(source)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, target)


def _architecture(source: Path) -> str:
    return json.loads((source / "config.json").read_text(encoding="utf-8"))["architectures"][0]


def _dtype_names(specs: Mapping[str, Spec]) -> str:
    """The dtypes of the tensors, such as `bfloat16`."""
    return ", ".join(sorted({str(spec.dtype).removeprefix("torch.") for spec in specs.values()}))


def _facts(checkpoint: Checkpoint, dtype: str, architecture: str, parameters: int) -> Facts:
    file = checkpoint.run.metrics_file
    records = read_metrics(file) if file.is_file() else []
    of_step = [record for record in records if record["step"] == checkpoint.step]
    return Facts(
        run=checkpoint.run.name,
        step=checkpoint.step,
        architecture=architecture,
        parameters=parameters,
        dtype=dtype,
        metrics=of_step[-1] if of_step else {},
        versions=checkpoint.run.read().get("versions", {}),
    )
