"""Trainer and rollout engine compute the same, or the run stops before it learns from the difference, and says why."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import demo_runs
import here
import pytest
import torch
from demo_runs import SMALL, metrics

from da3po_cli.algos.losses import policy_loss
from da3po_cli.algos.table import ALGORITHMS
from da3po_cli.algos.types import Denominators, MicroBatch
from da3po_cli.rollouts.agreement import Gap, fit_temperature, likely_cause
from da3po_cli.rollouts.engine import VllmGenerator
from da3po_cli.runs.directory import RunDir


def sums_of(trainer, engine, tokens, temperature=1.0):
    """The sums of an update on `tokens` [N], one a row, from logits [N, V] of both."""
    table = (trainer / temperature).log_softmax(-1)
    batch = MicroBatch(
        tokens=tokens[:, None],
        targets=tokens[:, None],
        mask=torch.ones(len(tokens), 1, dtype=torch.bool),
        advantages=torch.ones(len(tokens)),
        rollout_logprobs=engine.log_softmax(-1).gather(1, tokens[:, None]),
    )
    entropy = -(table.exp() * table).sum(-1, keepdim=True)
    counts = Denominators(len(tokens), len(tokens), 1)
    logp = table.gather(1, tokens[:, None])
    _, sums = policy_loss(logp, batch, ALGORITHMS["dapo"].defaults, counts, tis=False, entropy=entropy)
    return {name: value.item() for name, value in sums.items()}


def judged(trainer, engine, *, limit, at_start, temperature=1.0):
    """(gap, whether it stops a run, cause) of 20,000 tokens that the engine samples, from logits [N, V] of both."""
    tokens = engine.softmax(-1).multinomial(1, generator=torch.Generator().manual_seed(1))[:, 0]
    values = engine.log_softmax(-1).gather(1, tokens[:, None])[:, 0]

    def score(other):
        return (trainer / other).log_softmax(-1).gather(1, tokens[:, None])[:, 0]

    gap = Gap.of(sums_of(trainer, engine, tokens, temperature))
    difference = (score(temperature) - values).abs()
    assert gap.tokens == len(tokens)
    assert gap.mean == pytest.approx(difference.mean().item()) and gap.far == (difference > 1).double().mean().item()
    cause, fix = likely_cause(gap, limit, at_start, fit_temperature(values, score, temperature))
    assert fix
    return gap, gap.beyond(limit), cause


@pytest.fixture(scope="module")
def logits():
    """Of 20,000 positions and 50 tokens, from sure to undecided, [N, V]."""
    noise = torch.Generator().manual_seed(0)
    width = 6 * torch.rand(20_000, 1, generator=noise, dtype=torch.float64)
    return width * torch.randn(20_000, 50, generator=noise, dtype=torch.float64)


def rounded(values, scale, seed):
    """With an error of each logit, as of rounding."""
    noise = torch.Generator().manual_seed(seed)
    return values + scale * torch.randn(values.shape, generator=noise, dtype=values.dtype)


@pytest.mark.parametrize("own", [1.0, 0.7])
@pytest.mark.parametrize("ratio", [0.4, 0.7, 0.9, 1.1, 1.5, 2.5])
def test_another_temperature_is_told_whatever_the_rounding(logits, own, ratio):
    """An engine at own x ratio, exact and with the rounding of bfloat16 at its worst (mean gap 0.04)."""
    for noise, limit in ((0.0, 1e-4), (0.035, 0.05)):
        engine = rounded(logits, noise, 2) / (own * ratio)
        _, stops, cause = judged(rounded(logits, noise, 3), engine, limit=limit, at_start=noise, temperature=own)
        found = re.match(r"the engine's log-probs are those of temperature ([\d.]+), the trainer's of", cause)
        assert stops and found, cause
        assert float(found[1]) == pytest.approx(own * ratio, rel=1e-3 if noise == 0 else 0.02)


def test_a_temperature_that_the_mean_hides_is_told_by_the_slope(logits):
    """Beside rounding it moves the mean by less than the limit."""
    gap, stops, cause = judged(rounded(logits, 0.01, 3), rounded(logits, 0.01, 2) / 0.94, limit=0.05, at_start=0.01)
    assert gap.mean < 0.05 < abs(gap.slope) and stops
    assert cause.startswith("the engine's log-probs are those of temperature 0.94")


def test_a_small_difference_of_temperatures_is_the_slope(logits):
    gap, _, _ = judged(logits, logits / 0.999, limit=1.0, at_start=0.0)
    assert gap.slope == pytest.approx(1 / 0.999 - 1, rel=0.02)
    assert gap.k3 == pytest.approx(gap.slope**2 / 2 * surprise_square(logits), rel=0.05)


def surprise_square(logits):
    """The mean variance of the log-prob of a sample, by enumeration: d2 KL / d(1/T)2 at equal temperatures."""
    table = logits.log_softmax(-1)
    entropy = -(table.exp() * table).sum(-1, keepdim=True)
    return (table.exp() * (table + entropy).square()).sum(-1).mean().item()


def test_rounding_of_a_healthy_model_stops_nothing_and_more_is_called_rounding(logits):
    gap, stops, _ = judged(rounded(logits, 0.035, 2), rounded(logits, 0.035, 3), limit=0.05, at_start=0.06)
    assert 0.02 < gap.mean < 0.05 and not stops, gap
    gap, stops, cause = judged(rounded(logits, 0.09, 2), rounded(logits, 0.09, 3), limit=0.05, at_start=0.06)
    assert gap.mean > 0.05 and stops
    assert cause.startswith("it is of the size of rounding")


OTHER_WEIGHTS = {
    "never arrived": lambda logits: torch.zeros_like(logits),
    "permuted": lambda logits: logits.roll(1, 1),
    "other positions": lambda logits: logits.roll(1, 0),
    "of an earlier step": lambda logits: rounded(logits, 0.3, 5),
    "right but for 2 % of the positions": lambda logits: torch.where(
        torch.arange(len(logits))[:, None] % 50 == 0, logits.roll(1, 0), logits
    ),
}


@pytest.mark.parametrize("wrong", OTHER_WEIGHTS.values(), ids=OTHER_WEIGHTS)
def test_other_weights_are_told(logits, wrong):
    _, stops, cause = judged(rounded(logits, 0.02, 2), rounded(wrong(logits), 0.02, 3), limit=0.05, at_start=0.04)
    assert stops
    assert cause.startswith("the engine has other weights than the trainer")


def test_a_policy_that_is_sure_of_each_token_says_nothing_of_temperature():
    """Collapsed: its surprise is below the rounding, whose ratio to it means nothing."""
    logits = torch.zeros(20_000, 50, dtype=torch.float64)
    logits[:, 0] = 14.0
    gap, stops, _ = judged(rounded(logits, 0.1, 2), rounded(logits, 0.1, 3), limit=0.05, at_start=0.06)
    assert not stops and abs(gap.slope) < 0.01


def test_log_probs_that_are_not_finite_are_left_to_the_skipped_updates():
    sums = dict.fromkeys(("rollout_gap_sum", "rollout_kl_sum", "rollout_far_sum", "rollout_tilt"), math.nan)
    assert not Gap.of({"tokens": 4.0, "surprise_square": 1.0, **sums}).beyond(0.05)
    assert not Gap.of({"tokens": 0.0, "surprise_square": 0.0, **dict.fromkeys(sums, 0.0)}).beyond(0.05)


FAULTY = Path(__file__).parent / "faulty_engine"
RUN = [*SMALL, "--name=run", "--steps=3", "validation.every=0", "run.tensorboard=false", "parallel.data=1"]


def is_told(said, run, temperature, within):
    found = re.search(r"the engine's log-probs are those of temperature ([\d.]+), the trainer's of 1:", said)
    assert found and float(found[1]) == pytest.approx(temperature, abs=within), said
    assert "  at: step 1, update 1, rollout.max_logprob_gap" in said
    assert "  fix: the engine has to sample at rollout.temperature" in said
    assert run.read()["status"] == "failed"
    assert run.saved_steps() == [] and metrics(run.path) == []


@pytest.mark.slow
def test_an_engine_at_another_temperature_stops_a_run_in_bfloat16_in_its_first_step(tmp_path, monkeypatch):
    """The mean gap is that of a healthy large model, 0.01 nats; the slope over the surprise tells it."""
    monkeypatch.setenv("ENGINE_FAULT", "temperature=0.9")
    said = demo_runs.train(tmp_path, *RUN, "model.dtype=bfloat16", code=5, path=FAULTY)
    is_told(said, RunDir(tmp_path / "run"), 0.9, 1e-2)


@pytest.mark.slow
def test_an_engine_at_another_temperature_stops_a_run_in_float32_in_its_first_step(tmp_path, monkeypatch, kept_engine):
    request = VllmGenerator._request
    monkeypatch.setattr(
        VllmGenerator,
        "_request",
        lambda self, prompt, number, sampling: request(self, prompt, number, replace(sampling, temperature=0.99)),
    )
    is_told(here.train(tmp_path, *RUN, code=5), RunDir(tmp_path / "run"), 0.99, 1e-4)


@pytest.mark.slow
def test_weights_that_do_not_arrive_stop_the_run_in_the_step_that_samples_from_the_old_ones(
    tmp_path, monkeypatch, kept_engine
):
    load = VllmGenerator.load_weights

    def only_once(self, weights):
        monkeypatch.setattr(VllmGenerator, "load_weights", lambda self, weights: [None for _ in weights] and None)
        load(self, weights)

    monkeypatch.setattr(VllmGenerator, "load_weights", only_once)
    said = here.train(tmp_path, *RUN, code=5)
    assert "the engine has other weights than the trainer" in said
    assert "  at: step 2, update 1, rollout.max_logprob_gap" in said
    run = RunDir(tmp_path / "run")
    assert run.saved_steps() == [1]
    assert [record["step"] for record in metrics(run.path)] == [1]
