"""Real vLLM engines against transformers: log-probs, seeds, stops, resharding from transformers and Megatron."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from da3po_cli.rollouts.engine import sample_seed, split_evenly

EOS, MAX_TOKENS = 2, 24
LETTERS = ["", "", "", *"0123456789+-=,?ab"]  # of each token id; special tokens have no text


@given(count=st.integers(0, 1000), parts=st.integers(1, 64))
def test_the_split_over_engines_covers_everything_once_and_evenly(count: int, parts: int) -> None:
    shares = [split_evenly(count, parts, part) for part in range(parts)]
    assert [index for share in shares for index in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_sample_seeds_differ_and_do_not_change() -> None:
    seeds = [sample_seed(seed, uid, number) for seed in range(3) for uid in ("a", "a|1") for number in range(200)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    # printf '1|a|2' | b2sum -l 64, shifted right by one bit
    assert sample_seed(1, "a", 2) == 0x9DF4376B4BAE7709 >> 1


@pytest.fixture(scope="module")
def one(run_world: Any) -> dict[str, Any]:
    return run_world(1, "one")[0]


def load(models: Path, name: str, weights: dict[str, torch.Tensor] | None = None) -> Any:
    """The model in float64: exact beside float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(models / name, dtype=torch.float64)
    if weights is not None:
        missing, unexpected = model.load_state_dict({k: v.double() for k, v in weights.items()}, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}
    return model


def expected_logprobs(model: Any, prompt: Any, responses: list[list[int]], temperature: float) -> list[torch.Tensor]:
    """log softmax(logits / T) of the tokens of each response; they are padded on the right for one causal pass."""
    longest = max(map(len, responses))
    rows = torch.tensor([[*prompt, *one, *[0] * (longest - len(one))] for one in responses])
    with torch.no_grad():
        table = (model(rows).logits[:, len(prompt) - 1 : -1] / temperature).log_softmax(-1)
    values = table.gather(2, rows[:, len(prompt) :, None])[..., 0]
    return [row[: len(one)] for row, one in zip(values, responses, strict=True)]


def worst_gap(model: Any, groups: list[Any], temperature: float) -> float:
    gaps = []
    for group in groups:
        expected = expected_logprobs(model, group.prompt.token_ids, tokens_of([group]), temperature)
        gaps += [
            (wanted - torch.tensor(one.logprobs)).abs().max().item()
            for wanted, one in zip(expected, group.responses, strict=True)
        ]
    return max(gaps)


def tokens_of(groups: list[Any]) -> list[list[int]]:
    return [response.token_ids for group in groups for response in group.responses]


pytestmark = pytest.mark.slow


def test_sampled_logprobs_are_those_of_the_tempered_softmax(one: dict[str, Any], models: Path) -> None:
    model = load(models, "qwen3")
    assert worst_gap(model, one["groups"], 1.0) < 1e-4
    assert worst_gap(model, one["cool"], 0.7) < 1e-4
    assert worst_gap(model, one["cool"], 1.0) > 0.1  # the temperature matters


def test_scores_are_those_of_the_softmax(one: dict[str, Any], models: Path) -> None:
    model = load(models, "qwen3")
    sequences = [list(group.prompt.token_ids) + group.responses[0].token_ids for group in one["groups"]]
    for sequence, values in zip(sequences, one["scores"], strict=True):
        (expected,) = expected_logprobs(model, sequence[:1], [sequence[1:]], 1.0)
        torch.testing.assert_close(torch.tensor(values).double(), expected, atol=1e-4, rtol=0)


def test_the_first_token_follows_the_tempered_distribution(one: dict[str, Any], models: Path) -> None:
    """Chi-square of 2048 samples; their seeds differ by the sample number only."""
    model, group = load(models, "qwen3"), one["first tokens"][0]
    with torch.no_grad():
        logits = model(torch.tensor([group.prompt.token_ids])).logits[0, -1]
    counts = torch.bincount(torch.tensor([r.token_ids[0] for r in group.responses]), minlength=len(LETTERS))
    expected = 2048 * (logits / 0.7).softmax(-1)
    likely = expected >= 5
    observed = torch.cat([counts[likely], counts[~likely].sum()[None]]).double()
    wanted = torch.cat([expected[likely], expected[~likely].sum()[None]]).clamp(min=1e-9)
    freedom = len(wanted) - 1
    assert freedom >= 5
    assert ((observed - wanted) ** 2 / wanted).sum().item() < freedom + 5 * math.sqrt(2 * freedom)


