"""The mapping table, reading a config, and what a model directory can be refused for."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from da3po_cli.errors import UsageError
from megatron_bridge.families import FAMILIES, family

# Parameters of a layer by Megatron name, as the two layer specs have them (local; TransformerEngine, norms fused).
LAYER = {
    "local": {"input_layernorm.weight", "pre_mlp_layernorm.weight"},
    "te": {"self_attention.linear_qkv.layer_norm_weight", "mlp.linear_fc1.layer_norm_weight"},
    "both": {
        "self_attention.linear_qkv.weight",
        "self_attention.linear_proj.weight",
        "mlp.linear_fc1.weight",
        "mlp.linear_fc2.weight",
    },
}
EXTRA = {
    "LlamaForCausalLM": set(),
    "Qwen2ForCausalLM": {"self_attention.linear_qkv.bias"},
    "Qwen3ForCausalLM": {"self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight"},
}


@pytest.mark.parametrize("architecture", sorted(FAMILIES))
@pytest.mark.parametrize("spec", ["local", "te"])
def test_every_parameter_of_either_spec_has_a_row(architecture: str, spec: str) -> None:
    kind = family(architecture)
    names = {f"decoder.layers.3.{one}" for one in LAYER["both"] | LAYER[spec] | EXTRA[architecture]}
    names |= {"embedding.word_embeddings.weight", "decoder.final_layernorm.weight", "output_layer.weight"}
    for name in names:
        row, layer = kind.row(name)
        assert layer == (3 if "layers" in name else None)
        assert len(row.hf) == {"copy": 1, "qkv": 3, "gate_up": 2}[row.op]
    known = {row.megatron.replace("*", "3") for row in kind.rows}
    assert known - names == {f"decoder.layers.3.{one}" for one in LAYER["te" if spec == "local" else "local"]}


def test_a_parameter_of_another_family_has_no_row() -> None:
    with pytest.raises(KeyError):
        family("LlamaForCausalLM").row("decoder.layers.0.self_attention.q_layernorm.weight")


def test_layer_numbers_are_put_in_and_the_table_is_immutable() -> None:
    row, layer = family("Qwen2ForCausalLM").row("decoder.layers.11.self_attention.linear_qkv.bias")
    assert layer == 11
    assert row.hf_names(27) == tuple(f"model.layers.27.self_attn.{part}_proj.bias" for part in "qkv")
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.op = "copy"  # type: ignore[misc]


def test_measured_parameter_lists_resolve() -> None:
    """Names that Megatron's two specs really give; kept beside the project, skipped where absent."""
    file = Path(__file__).parents[3] / "shared" / "reference" / "megatron_parameters.json"
    if not file.is_file():
        pytest.skip("the measured lists are not here")
    architectures = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    seen = 0

    def walk(node: Any, where: str) -> None:
        nonlocal seen
        for key, value in node.items() if isinstance(node, dict) else enumerate(node if isinstance(node, list) else []):
            text = f"{where}/{key}"
            for name in (key, value if isinstance(value, str) else ""):
                if isinstance(name, str) and name.startswith(("decoder.", "embedding.", "output_layer.")):
                    kind = [architectures[one] for one in architectures if one in where]
                    if kind and "_extra_state" not in name:
                        family(kind[0]).row(name)
                        seen += 1
            walk(value, text)

    walk(json.loads(file.read_text()), "")
    assert seen > 100


def test_unknown_architecture_names_the_known() -> None:
    with pytest.raises(UsageError, match="'MambaForCausalLM'") as caught:
        family("MambaForCausalLM")
    assert "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM" in (caught.value.hint or "")
    assert caught.value.exit_code == 2


