"""Parameter counts against the published totals, and the share of each rank against the whole."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from da3po_cli.config.models import DEMO_MODEL, facts_from, model_facts
from da3po_cli.config.schema import ParallelConfig
from da3po_cli.errors import UsageError
from da3po_cli.planning.known import known_models, planned_facts
from da3po_cli.planning.shape import rank_parameters, shape_of

QWEN3, QWEN2, LLAMA = "Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM"
# hub id: architecture, hidden, intermediate, layers, heads, key-value heads, head_dim, vocabulary, tied, parameters
PUBLISHED: dict[str, tuple[str, int, int, int, int, int, int | None, int, bool, int]] = {
    "Qwen/Qwen3-0.6B": (QWEN3, 1024, 3072, 28, 16, 8, 128, 151936, True, 596_049_920),
    "Qwen/Qwen3-1.7B": (QWEN3, 2048, 6144, 28, 16, 8, 128, 151936, True, 1_720_574_976),
    "Qwen/Qwen3-4B": (QWEN3, 2560, 9728, 36, 32, 8, 128, 151936, True, 4_022_468_096),
    "Qwen/Qwen3-8B": (QWEN3, 4096, 12288, 36, 32, 8, 128, 151936, False, 8_190_735_360),
    "Qwen/Qwen3-14B": (QWEN3, 5120, 17408, 40, 40, 8, 128, 151936, False, 14_768_307_200),
    "Qwen/Qwen3-32B": (QWEN3, 5120, 25600, 64, 64, 8, 128, 151936, False, 32_762_123_264),
    "Qwen/Qwen2.5-1.5B": (QWEN2, 1536, 8960, 28, 12, 2, None, 151936, True, 1_543_714_304),
    "Qwen/Qwen2.5-7B": (QWEN2, 3584, 18944, 28, 28, 4, None, 152064, False, 7_615_616_512),
    "Qwen/Qwen2.5-32B": (QWEN2, 5120, 27648, 64, 40, 8, None, 152064, False, 32_763_876_352),
    "meta-llama/Llama-3.1-8B": (LLAMA, 4096, 14336, 32, 32, 8, None, 128256, False, 8_030_261_248),
    "meta-llama/Llama-3.1-70B": (LLAMA, 8192, 28672, 80, 64, 8, None, 128256, False, 70_553_706_496),
}


def written(row: tuple[Any, ...]) -> dict[str, Any]:
    """The fields of config.json."""
    architecture, hidden, ffn, layers, heads, groups, head_dim, vocab, tied, _ = row
    fields = dict(
        architectures=[architecture],
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        vocab_size=vocab,
        tie_word_embeddings=tied,
    )
    return fields if head_dim is None else {**fields, "head_dim": head_dim}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_total(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(written(PUBLISHED[name])))
    facts = model_facts(str(tmp_path))
    assert facts is not None
    assert shape_of(facts).parameters == PUBLISHED[name][-1]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_table_of_models_agrees(name: str) -> None:
    facts, source = planned_facts(name)
    assert facts is not None and "table" in source
    assert shape_of(facts) == shape_of(facts_from(written(PUBLISHED[name])))


def test_every_entry_of_the_table_is_whole() -> None:
    for name in known_models():
        facts, _ = planned_facts(name)
        assert facts is not None and facts.max_positions
        size = re.search(r"-([\d.]+)([BM])\b", name)
        assert size is not None
        billions = float(size[1]) / (1000 if size[2] == "M" else 1)
        assert 0.85 < shape_of(facts).parameters / 1e9 / billions < 1.3, name  # the name rounds


def test_a_config_on_this_machine_comes_before_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "Qwen/Qwen3-0.6B"
    repository = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("abc")
    (snapshot / "config.json").write_text(json.dumps({**written(PUBLISHED[name]), "num_hidden_layers": 27}))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    facts, source = planned_facts(name)
    assert facts is not None and facts.layers == 27
    assert source == str(snapshot / "config.json")
    assert planned_facts("somebody/unheard-of") == (None, "")


def test_the_demo_equals_its_file() -> None:
    """The header of a safetensors file is 8 bytes of length, then JSON."""
    with (DEMO_MODEL / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    count = 0
    for key, entry in header.items():
        size = 1
        for side in entry.get("shape", []):
            size *= side
        count += size if key != "__metadata__" else 0
    facts = model_facts("demo")
    assert facts is not None
    assert shape_of(facts).parameters == count


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size"])
def test_a_config_without_sizes_is_named(key: str) -> None:
    fields = {name: value for name, value in written(PUBLISHED["Qwen/Qwen3-4B"]).items() if name != key}
    with pytest.raises(UsageError, match=key):
        shape_of(facts_from(fields))


@pytest.mark.parametrize("name", ["Qwen/Qwen3-4B", "Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-70B"])
@pytest.mark.parametrize("parallel", [ParallelConfig(), ParallelConfig(pipeline=4), ParallelConfig(tensor=4)])
def test_the_ranks_hold_the_model(name: str, parallel: ParallelConfig) -> None:
    """Summed over stages; tensor-parallel ranks repeat the norms, and a tied pipeline its embedding."""
    facts, _ = planned_facts(name)
    assert facts is not None
    shape = shape_of(facts)
    ranks = [rank_parameters(shape, parallel, stage, fused=True) for stage in range(parallel.pipeline)]
    total = parallel.tensor * sum(one.size for chunks in ranks for chunk in chunks for one in chunk)
    extra = (parallel.tensor - 1) * (2 * shape.layers + 1) * shape.hidden
    extra += (parallel.tensor - 1) * shape.layers * 2 * shape.head_dim if shape.qk_norm else 0
    extra += shape.vocab * shape.hidden if shape.tied and parallel.pipeline > 1 else 0
    assert shape.vocab % (16 * parallel.tensor) == 0  # no padding in these
    assert total == shape.parameters + extra
