"""The plan's weights, gradients and optimizer state are the bytes that real Megatron allocates, on every rank."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from da3po_cli.config.models import model_facts
from da3po_cli.config.schema import Fp8Config, ParallelConfig
from da3po_cli.planning.shape import rank_parameters, shape_of
from da3po_cli.planning.state import trainer_state

HERE = Path(__file__).parent
RANKS = 4
# 45 rows are padded to 48 and 64, hidden 36 leaves gaps between norms, and 36 x 36 is no multiple of 64.
SIZES: dict[str, Any] = dict(
    vocab_size=45,
    hidden_size=36,
    intermediate_size=52,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)

pytestmark = pytest.mark.slow


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers as hf

    root = tmp_path_factory.mktemp("planned")
    made: dict[str, Any] = {
        "qwen3-tied": hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZES, head_dim=10, tie_word_embeddings=True)),
        "qwen2-untied": hf.Qwen2ForCausalLM(hf.Qwen2Config(**SIZES, tie_word_embeddings=False)),
        "llama-tied": hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, tie_word_embeddings=True)),
    }
    for name, model in made.items():
        model.save_pretrained(root / name)
    return root


@pytest.fixture(scope="module")
def measured(models: Path) -> list[dict[str, Any]]:
    """What each of 4 ranks has allocated."""
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    run = subprocess.run(
        [*torchrun, str(HERE / "world.py"), str(models)],
        env={**clean, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr[-6000:]
    return [json.loads((models / f"bytes_{rank}.json").read_text()) for rank in range(RANKS)]


def planned(model: Path, layout: ParallelConfig, place: dict[str, int], dtype: str) -> dict[str, int]:
    facts = model_facts(str(model))
    assert facts is not None
    shape = shape_of(facts)
    chunks = rank_parameters(shape, layout, place["stage"], fused=False)
    state = trainer_state(chunks, place["data"], place["data_rank"], dtype, Fp8Config(), shape.layers)
    assert state.fp8_copies == 0
    return dict(weights=state.weights, gradients=state.gradients, main=state.main, moments=state.moments)


@pytest.mark.parametrize("name", ["qwen3-tied", "qwen2-untied", "llama-tied"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_byte_of_every_rank(measured: list[dict[str, Any]], models: Path, dtype: str, name: str) -> None:
    layouts: dict[str, ParallelConfig] = load("world").LAYOUTS
    places = set()
    for rank, results in enumerate(measured):
        assert set(results) == set(layouts)
        for label, layout in layouts.items():
            place = results[label]["place"]
            places.add((label, place["stage"], place["data_rank"]))
            found = results[label][f"{dtype} {name}"]
            assert found == planned(models / name, layout, place, dtype), f"rank {rank} of {label}"
            assert found["main"] > 0 or dtype == "float32"
    assert len(places) == 4 + 2 + 1 + 4 + 4 + 4 + 2 + 4  # stages x data ranks of each layout


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_rank_alone(single: Any, models: Path, dtype: str) -> None:
    world = load("world")
    found = world.measure(models, ParallelConfig(), single)
    for name in ("qwen3-tied", "qwen2-untied", "llama-tied"):
        assert found[f"{dtype} {name}"] == planned(models / name, ParallelConfig(), found["place"], dtype)


def test_parameters_equal_transformers(models: Path) -> None:
    """On the meta device, whose parameters take no memory: small models and a real size."""
    import torch
    import transformers as hf

    for model in sorted(path for path in models.iterdir() if path.is_dir()):
        facts = model_facts(str(model))
        assert facts is not None
        with torch.device("meta"):
            theirs = hf.AutoModelForCausalLM.from_config(hf.AutoConfig.from_pretrained(model))
        assert shape_of(facts).parameters == sum(param.numel() for param in theirs.parameters())
