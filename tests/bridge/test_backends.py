"""What a CPU can show of the GPU path: choice, FP8 fields, multiples, refusals, and what FP8 rounding costs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from da3po_cli.config.schema import Fp8Config, ParallelConfig
from da3po_cli.errors import EnvironmentProblem, UsageError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
RECIPES = ("delayed", "tensorwise", "blockwise", "mxfp8")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put empty packages of these names on the path."""

    def make(*names: str) -> None:
        for name in names:
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
        for name in names:
            monkeypatch.delitem(sys.modules, name, raising=False)

    return make


def test_local_layers_without_transformer_engine() -> None:
    from megatron_bridge.backends import Local, choose_backend

    for device in (CPU, GPU):
        assert isinstance(choose_backend(device, torch.bfloat16, Fp8Config()), Local)
    assert Local().token_multiple(4) == 4


def test_transformer_engine_on_cuda_in_bfloat16_only(install: Any) -> None:
    from megatron_bridge.backends import Local, TransformerEngine, choose_backend

    install("transformer_engine")
    chosen = choose_backend(GPU, torch.bfloat16, Fp8Config(format="hybrid"))
    assert isinstance(chosen, TransformerEngine) and chosen.lengths_on == GPU
    assert isinstance(choose_backend(GPU, torch.float32, Fp8Config()), Local)
    assert isinstance(choose_backend(CPU, torch.bfloat16, Fp8Config()), Local)


@pytest.mark.parametrize(("recipe", "tokens"), [("delayed", 16), ("tensorwise", 16), ("mxfp8", 32), ("blockwise", 128)])
def test_packed_tokens_are_a_multiple_of_what_the_recipe_wants(recipe: Any, tokens: int) -> None:
    from megatron_bridge.backends import TransformerEngine

    backend = TransformerEngine(GPU, Fp8Config(format="hybrid", recipe=recipe))
    assert backend.token_multiple(1) == tokens
    assert backend.token_multiple(4) == 4 * tokens  # each of 4 ranks holds a share under sequence parallelism
    assert TransformerEngine(GPU, Fp8Config(recipe=recipe)).token_multiple(4) == 4


def test_fp8_is_refused_where_it_cannot_run(install: Any) -> None:
    from megatron_bridge.backends import choose_backend

    hybrid = Fp8Config(format="hybrid")
    with pytest.raises(UsageError, match=r"model\.dtype=bfloat16"):
        choose_backend(GPU, torch.float32, hybrid)
    with pytest.raises(EnvironmentProblem, match="needs a CUDA device"):
        choose_backend(CPU, torch.bfloat16, hybrid)
    with pytest.raises(EnvironmentProblem, match="needs TransformerEngine"):
        choose_backend(GPU, torch.bfloat16, hybrid)


