"""The weight sync between a Megatron policy and an engine that is transformers: no vLLM, the same interface."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from da3po_cli.config.schema import TrainConfig
from da3po_cli.errors import SyncError
from megatron_bridge import build_policy

PROBE = [[3, 1, 4, 1, 5, 9], [2, 6, 5], [3, 5, 8, 9, 7, 9, 3]]
TEMPERATURE = 0.7


class Engine:
    """Transformers behind the part of `VllmGenerator` that the sync sees; it starts with the weights of another model.

    Args:
        deaf: the name of a weight that it does not take.
    """

    dtype = "float32"

    def __init__(self, directory: Path, deaf: str = "") -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(directory)
        self.tied_head, self._deaf = bool(config.tie_word_embeddings), deaf
        torch.manual_seed(99)
        self.model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        state = self.model.state_dict()
        for name, tensor in weights:
            if name != self._deaf:
                state[name].copy_(tensor)

    def score(self, token_lists: list[list[int]]) -> list[list[float]]:
        found = []
        for tokens in token_lists:
            ids = torch.tensor([tokens])
            with torch.no_grad():
                table = self.model(ids).logits[0, :-1].log_softmax(-1)
            found.append(table.gather(1, ids[0, 1:, None])[:, 0].tolist())
        return found

    def largest(self, values: list[float]) -> list[float]:
        return values


def policy(models: Path, name: str, single: Any) -> Any:
    return build_policy(
        models / name, dtype="float32", parallel=single, train=TrainConfig(), temperature=TEMPERATURE, seed=1
    )


def sync(trainer: Any, engine: Any) -> Any:
    from da3po_cli.rollouts.sync import VllmSync

    return VllmSync(trainer, engine, PROBE, max_gap=1e-4)


@pytest.mark.parametrize("name", ["qwen3-tied", "qwen3-untied", "llama-untied"])
def test_all_weights_arrive_and_both_compute_the_same(models: Path, single: Any, name: str) -> None:
    """At first, and after the trainer's weights have changed; every number that transformers counts was sent once."""
    trainer, engine = policy(models, name, single), Engine(models / name)
    size = sum(param.nbytes for param in engine.model.parameters()) / 1e9
    start = engine.score(PROBE)
    both = sync(trainer, engine)
    report = both.push()
    assert 0 < both.probe_gap() < 1e-5
    assert report.gigabytes == pytest.approx(size)
    before = engine.score(PROBE)
    assert before != start
    with torch.no_grad():
        for param in trainer.chunks[0].parameters():
            param.mul_(1.1)
    assert both.probe_gap() > 1e-3
    both.push()
    assert 0 < both.probe_gap() < 1e-5
    assert engine.score(PROBE) != before


def test_an_engine_that_misses_a_weight_stops_the_run(models: Path, single: Any) -> None:
    trainer = policy(models, "qwen3-untied", single)
    for deaf in ("lm_head.weight", "model.layers.2.mlp.up_proj.weight"):
        with pytest.raises(SyncError, match=r"limit for prompts 0\.001"):
            sync(trainer, Engine(models / "qwen3-untied", deaf)).push()


def test_an_engine_whose_numbers_are_not_finite_stops_the_run(models: Path, single: Any) -> None:
    trainer = policy(models, "qwen3-tied", single)
    with torch.no_grad():
        trainer.chunks[0].module.decoder.final_layernorm.weight.fill_(math.nan)
    with pytest.raises(SyncError, match="differ by inf nats"):
        sync(trainer, Engine(models / "qwen3-tied")).push()
