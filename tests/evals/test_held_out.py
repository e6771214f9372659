"""What validation during a run is asked, before an engine starts, and what it says of responses without a verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from da3po_cli.algos.types import Group, Prompt, Response
from da3po_cli.config.schema import Config, DataConfig, RolloutConfig, ValidationConfig
from da3po_cli.data.prompts import open_stream
from da3po_cli.errors import UsageError
from da3po_cli.evals.held_out import HeldOut, Validator
from da3po_cli.protocols import Sampling
from da3po_cli.training.build import _benches, _limits, _sampling

DEMO = Path(__file__).parents[2] / "da3po_cli" / "demo_model"  # a token is a character


class One:
    """A job of one rank."""

    rank, world, data_rank, data_size = 0, 1, 0, 1

    def barrier(self) -> None: ...
    def broadcast(self, value: Any) -> Any:
        return value


def config_of(benches: str, validation: str | None = None) -> Config:
    data = DataConfig(train="arith", validation=validation, template="none", max_prompt_tokens=10)
    return Config(data=data, rollout=RolloutConfig(max_tokens=20), validation=ValidationConfig(benches=benches))


def write(file: Path, *problems: str) -> str:
    file.write_text("".join(json.dumps({"prompt": text, "answer": "3"}) + "\n" for text in problems))
    return str(file)


def held_out(config: Config) -> list[HeldOut]:
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    stream = open_stream(config.data, tokenizer, "validation", 0) if config.data.validation else None
    return _benches(config, tokenizer, stream, lambda groups: None, One())  # pyright: ignore[reportArgumentType]


def limits(config: Config) -> dict[str, list[int]]:
    """Of each benchmark the longest responses to its prompts."""
    return {one.name: [_sampling(config).limit(prompt) for prompt in one.prompts] for one in held_out(config)}


def test_a_long_prompt_of_a_benchmark_has_shorter_responses_and_all_others_their_own(tmp_path: Path) -> None:
    short, long = write(tmp_path / "short.jsonl", "1+2=", "1" * 10), write(tmp_path / "long.jsonl", "1+2=", "1" * 25)
    assert limits(config_of(short)) == {"short": [20, 20]}
    config = config_of(f"{short},{long}")
    assert limits(config) == {"short": [20, 20], "long": [20, 5]}
    (note,) = _limits(config, held_out(config))
    assert note == (
        "validation on long: 1 of 2 prompts leave less than 20 tokens in a context of 30; responses to them are cut at "
        "5 to 5"
    )


@pytest.mark.parametrize("length", [30, 40])
def test_a_prompt_without_room_ends_the_start_of_the_run(tmp_path: Path, length: int) -> None:
    config = config_of(write(tmp_path / "long.jsonl", "1+2=", "1" * length))
    with pytest.raises(UsageError, match=f"prompt long-1 has {length} tokens and leaves no room") as caught:
        _limits(config, held_out(config))
    assert caught.value.where == "data.max_prompt_tokens=10"


def test_two_held_out_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    """The second one's metrics and counts would replace the first one's."""
    (tmp_path / "more").mkdir()
    one, other = write(tmp_path / "mine.jsonl", "1+2="), write(tmp_path / "more" / "mine.jsonl", "2+1=")
    with pytest.raises(UsageError, match="val/mine/"):
        held_out(config_of(other, validation=one))


class Broken:
    """An engine of which every second request fails."""

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Group]:
        good, failed = Response([5, 2], [0.0, 0.0], "3", "stop"), Response([], [], "", "failed")
        return [Group(prompt, [good, failed]) for prompt in prompts]

    def sleep(self) -> None: ...


def test_a_failed_request_counts_as_unknown_in_a_validation() -> None:
    """As docs/eval.md defines it; nothing else would show that an engine fails."""

    def grade(groups: Sequence[Group]) -> None:
        for response in (response for group in groups for response in group.responses):
            right = response.finish_reason != "failed"
            response.verdict, response.acc = ("correct", 1) if right else ("unknown", 0)

    prompt = Prompt("validation-0", (3, 4), "", "3", "", 0)
    validator = Validator([HeldOut("mine", [prompt], grade)], Broken(), Sampling(2, 20), None)
    metrics = validator().metrics
    assert (metrics["val/mine/avg@2"], metrics["val/mine/unknown"], metrics["val/mine/truncated"]) == (0.5, 0.5, 0.0)
