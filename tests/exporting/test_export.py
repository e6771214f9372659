"""Exports of a real checkpoint of the demo model: files, bytes, config, errors, and what --verify sees."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from da3po_cli.config.models import DEMO_MODEL
from da3po_cli.config.schema import Config, ModelConfig, TrainConfig
from da3po_cli.errors import EnvironmentProblem, GateError, UsageError
from da3po_cli.exporting.export import Exported, compare, export
from da3po_cli.exporting.shards import Spec, read_specs
from da3po_cli.exporting.verify import verify
from da3po_cli.runs.directory import RunDir
from da3po_cli.runs.locate import Checkpoint

# A tied Qwen3: vocabulary 100, hidden 128, 4 layers, 4 heads and 2 key/value heads of 32, feed-forward 384.
PARAMETERS = 100 * 128 + 128 + 4 * (128 * 32 * (4 + 2 + 2 + 4) + 3 * 128 * 384 + 2 * 128 + 2 * 32)


def quiet(text: str) -> None:
    """Progress that nobody reads."""


@dataclass(frozen=True)
class Given:
    """A run whose step 3 was saved on one rank, and its policy's float32 weights, which bfloat16 can't hold."""

    checkpoint: Checkpoint
    weights: dict[str, torch.Tensor]

    def export(self, out: Path, source: Path = DEMO_MODEL, **options: Any) -> Exported:
        return export(config(source), self.checkpoint, out, say=quiet, **options)


def config(source: Path) -> Config:
    return Config(model=ModelConfig(path=str(source), dtype="float32"))


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    from megatron_bridge import build_policy
    from megatron_bridge.parallel import initialize

    generator = torch.Generator().manual_seed(3)
    weights = {
        name: tensor.float() + 1e-3 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in load_file(DEMO_MODEL / "model.safetensors").items()
    }
    model = tmp_path_factory.mktemp("models") / "changed"
    shutil.copytree(DEMO_MODEL, model)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})

    hidden = {name: os.environ.pop(name) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK") if name in os.environ}
    run = RunDir(tmp_path_factory.mktemp("runs") / "sums")
    parallel = initialize(1, 1, seed=1)
    policy = build_policy(model, dtype="float32", parallel=parallel, train=TrainConfig(), temperature=1.0, seed=1)
    policy.save(run.checkpoints / "step_3" / "policy")
    parallel.shutdown()
    os.environ.update(hidden)

    records = [
        {"step": 2, "train/acc": 0.5},
        {"step": 3, "train/acc": 0.75, "val/arith/avg@8": 0.625, "timing/step": 9.0},
    ]
    run.metrics_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    run.update(name="sums", versions={"torch": "9.9"})
    return Given(Checkpoint(run, 3, run.checkpoints / "step_3"), weights)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the demo model that a test may change."""
    return Path(shutil.copytree(DEMO_MODEL, tmp_path / "source"))


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in directory.glob("*.safetensors"):
        found |= load_file(file)
    return found


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype is tensor.dtype and torch.equal(left[name], tensor) for name, tensor in right.items()
    )


def refused(given: Given, out: Path, source: Path, match: str, **options: Any) -> UsageError:
    """The export fails with this text and leaves neither OUT nor OUT.partial."""
    with pytest.raises(UsageError, match=match) as caught:
        given.export(out, source, **options)
    assert not out.exists()
    assert not out.with_name(out.name + ".partial").exists()
    return caught.value


def test_source_dtype_is_the_default(given: Given, tmp_path: Path) -> None:
    done = given.export(tmp_path / "out")
    assert same(tensors(tmp_path / "out"), {name: tensor.bfloat16() for name, tensor in given.weights.items()})
    assert (tmp_path / "out/config.json").read_bytes() == (DEMO_MODEL / "config.json").read_bytes()
    assert done.parameters == PARAMETERS
    assert done.tensors == len(given.weights)
    assert done.nbytes == 2 * PARAMETERS
    assert done.files == ["model.safetensors"]
    assert done.verification is None


