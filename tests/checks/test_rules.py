"""Every cross check: one wrong value, one problem, with its key and a fix that helps."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from da3po_cli.checks.rules import check
from da3po_cli.config.load import load_config
from da3po_cli.config.models import SUPPORTED_ARCHITECTURES, is_hub_id, model_directory, model_facts
from da3po_cli.config.plan import CPU_RANKS, layout, logprob_gap_limit, updates_per_step
from da3po_cli.config.schema import Config, ParallelConfig
from da3po_cli.errors import UsageError

MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
}

BASE = (
    "data.train=arith",
    "data.validation=arith",
    "reward.name=arith",
    "data.max_prompt_tokens=64",
    "rollout.prompts=32",
    "rollout.group_size=8",
    "rollout.max_tokens=96",
    "train.mini_batch_prompts=16",
    "parallel.data=1",
)


def write_model(directory: Path, **changes: object) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(MODEL | changes))
    return directory


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def configured(model: Path | str, *overrides: str) -> Config:
    return load_config([], [f"model.path={model}", *BASE, *overrides], None, {}).config


def test_the_base_has_no_problem(model: Path) -> None:
    assert check(configured(model)) == []


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (["rollout.group_size=1"], "rollout.group_size", "a group of one"),
        (["train.mini_batch_prompts=12"], "train.mini_batch_prompts", "32 is not a multiple of"),
        (["train.mini_batch_prompts=64"], "train.mini_batch_prompts", "32 is not a multiple of"),
        (["rollout.temperature=0"], "rollout.temperature", "no log-probs"),
        (["rollout.temperature=0.005"], "rollout.temperature", "vLLM samples at 0.01 below that"),
        (["validation.temperature=0.009"], "validation.temperature", "vLLM samples at 0.01 below that"),
        (["rollout.gpu_memory=1.5"], "rollout.gpu_memory", "share"),
        (["rollout.max_logprob_gap=0"], "rollout.max_logprob_gap", "stop every run"),
        (["lambda=0"], "algo.daa_lambda", "lambda=0.0"),
        (["lambda=-1"], "algo.daa_lambda", "lambda=-1.0"),
        (["algo.daa_tau=0"], "algo.daa_tau", "(0, 1]"),
        (["algo.daa_tau=1.1"], "algo.daa_tau", "(0, 1]"),
        (["algo.clip_low=1"], "algo.clip_low", "1 - clip_low"),
        (["algo.clip_high=0"], "algo.clip_high", "above 0"),
        (["algo.dual_clip=1"], "algo.dual_clip", "above 1"),
        (["algo.kl_coef=-0.1"], "algo.kl_coef", "initial policy"),
        (["algo.std_ddof=2"], "algo.std_ddof", "0 or 1"),
        (["algo.std_power=-1"], "algo.std_power", "negative"),
        (["algo.tis_cap=0"], "algo.tis_cap", "above 0"),
        (["algo.max_rounds=0"], "algo.max_rounds", "at least 1"),
        (["algo.dynamic_sampling=false", "algo.carry_surplus=true"], "algo.carry_surplus", "no surplus"),
        (["algo.overlong_cache=96"], "algo.overlong_cache", "not below rollout.max_tokens=96"),
        (["algo.overlong_cache=-1"], "algo.overlong_cache", "negative"),
        (["algo.overlong_share=1"], "algo.overlong_share", "not in [0, 1)"),
        (["algo.overlong_share=-0.1"], "algo.overlong_share", "not in [0, 1)"),
        (["algo.overlong_factor=-1"], "algo.overlong_factor", "rewards length"),
        (["train.lr=0"], "train.lr", "above 0"),
        (["train.grad_clip=0"], "train.grad_clip", "above 0"),
        (["train.adam_beta2=1"], "train.adam_beta2", "[0, 1)"),
        (["train.warmup_steps=-1"], "train.warmup_steps", "negative"),
        (["validation.every=-1"], "validation.every", "negative"),
        (["validation.top_p=0"], "validation.top_p", "(0, 1]"),
        (["validation.samples=0"], "validation.samples", "at least 1"),
        (["checkpoint.keep=0"], "checkpoint.keep", "at least 1"),
        (["run.steps=0"], "run.steps", "at least 1"),
        (["run.name=latest"], "run.name", "cannot name a run"),
        (["run.name=a/b"], "run.name", "cannot name a run"),
        (["parallel.tensor=0"], "parallel.tensor", "at least 1"),
        (["parallel.virtual_pipeline=0"], "parallel.virtual_pipeline", "at least 1"),
        (["parallel.tensor=3", "rollout.tensor=3"], "parallel.tensor", "8 attention heads or 4 key-value heads"),
        (["parallel.tensor=16"], "parallel.tensor", "8 attention heads"),
        (["parallel.data=16", "rollout.tensor=16"], "rollout.tensor", "8 attention heads"),
        (["parallel.pipeline=8"], "parallel.pipeline", "the model's 6 layers"),
        (["parallel.pipeline=2", "parallel.virtual_pipeline=4"], "parallel.pipeline", "the model's 6 layers"),
        (["parallel.virtual_pipeline=2"], "parallel.virtual_pipeline", "parallel.pipeline=1"),
        (["parallel.pipeline=2", "parallel.pipeline_layers=2,3"], "parallel.pipeline_layers", "add up to"),
        (["parallel.pipeline=2", "parallel.pipeline_layers=6,0"], "parallel.pipeline_layers", "above 0"),
        (["parallel.pipeline=2", "parallel.pipeline_layers=2,2,2"], "parallel.pipeline_layers", "not 2 numbers"),
        (["parallel.pipeline=2", "parallel.pipeline_layers=two,four"], "parallel.pipeline_layers", "not 2 numbers"),
        (["parallel.sequence=true"], "parallel.sequence", "parallel.tensor=1"),
        (["parallel.context=2"], "parallel.context", "context parallelism is not supported"),
        (["parallel.expert=4"], "parallel.expert", "expert parallelism is not supported"),
        (["fp8.format=hybrid", "model.dtype=bfloat16"], "fp8.format", "this is a CPU"),
        (["fp8.format=hybrid", "model.dtype=float32"], "model.dtype", "needs model.dtype=bfloat16"),
        (["fp8.param_gather=true"], "fp8.param_gather", "without FP8 training"),
        (["fp8.format=e4m3", "fp8.recipe=delayed", "fp8.bf16_layers=1"], "fp8.recipe", "does not go with"),
        (["rollout.quantization=fp8"], "rollout.quantization", "this is a CPU"),
        (["rollout.quantization=fp8", "algo.tis=off"], "algo.tis", "does not correct for it"),
        (["rollout.quantization=fp8", "model.dtype=float32"], "model.dtype", "FP8 rollout weights need"),
        (["rollout.tensor=2"], "rollout.tensor", "does not divide the 1 ranks"),
        (["rollout.max_tokens=200"], "rollout.max_tokens", "64 + rollout.max_tokens=200 is above the model's 256"),
        (["data.max_prompt_tokens=400"], "rollout.max_tokens", "above the model's 256"),
        (["data.train=''"], "data.train", "is not set"),
        (["data.train=missing.jsonl", "reward.name=math"], "data.train", "data file not found"),
        (["data.validation=missing.parquet"], "data.validation", "data file not found"),
        (["data.train=notes.txt", "reward.name=math"], "data.train", "no file and no hub data set"),
        (["data.train=org/name"], "reward.name", "the built-in arithmetic task"),
    ],
)
def test_one_wrong_value_is_one_problem(model: Path, overrides: list[str], key: str, words: str) -> None:
    found = [problem for problem in check(configured(model, *overrides)) if problem.where == key]
    (problem,) = found
    assert words in problem.message
    assert problem.hint


@pytest.mark.parametrize(
    "overrides",
    [
        ["train.mini_batch_prompts=12"],
        ["train.mini_batch_prompts=12", "rollout.prompts=30"],
        ["rollout.max_tokens=200"],
        ["algo.overlong_cache=100"],
        ["parallel.pipeline=8"],
        ["parallel.pipeline=2", "parallel.pipeline_layers=2,3"],
        ["parallel.virtual_pipeline=2"],
        ["parallel.sequence=true"],
        ["parallel.tensor=16"],
        ["parallel.context=2"],
        ["fp8.format=hybrid"],
        ["rollout.tensor=2"],
        ["parallel.data=16", "rollout.tensor=16"],
    ],
)
def test_the_first_fix_of_a_hint_removes_the_problem(model: Path, overrides: list[str]) -> None:
    """Hints are commands: `key=value` or `key= one of value, ...` is applied as it stands."""
    (problem,) = check(configured(model, *overrides))
    fix = re.search(r"([\w.]+)= ?(?:one of )?(\d+(?:,\d+)*|false|none)", problem.hint or "")
    assert fix, problem.hint
    assert check(configured(model, *overrides, f"{fix[1]}={fix[2]}")) == []


@pytest.mark.parametrize("ranks", [3, 5, 48])
def test_responses_need_not_divide_over_data_parallel_ranks(model: Path, ranks: int) -> None:
    """2 prompts x 8 = 16 responses; of 48 ranks most get none. tests/training/test_train.py trains so."""
    config = configured(model, "rollout.prompts=4", "train.mini_batch_prompts=2", f"parallel.data={ranks}")
    assert check(config) == []


def test_a_data_file_of_another_kind_is_refused(model: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.touch()
    (problem,) = check(configured(model, f"data.train={notes}", "reward.name=math"))
    assert ".parquet" in problem.message
    rows = tmp_path / "rows.jsonl"
    rows.touch()
    (problem,) = check(configured(model, f"data.train={rows}", "reward.name=math"))
    assert problem.message == f"{rows} has no rows"
    rows.write_text('{"question": "1+1", "gold": "2"}\n')
    assert check(configured(model, f"data.train={rows}", "reward.name=math")) == []
    (problem,) = check(configured(model, f"data.train={rows}", "reward.name=math", "data.answer_key=result"))
    assert problem.message == "no answer column (result); found: question, gold"
    assert check(configured(model, "data.train=org/name", "reward.name=math")) == []


def test_all_problems_are_listed(tmp_path: Path) -> None:
    config = configured(tmp_path / "nowhere", "rollout.group_size=1", "lambda=0", "train.lr=0", "rollout.tensor=2")
    assert [problem.where for problem in check(config)] == [
        "rollout.group_size",
        "algo.daa_lambda",
        "train.lr",
        "model.path",
        "rollout.tensor",
    ]


def test_layout_against_devices_and_launchers(model: Path) -> None:
    left_open = "parallel.data=null"
    config = configured(model, left_open)
    assert layout(config).world == min(CPU_RANKS, len(os.sched_getaffinity(0)))
    assert layout(config, devices=8).data == 8
    assert layout(configured(model, left_open, "parallel.tensor=2", "parallel.pipeline=2")).data == 1
    assert layout(configured(model, left_open, "parallel.tensor=2", "parallel.pipeline=2"), devices=8).data == 2
    assert layout(configured(model, left_open, "parallel.tensor=2"), world=4).data == 2
    assert check(config, devices=8) == []
    (problem,) = check(configured(model, "parallel.data=4"), devices=2)
    assert "4 ranks, but 2 CUDA device(s)" in problem.message
    (problem,) = check(configured(model, "parallel.tensor=4"), devices=2)
    assert "4 ranks, but 2 CUDA device(s)" in problem.message
    (problem,) = check(configured(model, "parallel.data=2"), world=4)
    assert "the launcher started 4" in problem.message
    assert problem.hint == "parallel.data=4"
    assert check(configured(model, "parallel.data=4"), devices=0) == []  # ranks may outnumber the cores of a CPU


def test_updates_per_step() -> None:
    config = Config()
    assert updates_per_step(config) == 16  # DAPO: 512 prompts in mini batches of 32
    assert updates_per_step(replace(config, train=replace(config.train, epochs=2))) == 32


def test_models(model: Path, tmp_path: Path) -> None:
    facts = model_facts(str(model))
    assert facts is not None
    assert (facts.layers, facts.heads, facts.kv_heads) == (6, 8, 4)
    without_groups = write_model(tmp_path / "mha", num_key_value_heads=None)
    found = model_facts(str(without_groups))
    assert found is not None
    assert found.kv_heads == 8
    for architecture in SUPPORTED_ARCHITECTURES:
        assert model_facts(str(write_model(tmp_path / "any", architectures=[architecture])))


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda d: write_model(d, architectures=["GPT2LMHeadModel"]), "unsupported architecture GPT2LMHeadModel"),
        (lambda d: write_model(d, architectures=None), "unsupported architecture (none)"),
        (lambda d: d.mkdir(), "no config.json"),
        (lambda d: (d.mkdir(), (d / "config.json").write_text("{")), "cannot read"),
        (lambda d: (d.mkdir(), (d / "config.json").write_text("[]")), "no JSON object"),
        (lambda d: None, "model directory not found"),
    ],
)
def test_wrong_models_are_named(tmp_path: Path, prepare: object, words: str) -> None:
    prepare(tmp_path / "wrong")  # type: ignore[operator]
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        model_facts(str(tmp_path / "wrong"))
    assert caught.value.hint


def test_hub_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_id("Qwen/Qwen3-4B-Base")
    assert not is_hub_id("./Qwen/Qwen3")
    assert not is_hub_id("a/b/c")
    assert model_directory("Qwen/Qwen3-4B-Base", {"HF_HOME": str(tmp_path)}) is None
    snapshot = tmp_path / "hub/models--Qwen--Qwen3-4B-Base/snapshots/abc"
    snapshot.mkdir(parents=True)
    write_model(snapshot)
    refs = snapshot.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    assert model_directory("Qwen/Qwen3-4B-Base", {"HF_HOME": str(tmp_path)}) == snapshot
    Path("Qwen/Qwen3-4B-Base").mkdir(parents=True)
    assert model_directory("Qwen/Qwen3-4B-Base", {}) == Path("Qwen/Qwen3-4B-Base")


@pytest.mark.parametrize(
    ("recipe", "capability", "works"),
    [
        ("delayed", 8.0, False),  # Ampere
        ("delayed", 8.9, True),  # Ada
        ("tensorwise", 8.9, True),
        ("blockwise", 8.9, False),
        ("blockwise", 9.0, True),  # Hopper
        ("mxfp8", 9.0, False),
        ("mxfp8", 10.0, True),  # Blackwell
        ("mxfp8", None, True),  # not known: TransformerEngine will say so
    ],
)
def test_fp8_recipes_want_a_generation_of_gpus(model: Path, recipe: str, capability: float | None, works: bool) -> None:
    config = configured(model, "model.dtype=bfloat16", "fp8.format=hybrid", f"fp8.recipe={recipe}")
    found = check(config, devices=1, capability=capability)
    assert [problem.where for problem in found] == ([] if works else ["fp8.format"])
    if not works:
        assert f"this device has {capability}" in found[0].message


@pytest.mark.parametrize(
    ("pipeline", "virtual", "layers", "counts"),
    [
        (1, 1, 6, [6]),
        (2, 1, 6, [3, 3]),
        (4, 1, 6, [1, 2, 2, 1]),  # the ends also hold the embedding and the head
        (4, 1, 7, [2, 2, 2, 1]),
        (3, 1, 7, [2, 3, 2]),
        (2, 2, 8, [2, 2, 2, 2]),
        (2, 3, 7, [1, 1, 2, 1, 1, 1]),
    ],
)
def test_layers_are_spread_over_the_stages(pipeline: int, virtual: int, layers: int, counts: list[int]) -> None:
    assert ParallelConfig(pipeline=pipeline, virtual_pipeline=virtual).stage_layers(layers) == counts
    assert sum(counts) == layers


def test_given_layers_of_the_stages() -> None:
    assert ParallelConfig(pipeline=2, pipeline_layers="3, 5").stage_layers(8) == [3, 5]


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_tensor_ranks_may_share_a_key_value_head(model: Path, tensor: int) -> None:
    assert check(configured(model, f"parallel.tensor={tensor}", f"rollout.tensor={tensor}")) == []


@pytest.mark.parametrize(
    ("overrides", "limit"),
    [
        (["model.dtype=float32"], 1e-4),
        (["model.dtype=bfloat16"], 0.05),
        (["model.dtype=bfloat16", "rollout.quantization=fp8"], 0.1),
        (["model.dtype=bfloat16", "fp8.format=hybrid"], 0.1),
        (["model.dtype=bfloat16", "rollout.max_logprob_gap=0.2"], 0.2),
    ],
)
def test_the_limit_of_the_log_prob_gap_follows_the_rounding(overrides: list[str], limit: float) -> None:
    assert logprob_gap_limit(load_config([], overrides, {}, {}).config) == limit