@pytest.fixture
def edited(models: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of a model with its config.json changed."""

    def make(name: str, **changes: Any) -> Path:
        shutil.copytree(models / name, tmp_path / "model")
        file = tmp_path / "model" / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
        return tmp_path / "model"

    return make


def test_config_values(models: Path, edited: Callable[..., Path]) -> None:
    from megatron_bridge.arch import read_arch

    arch = read_arch(models / "qwen3-tied")
    assert (arch.layers, arch.hidden, arch.ffn, arch.heads, arch.groups, arch.head_dim) == (4, 32, 48, 4, 2, 16)
    assert arch.tied and arch.family.qk_norm and arch.rope_inv_freq is None
    assert [arch.padded_vocab(tensor) for tensor in (1, 2, 4)] == [48, 64, 64]
    assert read_arch(models / "qwen2-untied").head_dim == 8  # not given: hidden / heads
    assert len(read_arch(models / "llama3-rope").rope_inv_freq or ()) == 4


def test_the_older_spelling_of_rope_is_read(edited: Callable[..., Path]) -> None:
    """Checkpoints written before transformers 5 have `rope_theta` at the top level."""
    from megatron_bridge.arch import read_arch

    directory = edited("qwen2-tied", rope_theta=1000000.0, rope_scaling=None)
    file = directory / "config.json"
    config = json.loads(file.read_text())
    del config["rope_parameters"]
    file.write_text(json.dumps(config))
    assert read_arch(directory).rope_theta == 1000000.0


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("qwen3-tied", {"architectures": ["Qwen3MoeForCausalLM"]}, "'Qwen3MoeForCausalLM' is not supported"),
        ("qwen3-tied", {"architectures": None}, "'\\(none named\\)' is not supported"),
        ("qwen3-tied", {"attention_bias": True}, "attention_bias=true"),
        ("llama-tied", {"mlp_bias": True}, "mlp_bias=true"),
        ("llama-tied", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("qwen2-tied", {"layer_types": ["sliding_attention"] * 4}, "sliding-window attention"),
        ("llama-tied", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, "'yarn'"),
    ],
)
def test_what_would_be_lost_is_refused(edited: Callable[..., Path], name: str, changes: Any, text: str) -> None:
    from megatron_bridge.arch import read_arch

    with pytest.raises(UsageError, match=text) as caught:
        read_arch(edited(name, **changes))
    assert caught.value.hint


def test_no_config(tmp_path: Path) -> None:
    from megatron_bridge.arch import read_arch

    with pytest.raises(UsageError, match=r"no config\.json"):
        read_arch(tmp_path)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "text"),
    [
        (3, 1, "parallel.tensor=3 does not divide the model's 4 attention heads"),
        (1, 5, "parallel.pipeline=5 x parallel.virtual_pipeline=1 are more stages than the model's 4 layers"),
    ],
)
def test_layouts_that_do_not_divide(models: Path, tensor: int, pipeline: int, text: str) -> None:
    from da3po_cli.config.schema import ParallelConfig
    from megatron_bridge.arch import check_layout, read_arch

    with pytest.raises(UsageError, match=text):
        check_layout(read_arch(models / "qwen3-tied"), ParallelConfig(tensor=tensor, pipeline=pipeline))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.pop("model.layers.2.self_attn.q_norm.weight"), r"lacks model\.layers\.2\.self_attn\.q_norm"),
        (lambda t: t.update(extra=t["model.norm.weight"].clone()), "has unexpected extra"),
        (lambda t: t.update({"model.norm.weight": t["model.norm.weight"][:5].clone()}), r"model\.norm\.weight gives"),
        (
            lambda t: t.update({"model.embed_tokens.weight": t["model.embed_tokens.weight"][:44].clone()}),
            r"embed_tokens\.weight has 44 rows, config\.json says vocab_size=45",
        ),
    ],
)
def test_a_checkpoint_that_is_not_the_models(
    edited: Callable[..., Path], single: Any, change: Callable[[dict[str, Any]], Any], text: str
) -> None:
    from da3po_cli.config.schema import TrainConfig
    from megatron_bridge import build_policy

    directory = edited("qwen3-tied")
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(UsageError, match=text) as caught:
        build_policy(directory, dtype="float32", parallel=single, train=TrainConfig(), temperature=1.0, seed=1)
    assert caught.value.hint


def test_weights_that_are_not_there(edited: Callable[..., Path]) -> None:
    from megatron_bridge.weights import HFFiles

    directory = edited("qwen2-untied")
    (directory / "model-00001-of-00004.safetensors").unlink(missing_ok=True)
    next(directory.glob("model-*.safetensors")).unlink()
    with pytest.raises(UsageError, match="the index names model-"):
        HFFiles(directory)
    (directory / "model.safetensors.index.json").unlink()
    with pytest.raises(UsageError, match=r"no model\.safetensors"):
        HFFiles(directory)


def test_a_tied_model_may_carry_its_head(models: Path) -> None:
    """Qwen3-1.7B does; the head of an untied model must be there."""
    from megatron_bridge.arch import read_arch
    from megatron_bridge.weights import check_names

    tied, untied = read_arch(models / "qwen3-tied"), read_arch(models / "qwen3-untied")
    names = set(load_file(models / "qwen3-tied" / "model.safetensors"))
    check_names(names | {"lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"}, tied)
    with pytest.raises(UsageError, match=r"lacks lm_head\.weight"):
        check_names(names, untied)


def test_two_sets_of_weights_in_one_directory(tmp_path: Path) -> None:
    """An older index whose files are gone is passed over, as by transformers; one whose files are there is refused."""
    import torch
    from safetensors.torch import save_file

    from megatron_bridge.weights import HFFiles

    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1-of-2.safetensors"}}')
    with HFFiles(tmp_path) as files:
        assert files.files == {"a": "model.safetensors"}
    save_file({"a": torch.zeros(1)}, tmp_path / "model-1-of-2.safetensors")
    with pytest.raises(UsageError, match=r"two sets of weights: model.safetensors, and model-1-of-2.safetensors"):
        HFFiles(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors"}}')
    with HFFiles(tmp_path) as files:
        assert files.files == {"a": "model.safetensors"}
