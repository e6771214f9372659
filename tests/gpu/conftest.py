"""Models and batches for the checks on one GPU (`scripts/gpu_check.sh`); without a CUDA device they are skipped.

A policy is built for a kind of layers: "te" is TransformerEngine's, skipped where that is not installed, and "local"
Megatron's own, also where TransformerEngine is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.get_closest_marker("gpu")]
    if not here:
        return
    import torch

    if not torch.cuda.is_available():
        for item in here:
            item.add_marker(pytest.mark.skip(reason=f"no CUDA device (torch {torch.__version__})"))


# The kernels of FP8 and of packed attention want sizes that are multiples of 16 to 128.
SMALL: dict[str, Any] = dict(
    vocab_size=1000,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=2048,
    initializer_range=0.1,  # log-probs that differ from token to token
)
# The shape of Qwen3-0.6B.
WIDE: dict[str, Any] = dict(
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
)


def make_model(directory: Path, family: str, dtype: str = "float32", **fields: Any) -> Path:
    """Write a random model whose norms and biases are not trivial, with a tokenizer (its ids are below the vocabulary).

    It is made on the GPU, which for WIDE takes seconds.
    """
    import torch
    import transformers as hf

    kinds = {
        "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM),
        "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM),
        "llama": (hf.LlamaConfig, hf.LlamaForCausalLM),
    }
    config, model_class = kinds[family]
    torch.manual_seed(0)
    with torch.device("cuda"):
        model: Any = model_class(config(**fields))
    for name, param in model.named_parameters():
        if param.ndim == 1:
            torch.nn.init.normal_(param, mean=1.0 if "norm" in name else 0.0, std=0.3)
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    for file in (REPOSITORY / "da3po_cli" / "demo_model").glob("tokenizer*.json"):
        shutil.copy(file, directory)
    del model
    torch.cuda.empty_cache()
    return directory


@pytest.fixture(scope="session")
def small_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    """small_of(family, tied): a small model in float32."""

    def make(family: str, tied: bool) -> Path:
        fields = {key: value for key, value in SMALL.items() if family != "qwen2" or key != "head_dim"}
        return make_model(tmp_path_factory.mktemp(family), family, tie_word_embeddings=tied, **fields)

    return make


@pytest.fixture(scope="session")
def small(small_of: Callable[[str, bool], Path]) -> Path:
    """A small Qwen3 in float32, tied."""
    return small_of("qwen3", True)


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for timings, in bfloat16: DA3PO_GPU_MODEL, else random weights in the shape of Qwen3-0.6B."""
    given = os.environ.get("DA3PO_GPU_MODEL")
    return Path(given) if given else make_model(tmp_path_factory.mktemp("wide"), "qwen3", "bfloat16", **WIDE)


@pytest.fixture(scope="session")
def parallel() -> Iterator[Any]:
    """A world of this one process and one GPU."""
    from megatron_bridge.parallel import initialize

    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        os.environ.pop(name, None)
    found = initialize(1, 1, seed=1)
    yield found
    found.shutdown()


@pytest.fixture
def build(parallel: Any, need_te: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """build(model, layers, dtype, train=..., fp8=...): a policy with the given kind of layers."""
    from da3po_cli.config.schema import TrainConfig
    from megatron_bridge import backends, build_policy

    def make(model: Path, layers: str, dtype: str = "bfloat16", train: Any = None, **options: Any) -> Any:
        if layers == "te":
            need_te()
        else:
            monkeypatch.setattr(backends, "choose_backend", lambda *_: backends.Local())
        options = {"temperature": 1.0, "seed": 1, **options}
        policy = build_policy(model, dtype=dtype, parallel=parallel, train=train or TrainConfig(), **options)
        assert isinstance(policy.backend, backends.TransformerEngine if layers == "te" else backends.Local)
        return policy

    return make


@pytest.fixture
def batches() -> Callable[..., list[Any]]:
    """batches(rows, length, vocab, per_batch): micro-batches of random sequences of unlike lengths up to `length`."""
    import torch

    from da3po_cli.algos.batching import collate
    from da3po_cli.algos.types import Trajectory

    def make(rows: int = 8, length: int = 96, vocab: int = 1000, per_batch: int = 8, seed: int = 0) -> list[Any]:
        generator = torch.Generator().manual_seed(seed)
        trajectories = []
        for row in range(rows):
            total = length - (length // 2) * row // rows
            ids = torch.randint(0, vocab, (total,), generator=generator).tolist()
            trajectories.append(Trajectory(tuple(ids[:4]), ids[4:], [0.0] * (total - 4), 1.0))
        return [collate(trajectories, range(start, start + per_batch)) for start in range(0, rows, per_batch)]

    return make


@pytest.fixture
def reference() -> Callable[..., Any]:
    """reference(model, batch, dtype): log-probs [B, S] of transformers on the GPU, 0 where the mask is False."""
    import torch
    from transformers import AutoModelForCausalLM

    def score(model: Path, batch: Any, dtype: str) -> torch.Tensor:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).cuda().eval()
        out = torch.zeros(batch.mask.shape)
        for row in range(len(batch.mask)):
            length = int(batch.mask[row].nonzero().max()) + 1
            with torch.no_grad():
                logits = loaded(batch.tokens[row : row + 1, :length].cuda()).logits[0].float()
            picked = torch.log_softmax(logits, -1).gather(1, batch.targets[row, :length, None].cuda())
            out[row, :length] = picked[:, 0].cpu()
        return torch.where(batch.mask, out, 0.0)

    return score


@pytest.fixture
def need_te() -> Callable[[], None]:
    """need_te(): skip without TransformerEngine; one that is installed and does not load is a failure."""

    def check() -> None:
        if importlib.util.find_spec("transformer_engine") is None:
            pytest.skip("TransformerEngine is not installed")
        importlib.import_module("transformer_engine.pytorch")

    return check


@pytest.fixture
def cross_entropy() -> Callable[[int], Any]:
    """cross_entropy(tokens): a loss function with that global denominator."""

    def make(tokens: int) -> Any:
        def loss(logprobs: Any, entropy: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
            return -(logprobs * batch.mask).sum() / tokens, {"tokens": batch.mask.sum()}

        return loss

    return make
