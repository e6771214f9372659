"""Checkpoints written by hand with torch alone, in the documented layout: what is read, refused and never run."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from da3po_cli.errors import UsageError
from megatron_bridge.arch import read_arch
from megatron_bridge.offline import hf_names, iter_checkpoint_weights

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # dcp.save without a group, on purpose
HERE = Path(__file__).parent


def source_tensors(directory: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in directory.glob("*.safetensors"):
        found |= load_file(file)
    return found


def by_hand(arch: Any, source: dict[str, torch.Tensor], *, numbered: bool = False, pad: int = 3) -> dict[str, Any]:
    """The global tensors of a checkpoint, from the definition: stacked layers, rows by query group, [gate; up]."""
    layers: dict[str, list[torch.Tensor]] = {}
    for layer in range(arch.layers):
        get = {key.removeprefix(f"model.layers.{layer}."): tensor for key, tensor in source.items()}
        per, d = arch.heads // arch.groups, arch.head_dim
        heads = []
        for group in range(arch.groups):
            heads += [
                get["self_attn.q_proj.weight"][(group * per + i) * d : (group * per + i + 1) * d] for i in range(per)
            ]
            heads += [get[f"self_attn.{p}_proj.weight"][group * d : (group + 1) * d] for p in "kv"]
        entries = {
            "self_attention.linear_qkv.layer_norm_weight": get["input_layernorm.weight"],
            "self_attention.linear_qkv.weight": torch.cat(heads),
            "self_attention.linear_proj.weight": get["self_attn.o_proj.weight"],
            "mlp.linear_fc1.layer_norm_weight": get["post_attention_layernorm.weight"],
            "mlp.linear_fc1.weight": torch.cat([get["mlp.gate_proj.weight"], get["mlp.up_proj.weight"]]),
            "mlp.linear_fc2.weight": get["mlp.down_proj.weight"],
        }
        if arch.family.qk_norm:
            for p in "qk":
                entries[f"self_attention.{p}_layernorm.weight"] = get[f"self_attn.{p}_norm.weight"]
        for key, tensor in entries.items():
            layers.setdefault(key, []).append(tensor)
    state: dict[str, Any] = {}
    for key, tensors in layers.items():
        if numbered:
            state |= {f"decoder.layers.{layer}.{key}": tensor for layer, tensor in enumerate(tensors)}
        else:
            state[f"decoder.layers.{key}"] = torch.stack(tensors)
    padding = torch.full((pad, arch.hidden), 9.0)
    state["embedding.word_embeddings.weight"] = torch.cat([source["model.embed_tokens.weight"], padding])
    state["decoder.final_layernorm.weight"] = source["model.norm.weight"]
    if not arch.tied:
        state["output_layer.weight"] = torch.cat([source["lm_head.weight"], padding])
    return state


def write(directory: Path, state: dict[str, Any]) -> Path:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(directory), no_dist=True)
    return directory


@pytest.fixture
def llama(models: Path, tmp_path: Path) -> tuple[Path, Any, dict[str, torch.Tensor]]:
    """(policy directory, arch, source tensors) of a checkpoint with an optimizer entry that must not be read."""
    model = models / "llama-tied"
    arch, source = read_arch(model), source_tensors(model)
    state = by_hand(arch, source) | {"optimizer.state.exp_avg.decoder.final_layernorm.weight": torch.ones(32)}
    return write(tmp_path / "policy", state), arch, source


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("name", ["qwen3-untied", "llama-tied"])
def test_the_documented_layout_is_read(models: Path, tmp_path: Path, name: str, numbered: bool) -> None:
    arch, source = read_arch(models / name), source_tensors(models / name)
    directory = write(tmp_path / "policy", by_hand(arch, source, numbered=numbered))
    got = dict(iter_checkpoint_weights(directory, arch))
    assert list(got) == hf_names(arch)
    assert set(got) == set(source)
    for key, tensor in source.items():
        assert torch.equal(got[key], tensor), key


def test_a_tied_head_comes_right_after_the_embedding(llama: Any) -> None:
    directory, arch, source = llama
    names = [key for key, _ in iter_checkpoint_weights(directory, arch, include_tied_head=True)]
    assert names == hf_names(arch, include_tied_head=True)
    assert names[:2] == ["model.embed_tokens.weight", "lm_head.weight"]
    got = dict(iter_checkpoint_weights(directory, arch, include_tied_head=True))
    assert torch.equal(got["lm_head.weight"], source["model.embed_tokens.weight"])


def test_names_are_in_model_order(models: Path) -> None:
    names = hf_names(read_arch(models / "qwen2-untied"))
    layer = [
        "input_layernorm.weight",
        *(f"self_attn.{p}_proj.weight" for p in "qkvo"),
        "post_attention_layernorm.weight",
        *(f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")),
        *(f"self_attn.{p}_proj.bias" for p in "qkv"),
    ]
    assert names == [
        "model.embed_tokens.weight",
        *(f"model.layers.{number}.{key}" for number in range(4) for key in layer),
        "model.norm.weight",
        "lm_head.weight",
    ]


def test_tensors_keep_the_trainers_dtype(llama: Any, tmp_path: Path) -> None:
    _, arch, source = llama
    half = {key: tensor.bfloat16() for key, tensor in by_hand(arch, source).items()}
    for key, tensor in iter_checkpoint_weights(write(tmp_path / "half", half), arch):
        assert tensor.dtype is torch.bfloat16
        assert torch.equal(tensor, source[key].bfloat16()), key


def test_nothing_is_read_before_all_that_shows_without_reading_is_checked(llama: Any, tmp_path: Path) -> None:
    """The last parameter of the table is the one that is missing, and the first `next` says so."""
    _, arch, source = llama
    state = by_hand(arch, source)
    del state["decoder.final_layernorm.weight"]
    with pytest.raises(UsageError, match=r"no parameter decoder\.final_layernorm\.weight"):
        next(iter_checkpoint_weights(write(tmp_path / "less", state), arch))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(layers=5), "4 layers, not 5"),
        (dict(groups=4), r"64 rows in decoder\.layers\.self_attention\.linear_qkv\.weight, not 96"),
        (dict(ffn=40), r"96 rows in decoder\.layers\.mlp\.linear_fc1\.weight, not 80"),
        (dict(vocab=49), r"48 rows in embedding\.word_embeddings\.weight, not 49"),
        (dict(tied=False), r"no parameter output_layer\.weight"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(llama: Any, change: dict[str, Any], message: str) -> None:
    from dataclasses import replace

    directory, arch, _ = llama
    with pytest.raises(UsageError, match=message) as caught:
        next(iter_checkpoint_weights(directory, replace(arch, **change)))
    assert str(arch.path) in (caught.value.hint or "")
    assert caught.value.where == str(directory)


def test_damaged_files_are_named(llama: Any, tmp_path: Path) -> None:
    directory, arch, _ = llama
    (shard,) = directory.glob("*.distcp")

    def failing(label: str) -> Path:
        return Path(shutil.copytree(directory, tmp_path / label))

    cut = failing("cut")
    os.truncate(cut / shard.name, shard.stat().st_size // 2)
    with pytest.raises(UsageError, match=rf"{shard.name} has \d+ bytes and .* ends at \d+"):
        list(iter_checkpoint_weights(cut, arch))

    absent = failing("absent")
    (absent / shard.name).unlink()
    with pytest.raises(UsageError, match=f"{shard.name} is missing"):
        list(iter_checkpoint_weights(absent, arch))

    zeroed = failing("zeroed")
    (zeroed / shard.name).write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(UsageError, match=rf"cannot read embedding\.word_embeddings\.weight from {shard.name}"):
        list(iter_checkpoint_weights(zeroed, arch))

    unlisted = failing("unlisted")
    (unlisted / ".metadata").unlink()
    with pytest.raises(UsageError, match=r"no \.metadata, so no whole checkpoint"):
        list(iter_checkpoint_weights(unlisted, arch))

    garbled = failing("garbled")
    (garbled / ".metadata").write_bytes((directory / ".metadata").read_bytes()[:100])
    with pytest.raises(UsageError, match=r"\.metadata cannot be read"):
        list(iter_checkpoint_weights(garbled, arch))


class _Touch:
    """What an attacker puts into a pickle: loading it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (Path.touch, (self.file,))


