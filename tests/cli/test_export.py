"""`da3po export` as a user types it: which checkpoint is meant, what is said, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from da3po_cli import main
from da3po_cli.config.models import DEMO_MODEL
from da3po_cli.errors import UsageError
from da3po_cli.runs.directory import RunDir
from da3po_cli.runs.locate import find_checkpoint

CONFIG = "model:\n  path: demo\n  dtype: float32\nrun:\n  name: sums\n"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """DA3PO_RUNS with the runs `sums` (whole checkpoints 20 and 40, an incomplete 60) and, newest, `bare` (none)."""
    for name in list(os.environ):
        if name.startswith(("DA3PO_", "SLURM_")) or name in ("RANK", "WORLD_SIZE", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    root = tmp_path / "runs"
    monkeypatch.setenv("DA3PO_RUNS", str(root))
    monkeypatch.chdir(tmp_path)
    for name in ("sums", "bare"):
        RunDir(root / name).create(CONFIG, "hash", [])
    for step in (20, 40):
        directory = root / f"sums/checkpoints/step_{step}"
        directory.mkdir(parents=True)
        (directory / "state.json").write_text(json.dumps({"step": step}))
    (root / "sums/checkpoints/step_60/policy").mkdir(parents=True)
    return root


@pytest.mark.parametrize(
    ("text", "flag", "step"),
    [
        ("sums", None, 40),
        ("sums", 20, 20),
        ("sums@20", None, 20),
        ("sums@20", 20, 20),
        ("runs/sums", None, 40),
        ("runs/sums@20", None, 20),
        ("runs/sums/checkpoints/step_20", None, 20),
        ("runs/sums/checkpoints/step_20/", 20, 20),
    ],
)
def test_ways_to_name_a_checkpoint(runs: Path, text: str, flag: int | None, step: int) -> None:
    found = find_checkpoint(text, flag)
    assert found.step == step
    assert found.run.path.resolve() == runs / "sums"
    assert found.policy.resolve() == runs / f"sums/checkpoints/step_{step}/policy"


def test_latest_is_the_newest_run(runs: Path) -> None:
    with pytest.raises(UsageError, match="no whole checkpoint") as caught:
        find_checkpoint("latest")
    assert caught.value.where == str(runs / "bare/checkpoints")
    RunDir(runs / "sums").create(CONFIG, "hash", [])
    assert find_checkpoint("latest").step == 40
    assert find_checkpoint("latest@20").step == 20


def test_a_run_whose_name_has_an_at_sign(runs: Path) -> None:
    (runs / "sums").rename(runs / "sums@work")
    assert find_checkpoint(str(runs / "sums@work")).step == 40
    assert find_checkpoint("sums@work@20").step == 20


@pytest.mark.parametrize(
    ("text", "flag", "message", "hint"),
    [
        ("sums@30", None, r"no checkpoint of step 30 \(steps saved: 20, 40\)", "name one of these steps"),
        ("sums", 60, r"checkpoint of step 60 is incomplete: it has no state\.json", "newest whole checkpoint"),
        ("runs/sums/checkpoints/step_60", None, "checkpoint of step 60 is incomplete", "newest whole checkpoint"),
        ("sums@20", 40, "names step 20 and --step says 40", "leave out one"),
        ("runs/sums/checkpoints/step_20", 40, "names step 20 and --step says 40", "leave out one"),
        ("sums@last", None, "'last' is no step", "RUN@STEP"),
        ("other", None, "no run called 'other'", "bare, sums"),
        ("elsewhere/step_5", None, "not in the checkpoints of a run", "put it back"),
    ],
)
def test_checkpoints_that_are_not_there(runs: Path, text: str, flag: int | None, message: str, hint: str) -> None:
    (runs.parent / "elsewhere/step_5").mkdir(parents=True)
    with pytest.raises(UsageError, match=message) as caught:
        find_checkpoint(text, flag)
    assert hint in (caught.value.hint or "")
    assert caught.value.where


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main.execute(["export", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def whole(runs: Path) -> Path:
    """Step 40 of `sums`, its policy written by hand: the demo model with the last norm set to 2."""
    source = load_file(DEMO_MODEL / "model.safetensors")
    layers = [f"model.layers.{number}." for number in range(4)]

    def qkv(layer: str) -> torch.Tensor:
        q, k, v = (source[f"{layer}self_attn.{p}_proj.weight"].unflatten(0, (2, -1)) for p in "qkv")
        return torch.cat([q, k, v], dim=1).flatten(0, 1)

    def stack(name: str) -> torch.Tensor:
        return torch.stack([source[layer + name] for layer in layers])

    gate, up = stack("mlp.gate_proj.weight"), stack("mlp.up_proj.weight")
    attention, mlp = "decoder.layers.self_attention.", "decoder.layers.mlp."
    state = {
        "embedding.word_embeddings.weight": source["model.embed_tokens.weight"],
        f"{attention}linear_qkv.layer_norm_weight": stack("input_layernorm.weight"),
        f"{attention}linear_qkv.weight": torch.stack([qkv(layer) for layer in layers]),
        f"{attention}linear_proj.weight": stack("self_attn.o_proj.weight"),
        f"{attention}q_layernorm.weight": stack("self_attn.q_norm.weight"),
        f"{attention}k_layernorm.weight": stack("self_attn.k_norm.weight"),
        f"{mlp}linear_fc1.layer_norm_weight": stack("post_attention_layernorm.weight"),
        f"{mlp}linear_fc1.weight": torch.cat([gate, up], dim=1),
        f"{mlp}linear_fc2.weight": stack("mlp.down_proj.weight"),
        "decoder.final_layernorm.weight": torch.full((128,), 2.0, dtype=torch.bfloat16),
    }
    policy = runs / "sums/checkpoints/step_40/policy"
    dcp.save(state, storage_writer=dcp.FileSystemWriter(policy), no_dist=True)
    return policy


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_an_export(whole: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "sums", "out")
    assert code == 0, err
    assert out == "out\n"
    lines = err.splitlines()
    assert lines[0] == f"exporting step 40 of {runs}/sums"
    assert lines[1] == "wrote model.safetensors (1.6 MB)"
    assert lines[2].startswith("46 tensors, 800,640 parameters, 1.6 MB in ")
    assert lines[-1] == "next: da3po eval --bench arith --model out"
    written, source = load_file("out/model.safetensors"), load_file(DEMO_MODEL / "model.safetensors")
    assert written.keys() == source.keys()
    assert {name for name in source if not torch.equal(written[name], source[name])} == {"model.norm.weight"}

    code, out, err = call(capsys, "sums@40", "out2", "--json", "--max-shard-size", "400KB", "--dtype", "fp32")
    assert code == 0, err
    event = json.loads(out)
    assert event["event"] == "export"
    assert (event["step"], event["out"], event["dtype"]) == (40, "out2", "fp32")
    assert (event["tensors"], event["parameters"], event["nbytes"]) == (46, 800_640, 3_202_560)
    assert sorted(event["files"]) == sorted(file.name for file in Path("out2").glob("*.safetensors"))
    assert len(event["files"]) > 5
    assert event["verification"] is None


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_keys_of_another_version_do_not_keep_weights_back(whole: Path, runs: Path, capsys) -> None:
    (runs / "sums/config.yaml").write_text(CONFIG + "train:\n  lr: 1.0e-6\n  forgotten_key: 1\n")
    code, _, err = call(capsys, "sums", "out")
    assert code == 0, err
    assert "warning: unknown config key 'train.forgotten_key'" in err
    assert Path("out/model.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["sums", "runs"], 2, "runs exists"),
        (["sums@30", "out"], 2, "no checkpoint of step 30"),
        (["sums", "out"], 2, r"no .metadata"),
        (["sums", "out", "--max-shard-size", "big"], 2, "'big' is no file size"),
        (["sums", "out", "--dtype", "int8"], 2, "int8"),
    ],
)
def test_errors(runs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str) -> None:
    found, out, err = call(capsys, *arguments)
    assert found == code
    assert message in err
    assert out == ""
    assert "Traceback" not in err
    assert not Path("out").exists()
    assert not Path("out.partial").exists()


def test_an_error_as_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "sums@30", "out", "--json")
    assert code == 2
    assert "no checkpoint of step 30" in json.loads(out)["error"]["message"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_without_a_gpu_a_group_or_megatron(whole: Path, runs: Path) -> None:
    """In a process of its own, which says what it imported."""
    code = """
import sys
from da3po_cli import main
assert main.execute(["export", "sums", "out"]) == 0
import torch
assert not torch.distributed.is_initialized()
assert not {"megatron", "vllm"} & {name.split(".")[0] for name in sys.modules}
"""
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(root), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert Path("out/model.safetensors").is_file()
