"""Overlong shaping: how many tokens it is over, for every algorithm, under presets and under a config of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from da3po_cli.algos.table import ALGORITHMS
from da3po_cli.config.load import load_config
from da3po_cli.config.plan import overlong_cache
from da3po_cli.config.presets import preset_names
from da3po_cli.main import execute
from da3po_cli.runs.resume import changes

SHAPED = ("da3po", "dapo")
OWN = "model: {path: demo, dtype: float32}\ndata: {train: arith, template: none, max_prompt_tokens: 64}\n"
OWN += "reward: {name: arith}\nrollout: {prompts: 32, group_size: 8, max_tokens: 100}\nparallel: {data: 1}\n"


def cache_of(files: list[str], *overrides: str) -> int:
    return overlong_cache(load_config(files, overrides, None, {}).config)


@pytest.mark.parametrize(("longest", "fifth"), [(20480, 4096), (16384, 3276), (96, 19), (4, 0)])
def test_dapo_takes_a_fifth_of_the_longest_response_and_the_others_nothing(longest: int, fifth: int) -> None:
    for name in ALGORITHMS:
        found = cache_of([], f"algo.name={name}", f"rollout.max_tokens={longest}")
        assert found == (fifth if name in SHAPED else 0), name


def test_a_number_of_tokens_comes_before_the_share_and_0_is_off() -> None:
    for name in ALGORITHMS:
        assert cache_of([], f"algo.name={name}", "algo.overlong_cache=7") == 7
        assert cache_of([], f"algo.name={name}", "algo.overlong_cache=0") == 0
        assert cache_of([], f"algo.name={name}", "algo.overlong_share=0.5", "rollout.max_tokens=11") == 5


@pytest.mark.parametrize(
    ("preset", "tokens"), [("demo", 16), ("smollm2-135m", 0), ("qwen3-4b", 4096), ("qwen3-8b", 4096)]
)
def test_a_preset_shapes_for_dapo_only(preset: str, tokens: int) -> None:
    for name in ALGORITHMS:
        assert cache_of([preset], f"algo.name={name}") == (tokens if name in SHAPED else 0), name


@pytest.mark.parametrize("preset", preset_names())
def test_no_preset_hides_either_key(preset: str) -> None:
    """A number of tokens in a preset would make algo.overlong_share a key without effect under it."""
    for name in ALGORITHMS:
        assert cache_of([preset], f"algo.name={name}", "algo.overlong_share=0.5", "rollout.max_tokens=8") == 4
        assert cache_of([preset], f"algo.name={name}", "algo.overlong_cache=3") == 3


def test_what_an_earlier_version_wrote_is_no_change_where_it_means_the_same() -> None:
    """A run's config.yaml of then has a number for every algorithm, and --config FILE the algorithm's share."""
    for name, tokens in (("dapo", 16), ("grpo", 0)):
        before = load_config(["demo"], [f"algo.name={name}", f"algo.overlong_cache={tokens}"], None, {}).config
        after = load_config(["demo"], [f"algo.name={name}"], None, {}).config
        assert list(changes(before, after)) == []
    off = load_config(["demo"], ["algo.overlong_cache=0"], None, {}).config
    assert ("algo.overlong_cache", 0, None) in changes(off, load_config(["demo"], [], None, {}).config)


def test_shorter_responses_take_the_papers_run_with_them() -> None:
    assert cache_of(["qwen3-4b"], "rollout.max_tokens=4000") == 800


@pytest.mark.parametrize("command", [["train", "--dry-run"], ["plan"]], ids=["train", "plan"])
def test_the_plan_says_it(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DA3PO_RUNS", str(tmp_path / "runs"))
    file = tmp_path / "own.yaml"
    file.write_text(OWN)

    def said(*overrides: str) -> str:
        assert execute([*command, "-c", str(file), *overrides]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("overlong")]
        return line.removeprefix("overlong").strip()

    assert said() == "the reward falls over the last 20 of 100 response tokens, factor 1"
    assert said("algo.overlong_factor=0.5", "algo.name=dapo", "algo.overlong_cache=8") == (
        "the reward falls over the last 8 of 100 response tokens, factor 0.5"
    )
    assert said("algo.name=grpo") == said("algo.overlong_cache=0") == said("algo.overlong_factor=0") == "no shaping"


def test_the_plan_as_json_has_the_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["plan", "-c", "demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["own"]["overlong_cache"] == 16


def test_the_table_of_algorithms_says_the_share(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["algos"]) == 0
    of = dict(text.split(": ", 1) for text in capsys.readouterr().out.replace("\n    ", " ").splitlines())
    assert {name for name in ALGORITHMS if "algo.overlong_share=0.2" in of[name]} == set(SHAPED)