@pytest.mark.parametrize("format_", ["hybrid", "e4m3"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_fp8_reaches_megatrons_config(models: Path, single: Any, format_: Any, recipe: Any) -> None:
    from megatron_bridge.arch import read_arch
    from megatron_bridge.backends import fp8_fields
    from megatron_bridge.model import transformer_config

    layers = 0 if recipe == "delayed" else 1
    fp8 = Fp8Config(format=format_, recipe=recipe, param_gather=True, bf16_layers=layers)
    arch = read_arch(models / "qwen3-tied")
    config = transformer_config(arch, torch.bfloat16, single, ParallelConfig(), fp8_fields(fp8))
    assert (config.fp8, config.fp8_recipe, config.fp8_param) == (format_, recipe, True)
    assert config.first_last_layers_bf16 is (layers > 0)
    assert (config.num_layers_at_start_in_bf16, config.num_layers_at_end_in_bf16) == (layers, layers)
    assert config.bf16 and config.params_dtype is torch.bfloat16
    plain = transformer_config(arch, torch.bfloat16, single, ParallelConfig(), fp8_fields(Fp8Config()))
    assert plain.fp8 is None


def test_which_apex(install: Any) -> None:
    from megatron_bridge.backends import apex_kind

    assert apex_kind() is None
    install("apex")
    assert apex_kind() == "impostor"


def test_nvidias_apex_brings_its_extension(install: Any) -> None:
    from megatron_bridge.backends import apex_kind

    install("apex", "amp_C")
    assert apex_kind() == "nvidia"


def test_norm_is_transformers_norm_and_marked_for_sequence_parallelism(models: Path, single: Any) -> None:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    from megatron_bridge.arch import read_arch
    from megatron_bridge.backends import RMSNorm
    from megatron_bridge.model import transformer_config

    config = transformer_config(read_arch(models / "qwen3-tied"), torch.float32, single, ParallelConfig(), {})
    norm, want = RMSNorm(config, 32, eps=1e-6), Qwen3RMSNorm(32, eps=1e-6)
    with torch.no_grad():
        for one in (norm, want):
            one.weight.copy_(torch.linspace(0.5, 1.5, 32))
    x = torch.randn(5, 3, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(norm(x), want(x), rtol=0, atol=1e-6)
    assert norm.weight.sequence_parallel is False
    config.sequence_parallel = True
    assert RMSNorm(config, 32).weight.sequence_parallel is True


def rounded_to_e4m3(weight: torch.Tensor, block: int | None) -> torch.Tensor:
    """FP8 as the recipes scale it: the largest value of the tensor, or of each block of rows, becomes 448."""
    parts = weight.split(block) if block else [weight]
    out = []
    for part in parts:
        scale = 448.0 / part.abs().max().clamp(min=1e-12)
        out.append((part * scale).to(torch.float8_e4m3fn).to(part.dtype) / scale)
    return torch.cat(out)


@pytest.mark.parametrize("block", [None, 8])
def test_fp8_rounding_of_the_weights_moves_log_probs_by_what_three_bits_of_mantissa_say(
    models: Path, single: Any, tmp_path: Path, block: int | None
) -> None:
    """E4M3 rounds to 4 significant bits, so a weight moves by at most 2^-4 of itself, above the subnormals.

    For small independent errors the change of a log-prob is that of the first order, sum over weights of
    gradient x change: it is computed here by autograd of transformers, and the rounded model must follow it.
    """
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    from da3po_cli.algos.batching import collate
    from da3po_cli.algos.types import Trajectory
    from da3po_cli.config.schema import TrainConfig
    from megatron_bridge import build_policy

    source = models / "llama-untied"
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    exact = load_file(source / "model.safetensors")
    linear = [name for name in exact if name.endswith("_proj.weight")]
    changed = {name: rounded_to_e4m3(t, block) if name in linear else t for name, t in exact.items()}
    for name in linear:
        moved = (changed[name] - exact[name]).abs()
        assert bool((moved <= exact[name].abs() / 16 + exact[name].abs().max() * 2**-9 / 448).all())
    save_file(changed, tmp_path / "model.safetensors", metadata={"format": "pt"})

    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    batch = collate([Trajectory(tuple(ids[:1]), ids[1:], [0.0] * 7, 0.0)], [0])

    def score(directory: Path) -> torch.Tensor:
        policy = build_policy(directory, dtype="float32", parallel=single, train=TrainConfig(), temperature=1.0, seed=1)
        return policy.logprobs([batch])[0][0, :7]

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    table = torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)
    total = table[:-1].gather(1, torch.tensor(ids[1:])[:, None]).sum()
    total.backward()
    grads = {name: param.grad for name, param in model.named_parameters()}
    first_order = sum(float((grads[name] * (changed[name] - exact[name])).sum()) for name in linear)
    difference = score(tmp_path) - score(source)
    assert 1e-4 < float(difference.abs().max()) < 0.2
    assert float(difference.sum()) == pytest.approx(first_order, abs=0.25 * float(difference.abs().sum()))