def test_greedy_takes_the_most_likely_token(one: dict[str, Any], models: Path) -> None:
    model = load(models, "qwen3")
    for group in one["greedy"]:
        response = group.responses[0].token_ids
        with torch.no_grad():
            logits = model(torch.tensor([[*group.prompt.token_ids, *response]])).logits[0]
        assert logits[len(group.prompt.token_ids) - 1 : -1].argmax(-1).tolist() == response


def test_a_seed_fixes_the_samples_whatever_else_is_in_the_batch(one: dict[str, Any]) -> None:
    assert one["again"] == one["groups"]
    # the same prompt alone: 8 sequences at a time in place of 16 of several prompts
    assert tokens_of(one["alone"]) == tokens_of([one["groups"][4]])
    assert tokens_of(one["seed 6"]) != tokens_of(one["groups"])
    # an immediate stop may come twice, a longer response hardly
    long = [[tuple(one.token_ids) for one in group.responses if len(one.token_ids) > 3] for group in one["groups"]]
    assert sum(map(len, long)) >= 24 and all(len(set(group)) == len(group) for group in long)
    assert [group.prompt.uid for group in one["groups"]] == [f"p{index}" for index in range(6)]


def test_responses_end_at_the_stop_token_or_the_limit(one: dict[str, Any]) -> None:
    responses = [response for group in one["groups"] for response in group.responses]
    assert {response.finish_reason for response in responses} == {"stop", "length"}
    for response in responses:
        ended = response.finish_reason == "stop"
        assert EOS not in response.token_ids[:-1]
        assert (response.token_ids[-1] == EOS) if ended else (len(response.token_ids) == MAX_TOKENS)
        assert len(response.logprobs) == len(response.token_ids)
        assert response.text == "".join(LETTERS[token] for token in response.token_ids)


def test_each_prompt_has_its_own_limit_and_keeps_its_samples(one: dict[str, Any]) -> None:
    """A response is the beginning of the one that a wider context gives, and as long as its own prompt leaves room."""
    streamed = one["narrow, streamed"]
    for at, (narrow, wide) in enumerate(zip(one["narrow"], one["groups"], strict=True)):
        limit = 12 - len(narrow.prompt.token_ids)
        assert 3 <= limit <= 7
        assert tokens_of([narrow]) == [tokens[:limit] for tokens in tokens_of([wide])]
        assert any(response.finish_reason == "length" for response in narrow.responses)
        assert [streamed[8 * at + number].token_ids for number in range(8)] == tokens_of([narrow])
    (long,) = one["long"]
    assert len(long.prompt.token_ids) == 37
    assert all(1 <= len(response.token_ids) <= 3 for response in long.responses)


def test_progress_counts_up_to_all_samples(one: dict[str, Any]) -> None:
    done = [step[0] for step in one["progress"]]
    assert done[-1] == 48 and all(left <= right for left, right in pairwise(done))
    assert {step[1] for step in one["progress"]} == {48}


def test_changed_weights_reach_the_engine(one: dict[str, Any], models: Path) -> None:
    assert all(0 < gap < 1e-5 for gap in one["gaps"])
    model = load(models, "qwen3", one["changed weights"])
    assert worst_gap(model, one["changed"], 0.7) < 1e-4
    assert worst_gap(load(models, "qwen3"), one["changed"], 0.7) > 1e-2
    parameters = sum(weight.numel() for weight in one["changed weights"].values())
    assert one["reports"][0].gigabytes == pytest.approx(4 * parameters / 1e9)


def test_cached_prefixes_are_of_the_present_weights(one: dict[str, Any], models: Path) -> None:
    """The first block of a long prompt is cached, and computed anew once the weights have changed."""
    (first, before), (second, after) = one["prefixes"]
    assert worst_gap(load(models, "qwen3", first), before, 1.0) < 1e-4
    assert worst_gap(load(models, "qwen3", second), after, 1.0) < 1e-4
    assert worst_gap(load(models, "qwen3", first), after, 1.0) > 1e-2