def test_a_pickle_in_the_index_runs_nothing(llama: Any, tmp_path: Path) -> None:
    """Not by itself, and not beside an index that is otherwise right."""
    directory, arch, source = llama
    for dotted in ("os.system", "torch.os.system"):
        module, _, name = dotted.partition(".")
        payload = (
            b"\x80\x04\x8c" + bytes([len(module)]) + module.encode() + b"\x8c" + bytes([len(name)]) + name.encode()
        )
        payload += b"\x93\x8c" + bytes([len(f"touch {tmp_path}/ran")]) + f"touch {tmp_path}/ran".encode() + b"\x85R."
        (directory / ".metadata").write_bytes(payload)
        with pytest.raises(UsageError, match="no index of a checkpoint"):
            list(iter_checkpoint_weights(directory, arch))
        assert not (tmp_path / "ran").exists()
    again = write(tmp_path / "again", by_hand(arch, source))
    metadata = dcp.FileSystemReader(again).read_metadata()
    metadata.planner_data = _Touch(tmp_path / "ran")
    (again / ".metadata").write_bytes(pickle.dumps(metadata))
    assert dict(iter_checkpoint_weights(again, arch)).keys() == source.keys()
    assert not (tmp_path / "ran").exists()
    pickle.loads((again / ".metadata").read_bytes())  # the payload is a real one
    assert (tmp_path / "ran").exists()


