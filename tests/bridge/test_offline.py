"""Checkpoints of every layout read and exported without a model: against the source, the trainer and transformers."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from da3po_cli.config.schema import Config, ModelConfig
from da3po_cli.exporting.export import export
from da3po_cli.runs.directory import RunDir
from da3po_cli.runs.locate import Checkpoint
from megatron_bridge.arch import read_arch
from megatron_bridge.offline import hf_names, iter_checkpoint_weights

pytestmark = [pytest.mark.slow, pytest.mark.long]
HERE = Path(__file__).parent
FEW, MANY = ["tp2 pp2", "one"], ["tp2 pp2 dp2", "tp2 dp2", "tp4", "pp2 vpp2 dp2", "pp2 uneven dp2", "tp2", "dp2"]
LAYOUTS = {
    "qwen3-tied": FEW + MANY,
    "qwen3-untied": FEW,
    "qwen2-tied": FEW,
    "qwen2-untied": FEW + MANY,
    "llama-tied": FEW,
    "llama-untied": FEW,
}


@pytest.fixture(scope="module")
def world(models: Path, rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """(directory of checkpoints, log-probs of the trainer): one start of offline_world.py."""
    scratch = tmp_path_factory.mktemp("offline")
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    torch.save(dict(rows=rows, models=models, scratch=scratch, ports=ports), scratch / "inputs.pt")
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    run = subprocess.run(
        [sys.executable, str(HERE / "offline_world.py"), str(scratch / "inputs.pt"), str(scratch / "results.pt")],
        env={**clean, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr[-6000:]
    return scratch, torch.load(scratch / "results.pt", weights_only=False)


def checkpoint(root: Path, layout: str, name: str, kind: str) -> Checkpoint:
    run = root / layout / f"{name}-{kind}"
    return Checkpoint(RunDir(run), 1, run / "checkpoints" / "step_1")


def config(model: Path) -> Config:
    return Config(model=ModelConfig(path=str(model), dtype="float32"))


def source_tensors(directory: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in directory.glob("*.safetensors"):
        found |= load_file(file)
    return found


def exported(one: Checkpoint, model: Path, out: Path) -> dict[str, str]:
    """File name -> sha256 of an export in several files, and the shards' own bytes beside each other."""
    export(config(model), one, out, max_shard_bytes=20_000, say=lambda text: None)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(out.iterdir())}


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_untrained_checkpoint_of_any_layout_is_the_source_bit_for_bit(
    world: Any, models: Path, name: str, tmp_path: Path
) -> None:
    source, arch = source_tensors(models / name), read_arch(models / name)
    hashes = []
    for layout in LAYOUTS[name]:
        one = checkpoint(world[0], layout, name, "base")
        got = list(iter_checkpoint_weights(one.policy, arch))
        assert [key for key, _ in got] == hf_names(arch)
        assert {key for key, _ in got} == set(source)
        assert len(got) == len(source)
        for key, tensor in got:
            assert torch.equal(tensor, source[key]), (layout, key)
        hashes.append(exported(one, models / name, tmp_path / layout))
    assert len(hashes[0]) > 5
    assert all(one == hashes[0] for one in hashes)
    written = source_tensors(tmp_path / LAYOUTS[name][0])
    assert set(written) == set(source)
    assert all(torch.equal(written[key], tensor) for key, tensor in source.items())


@pytest.mark.parametrize(("name", "layout"), [(name, layout) for name, those in LAYOUTS.items() for layout in those])
def test_transformers_computes_the_trainers_logprobs(
    world: Any, models: Path, rows: Any, tmp_path: Path, name: str, layout: str
) -> None:
    from transformers import AutoModelForCausalLM

    export(
        config(models / name), checkpoint(world[0], layout, name, "trained"), tmp_path / "out", say=lambda text: None
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype is torch.float32
    before = AutoModelForCausalLM.from_pretrained(models / name)
    moved = 0.0
    lines = [line for batch in world[1][layout][name] for line in batch]
    for line, row in zip(lines, rows, strict=True):
        response = row["ids"][row["prompt"] :]
        got = line[row["prompt"] - 1 : len(row["ids"]) - 1]
        with torch.no_grad():
            want, old = (
                torch.log_softmax(one(row["ids"][None]).logits[0, row["prompt"] - 1 : -1].double(), -1).gather(
                    1, response[:, None]
                )[:, 0]
                for one in (model, before)
            )
        torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-5)
        moved = max(moved, float((want - old).abs().max()))
    assert moved > 1e-2, "two updates must show, or the source's own weights would pass"


def test_one_checkpoint_gives_the_same_bytes_from_every_layout_that_saved_it_again(
    world: Any, models: Path, tmp_path: Path
) -> None:
    name = "qwen3-tied"
    one = checkpoint(world[0], "tp2 pp2 dp2", name, "trained")
    shutil.copytree(one.run.path, tmp_path / f"{name}-moved")  # the run's name is in the model card
    origin = checkpoint(tmp_path, ".", name, "moved")
    hashes = [exported(origin, models / name, tmp_path / "origin")]
    for layout in LAYOUTS[name]:
        if layout == "tp2 pp2 dp2":
            continue
        hashes.append(exported(checkpoint(world[0], layout, name, "moved"), models / name, tmp_path / layout))
    assert all(one == hashes[0] for one in hashes)
    base = checkpoint(world[0], "one", name, "base")
    assert exported(base, models / name, tmp_path / "base") != hashes[0]


def test_another_process_writes_the_same_bytes(world: Any, models: Path, tmp_path: Path) -> None:
    one = checkpoint(world[0], "tp2 dp2", "qwen2-untied", "trained")
    here = exported(one, models / "qwen2-untied", tmp_path / "here")
    one.run.config_file.write_text(f"model:\n  path: {models / 'qwen2-untied'}\n  dtype: float32\n")
    (one.path / "state.json").write_text('{"step": 1}')
    command = [sys.executable, "-m", "da3po_cli", "export", str(one.path), str(tmp_path / "there")]
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "PYTHONHASHSEED": "7"}
    done = subprocess.run([*command, "--max-shard-size=20KB"], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    there = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (tmp_path / "there").iterdir()}
    assert there == here