@pytest.mark.parametrize(("dtype", "kind"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_other_dtypes_are_written_and_said(
    given: Given, tmp_path: Path, source: Path, dtype: Any, kind: torch.dtype, key: str
) -> None:
    raw = json.loads((source / "config.json").read_text())
    raw[key] = raw.pop("dtype")
    raw["note"] = "Grüße"
    (source / "config.json").write_text(json.dumps(raw))
    given.export(tmp_path / "out", source, dtype=dtype)
    assert same(tensors(tmp_path / "out"), {name: tensor.to(kind) for name, tensor in given.weights.items()})
    written = json.loads((tmp_path / "out/config.json").read_text(encoding="utf-8"))
    assert written == {**raw, key: str(kind).removeprefix("torch.")}


def test_transformers_loads_several_files(given: Given, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    done = given.export(tmp_path / "out", dtype="fp32", max_shard_bytes=500_000)
    sizes = [(tmp_path / "out" / name).stat().st_size for name in done.files]
    assert len(sizes) == len(list((tmp_path / "out").glob("*.safetensors"))) >= 7
    assert all(size < 500_000 + 4000 for size in sizes), "a header is below 4 kB here"
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == done.nbytes == 4 * PARAMETERS
    for name, file in index["weight_map"].items():
        with safe_open(str(tmp_path / "out" / file), framework="pt") as one:
            assert torch.equal(one.get_tensor(name), given.weights[name])
            assert one.metadata() == {"format": "pt"}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    state = model.state_dict()
    assert state.keys() - given.weights.keys() == {"lm_head.weight"}
    assert all(torch.equal(state[name], tensor) for name, tensor in given.weights.items())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    text = "47+8-16=?"
    assert (
        AutoTokenizer.from_pretrained(tmp_path / "out")(text).input_ids
        == AutoTokenizer.from_pretrained(DEMO_MODEL)(text).input_ids
    )


def test_a_tied_source_that_stores_its_head_gets_it_again(given: Given, tmp_path: Path, source: Path) -> None:
    stored = load_file(source / "model.safetensors")
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"].clone()
    save_file(stored, source / "model.safetensors", metadata={"format": "pt"})
    done = given.export(tmp_path / "out", source, dtype="fp32")
    written = tensors(tmp_path / "out")
    assert torch.equal(written["lm_head.weight"], given.weights["model.embed_tokens.weight"])
    assert same({name: tensor for name, tensor in written.items() if name != "lm_head.weight"}, given.weights)
    assert done.parameters == PARAMETERS, "one parameter under two names"


def test_each_tensor_has_its_own_source_dtype(given: Given, tmp_path: Path, source: Path) -> None:
    stored = load_file(source / "model.safetensors")
    wanted = {
        name: torch.float32 if "norm" in name else torch.float16 if "up_proj" in name else torch.bfloat16
        for name in stored
    }
    save_file({name: tensor.to(wanted[name]) for name, tensor in stored.items()}, source / "model.safetensors")
    given.export(tmp_path / "out", source)
    assert same(tensors(tmp_path / "out"), {name: tensor.to(wanted[name]) for name, tensor in given.weights.items()})


def test_files_beside_the_weights(given: Given, tmp_path: Path, source: Path) -> None:
    taken = [
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "tokenizer.model",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
        "LICENSE",
    ]
    left = ["README.md", "pytorch_model.bin", "consolidated.safetensors", "optimizer.pt", "trainer_state.json", "x.py"]
    (source / "additional_chat_templates").mkdir()
    (source / "consolidated.safetensors.index.json").write_text("{}")
    for name in taken + left:
        if not (source / name).exists():
            (source / name).write_text(f"the source's {name}")
    given.export(tmp_path / "out", source)
    written = {str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert written == {*taken, "config.json", "model.safetensors", "README.md"}
    assert all((tmp_path / "out" / name).read_bytes() == (source / name).read_bytes() for name in taken)
    assert "the source's" not in (tmp_path / "out/README.md").read_text()


def test_the_model_card(given: Given, tmp_path: Path) -> None:
    given.export(tmp_path / "out")
    text = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["da3po", "reinforcement-learning", "rlvr"],
    }
    assert "# sums, step 3\n" in body
    assert f"Qwen3ForCausalLM, {PARAMETERS:,} parameters, bfloat16" in body
    for row in ("| algorithm | da3po |", "| train/acc | 0.75 |", "| val/arith/avg@8 | 0.625 |", "| torch | 9.9 |"):
        assert f"{row}\n" in body
    assert "timing" not in body
    assert str(DEMO_MODEL.parent) not in text, "no path of this machine"


def test_the_model_card_names_what_is_on_the_hub() -> None:
    from dataclasses import replace

    from da3po_cli.exporting.model_card import Facts, model_card

    given = Config(model=ModelConfig(path="Qwen/Qwen3-4B-Base"))
    given = replace(given, data=replace(given.data, train="BytedTsinghua-SIA/DAPO-Math-17k"))
    text = model_card(given, Facts("r", 1, "Qwen3ForCausalLM", 4_022_468_096, "bfloat16", {}, {}))
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["base_model"] == "Qwen/Qwen3-4B-Base"
    assert front["datasets"] == ["BytedTsinghua-SIA/DAPO-Math-17k"]
    assert "## Metrics" not in text


# --- what is refused, and what a failure leaves


def test_an_existing_out_is_refused_and_untouched(given: Given, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").touch()
    with pytest.raises(UsageError, match="out exists") as caught:
        given.export(tmp_path / "out")
    assert caught.value.where == "OUT"
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine"]


def test_what_an_interrupted_export_left_is_replaced(given: Given, tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial/model-00001-of-00009.safetensors").touch()
    said: list[str] = []
    export(config(DEMO_MODEL), given.checkpoint, tmp_path / "out", say=said.append)
    assert any("out.partial" in line for line in said)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert not (tmp_path / "out/model-00001-of-00009.safetensors").exists()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_leaves_nothing(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    def interrupt(handle: int) -> None:
        raise interruption

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(interruption):
        given.export(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_runs_full(given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentProblem, match=r"disk of .*out is full: .*No space left") as caught:
        given.export(tmp_path / "out")
    assert "free space" in (caught.value.hint or "")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_too_small_is_seen_before(given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1_000_000}))
    with pytest.raises(EnvironmentProblem, match=r"full: 3\.2 MB to write and 1 MB free"):
        given.export(tmp_path / "out", dtype="fp32")
    assert not list(tmp_path.iterdir())


def test_a_place_where_nothing_can_be_made(given: Given, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot make .*file/out\.partial: Not a directory"):
        given.export(tmp_path / "file/out")


def test_a_source_that_is_gone(given: Given, tmp_path: Path) -> None:
    error = refused(given, tmp_path / "out", tmp_path / "gone", "the source model of the run is gone: .*'.*gone'")
    assert str(given.checkpoint.run.config_file) in (error.where or "")
    assert "set model.path" in (error.hint or "")


def test_a_source_of_another_shape(given: Given, tmp_path: Path, source: Path) -> None:
    """Layers, rows that Megatron merges, and a tensor that it takes as it is."""
    raw = json.loads((source / "config.json").read_text())
    del raw["layer_types"]
    stored = load_file(source / "model.safetensors")

    def rewrite(changes: dict[str, Any], weights: dict[str, torch.Tensor]) -> Path:
        (source / "config.json").write_text(json.dumps(raw | changes))
        save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
        return source

    fewer = {name: tensor for name, tensor in stored.items() if ".layers.3." not in name}
    refused(given, tmp_path / "out", rewrite({"num_hidden_layers": 3}, fewer), "4 layers, not 3")
    less = {name: tensor for name, tensor in stored.items() if name != "model.norm.weight"}
    refused(given, tmp_path / "out", rewrite({}, less), r"source model lacks model\.norm\.weight")
    more = stored | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(128)}
    refused(given, tmp_path / "out", rewrite({}, more), r"has unexpected model\.layers\.0\.self_attn\.q_proj\.bias")
    other = stored | {"model.norm.weight": torch.ones(64)}
    refused(given, tmp_path / "out", rewrite({}, other), r"model\.norm\.weight \[128\] where the source has .* \[64\]")
    buffers = stored | {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(16) for i in range(4)}
    given.export(tmp_path / "out", rewrite({}, buffers))
    assert read_specs(tmp_path / "out").keys() == stored.keys()


def test_a_damaged_checkpoint(given: Given, tmp_path: Path) -> None:
    broken = tmp_path / "step_3"
    shutil.copytree(given.checkpoint.path, broken)
    (shard,) = (broken / "policy").glob("*.distcp")
    os.truncate(shard, 1000)
    refused(Given(Checkpoint(given.checkpoint.run, 3, broken), {}), tmp_path / "out", DEMO_MODEL, "has 1000 bytes")


def test_compare_lists_what_differs() -> None:
    a, b = Spec(torch.float32, (2, 3)), Spec(torch.float32, (3, 2))
    compare({"x": a}, {"x": a}, Path("m"))
    message = r"differs from m in 3 tensor\(s\): x: float32 \[2, 3\] -> float32 \[3, 2\]; y: .* -> None; z: None -> "
    with pytest.raises(UsageError, match=message):
        compare({"x": a, "y": a}, {"x": b, "z": a}, Path("m"))
    with pytest.raises(UsageError, match=r"float32 \[2, 3\] -> bfloat16 \[2, 3\]"):
        compare({"x": a}, {"x": Spec(torch.bfloat16, (2, 3))}, Path("m"))


# --- verification


@pytest.mark.slow
def test_verify_agrees_with_the_trainer(given: Given, tmp_path: Path) -> None:
    done = given.export(tmp_path / "exact", dtype="fp32", verify=True)
    found = done.verification
    assert found and found.exact and found.passed
    assert found.bound == 1e-5
    assert 0 < found.largest <= 1e-5
    assert found.tokens > 100
    rounded = given.export(tmp_path / "rounded", verify=True).verification
    assert rounded and rounded.passed and not rounded.exact
    assert found.mean < rounded.mean < 0.05


@pytest.mark.slow
def test_verify_sees_what_is_wrong(given: Given, tmp_path: Path) -> None:
    """One weight off by the least float32 step; a config that computes something else."""

    def check() -> None:
        verify(config(DEMO_MODEL), given.checkpoint.policy, DEMO_MODEL, tmp_path / "out", quiet)

    given.export(tmp_path / "out", dtype="fp32")
    file = tmp_path / "out/model.safetensors"
    weights = load_file(file)
    name = "model.layers.2.self_attn.k_proj.weight"
    weights[name][3, 5] = torch.nextafter(weights[name][3, 5], torch.tensor(9.0))
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(GateError, match=rf"{name} is not what the trainer holds") as caught:
        check()
    assert caught.value.exit_code == 4

    shutil.rmtree(tmp_path / "out")
    given.export(tmp_path / "out", dtype="fp32")
    raw = json.loads((tmp_path / "out/config.json").read_text())
    assert raw["rms_norm_eps"] == 1e-6
    (tmp_path / "out/config.json").write_text(json.dumps(raw | {"rms_norm_eps": 1e-5}))
    with pytest.raises(GateError, match=r"\d+ log-probs differ by .* at most"):
        check()


@pytest.mark.slow
def test_a_failed_verification_leaves_nothing(given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("da3po_cli.exporting.verify.EXACT_BOUND", 0.0)
    with pytest.raises(GateError, match="verification failed"):
        given.export(tmp_path / "out", dtype="fp32", verify=True)
    assert not list(tmp_path.iterdir())