@pytest.mark.parametrize("name", ["qwen3-tied", "qwen2-tied", "llama"])
def test_other_families_and_tied_heads_sync(one: dict[str, Any], name: str) -> None:
    before, after, report, size = one[name]
    assert before < 1e-5 and after < 1e-5
    assert report.gigabytes == pytest.approx(size / 1e9)  # a tied head is counted once


def test_a_trainer_that_the_engine_does_not_follow_stops_the_run(one: dict[str, Any]) -> None:
    kind, message, hint = one["errors"]["gap"]
    assert kind == "SyncError"
    assert "limit for prompts 0.05" in message and "float32" in message
    assert hint is not None and "rollout.max_logprob_gap" in hint
    kind, message, _ = one["errors"]["nan"]
    assert kind == "SyncError" and "inf" in message


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        ("sound", None),
        ("sound at 0.7", None),
        ("sampled at 0.7, scored at 1", "log-probs are those of temperature 0.7, the trainer's of 1:"),
        ("sampled at 1, scored at 0.7", "log-probs are those of temperature 1, the trainer's of 0.7:"),
        ("swapped", "the engine has other weights than the trainer"),
        ("stale", "the engine has other weights than the trainer"),
    ],
)
def test_rollouts_tell_why_trainer_and_engine_disagree(one: dict[str, Any], case: str, cause: str | None) -> None:
    found = one["verdicts"][case]
    if cause is None:
        assert found is None
    else:
        kind, message, hint = found
        assert kind == "SyncError" and hint
        assert cause in message and "(limit of both 0.0001)" in message


def test_samples_of_broken_weights_are_failed_not_wrong(one: dict[str, Any]) -> None:
    for response in one["nan"][0].responses:
        assert (response.finish_reason, response.token_ids, response.text) == ("failed", [], "")


@pytest.mark.parametrize(
    ("case", "kind", "words", "fix"),
    [
        ("prompt", "UsageError", ["prompt long has 37 tokens and its responses up to 4", "for 40 together"], "to 41"),
        ("response", "UsageError", ["prompt p4 has 9 tokens", "responses up to 32", "for 40 together"], "to 41"),
        ("streamed", "UsageError", ["prompt long has 37 tokens and its responses up to 4"], "to 41"),
        ("engines", "UsageError", ["1 ranks", "engines of 3"], "rollout.tensor"),
        ("context", "EnvironmentProblem", ["vLLM can't start", "max_model_len"], "rollout.max_tokens"),
        ("probe", "UsageError", ["none of the 1 probe sequences"], "two tokens"),
    ],
)
def test_errors_name_value_and_fix(one: dict[str, Any], case: str, kind: str, words: list[str], fix: str) -> None:
    seen, message, hint = one["errors"][case]
    assert seen == kind
    assert all(word in message for word in words), message
    assert hint is not None and fix in hint


def test_vllm_leaves_no_trace_in_the_process(run_world: Any) -> None:
    one, printed = run_world(1, "one")
    assert one["environment"][0] == one["environment"][1]
    assert torch.equal(*one["random state"])
    assert printed.strip() == ""


@pytest.mark.parametrize("job", ["1x2", "2x1"], ids=["rollout TP 2, training DP 2", "rollout TP 1, training TP 2"])
@pytest.mark.parametrize("name", ["qwen3", "qwen3-tied"])
def test_a_megatron_policy_and_its_engines_agree(
    run_world: Any, one: dict[str, Any], models: Path, job: str, name: str
) -> None:
    seen = run_world(2, job)[0][name]
    assert all(gap <= 1e-5 for gap in seen["gaps"])
    assert worst_gap(load(models, name), seen["groups"], 1.0) < 1e-4
    assert worst_gap(load(models, name, seen["weights"]), seen["changed"], 1.0) < 1e-4
    assert tokens_of(seen["odd"]) == tokens_of(seen["groups"])[:1]  # one sample for two engines
    if name == "qwen3":  # the same samples as one engine on one rank draws, but for rare ties of rounding
        same = [left == right for left, right in zip(tokens_of(seen["groups"]), tokens_of(one["groups"]), strict=True)]
        assert sum(same) >= 0.95 * len(same)
