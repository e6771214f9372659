"""Tiny models with a character tokenizer, and a world of ranks that runs engines.py on them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
CHARACTERS = "0123456789+-=,?ab"
SPECIAL = ["<pad>", "<bos>", "<eos>"]
EOS = SPECIAL.index("<eos>")
# name -> (family, tied). 20 tokens are no multiple of 64: vLLM pads them.
MODELS = {
    "qwen3": ("qwen3", False),
    "qwen3-tied": ("qwen3", True),
    "qwen2-tied": ("qwen2", True),
    "llama": ("llama", False),
}


def make_tokenizer() -> Any:
    """One token per character, like the demo's."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {token: index for index, token in enumerate([*SPECIAL, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")


def make_model(directory: Path, family: str, tied: bool) -> None:
    """Random weights that give peaked, position-dependent distributions; norms and biases are not trivial."""
    import transformers as hf

    fields: dict[str, Any] = dict(
        vocab_size=len(SPECIAL) + len(CHARACTERS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    torch.manual_seed(len(family) + tied)
    if family == "qwen3":
        model: Any = hf.Qwen3ForCausalLM(hf.Qwen3Config(**fields, head_dim=32))
    elif family == "qwen2":
        model = hf.Qwen2ForCausalLM(hf.Qwen2Config(**{**fields, "hidden_size": 128}))
    else:
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**fields, head_dim=32))
    for name, param in model.named_parameters():
        if param.ndim == 1:
            torch.nn.init.normal_(param, mean=1.0 if "norm" in name else 0.0, std=0.3)
    model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rollout-models")
    for name, (family, tied) in MODELS.items():
        make_model(root / name, family, tied)
    return root


@pytest.fixture(scope="session")
def run_world(
    models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int, str], tuple[Any, str]]]:
    """(ranks, job) -> (what rank 0 of `engines.py` saved, everything that the ranks printed); each job runs once."""
    scratch = tmp_path_factory.mktemp("rollout-world")
    leftover = Path("/dev/shm/-tp:0-[0-1]-cpushm_0")  # of a job that was killed, under vLLM's own name
    if leftover.parent.is_dir():
        leftover.touch()

    @cache
    def run(ranks: int, job: str) -> tuple[Any, str]:
        path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
        clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        out = scratch / f"{job}.pt"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        ran = subprocess.run(
            [*torchrun, f"--nproc-per-node={ranks}", str(HERE / "engines.py"), job, str(models), str(out)],
            env={**clean, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert ran.returncode == 0, ran.stderr[-6000:]
        return torch.load(out, weights_only=False), ran.stdout + ran.stderr

    yield run
    leftover.unlink(missing_ok=True)