@pytest.mark.slow
def test_peak_memory_is_that_of_a_file_not_of_the_model(tmp_path: Path) -> None:
    """10 files of 20 MB with tensors of up to 6.3 MB: less than two files above what the imports take."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = dict(vocab_size=1000, hidden_size=512, intermediate_size=1536, num_hidden_layers=15, num_attention_heads=8)
    LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=True)).save_pretrained(tmp_path / "model")
    arch, source = read_arch(tmp_path / "model"), source_tensors(tmp_path / "model")
    # Numbered layers, because torch alone would write a stack of layers as one chunk; Megatron writes one per layer.
    write(tmp_path / "run/checkpoints/step_1/policy", by_hand(arch, source, numbered=True))
    code = f"""
from pathlib import Path
from da3po_cli.config.schema import Config, ModelConfig
from da3po_cli.runs.directory import RunDir
from da3po_cli.runs.locate import Checkpoint
from da3po_cli.exporting.export import export
from megatron_bridge.arch import read_arch

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))

root = Path({str(tmp_path)!r})
read_arch(root / "model")
checkpoint = Checkpoint(RunDir(root / "run"), 1, root / "run/checkpoints/step_1")
config = Config(model=ModelConfig(path=str(root / "model"), dtype="float32"))
before = status("VmRSS")
done = export(config, checkpoint, root / "out", max_shard_bytes=20_000_000, say=lambda text: None)
print(len(done.files), done.nbytes, status("VmHWM") - before)
"""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed goes back at once
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=HERE.parents[1], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    files, nbytes, peak = map(int, done.stdout.split())
    assert files >= 10
    assert nbytes > 200_000_000
    assert peak < 40_000_000, peak
    written = source_tensors(tmp_path / "out")
    assert written.keys() == source.keys()
    assert all(torch.equal(written[key], tensor) for key, tensor in source.items())


def test_no_megatron_no_process_group(llama: Any) -> None:
    directory, arch, _ = llama
    code = f"""
import sys
from pathlib import Path
from megatron_bridge.arch import read_arch
from megatron_bridge.offline import iter_checkpoint_weights
assert len(list(iter_checkpoint_weights(Path({str(directory)!r}), read_arch(Path({str(arch.path)!r}))))) == 38
import torch.distributed
assert not torch.distributed.is_initialized()
assert not any(name.split(".")[0] in ("megatron", "vllm") for name in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=HERE.parents[1], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
