"""The loss against an independent formula on unpadded rows, closed forms, and splits of the mini-batch.

The reference below works row by row and token by token on Python lists of autograd scalars; it shares no code and no
vectorisation with the product.
"""

import math
from dataclasses import replace

import pytest
import torch

from da3po_cli.algos import ALGORITHMS, AlgoConfig
from da3po_cli.algos.batching import collate, denominators, plan_micro_batches
from da3po_cli.algos.losses import finish_metrics, make_loss_fn, policy_loss
from da3po_cli.algos.types import Trajectory

torch.set_num_threads(1)
VOCAB = 11
NAMES = sorted(ALGORITHMS)
VARIANTS = [(name, kl, tis) for name in NAMES for kl, tis in [(0.0, False), (0.0, True), (0.04, False), (0.04, True)]]


def config(name, **changes):
    return replace(ALGORITHMS[name].defaults, **changes)


def make_trajectories(count=8, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def integers(size):
        return torch.randint(1, VOCAB, (size,), generator=generator).tolist()

    items = []
    for _ in range(count):
        size = int(torch.randint(1, 9, (1,), generator=generator))
        logprobs = (-2.4 + 1.5 * torch.randn(size, generator=generator)).clamp(max=-0.01).tolist()
        advantage = float(torch.randn(1, generator=generator))
        items.append(Trajectory(tuple(integers(1 + size % 3)), integers(size), logprobs, advantage))
    items[-1].advantage = 0.0
    return items


class Model:
    """A bigram policy, with the weights before the step and a frozen reference; float64 throughout."""

    def __init__(self, seed=0, moved=0.8):
        generator = torch.Generator().manual_seed(seed)
        self.old = torch.randn(VOCAB, VOCAB, dtype=torch.float64, generator=generator)
        self.reference = self.old + 0.7 * torch.randn(VOCAB, VOCAB, dtype=torch.float64, generator=generator)
        moved = self.old + moved * torch.randn(VOCAB, VOCAB, dtype=torch.float64, generator=generator)
        self.weight = moved.requires_grad_()

    def batch(self, trajectories, rows, *, kl=False, on_policy=False):
        """The micro-batch in float64 and its log-probs and entropies [B, S]."""
        batch = collate(trajectories, rows)
        batch.advantages = torch.tensor([trajectories[row].advantage for row in rows] or [0.0], dtype=torch.float64)
        batch.rollout_logprobs = batch.rollout_logprobs.double()
        with torch.no_grad():
            batch.old_logprobs = None if on_policy else _gather(self.old, batch)
            batch.ref_logprobs = _gather(self.reference, batch) if kl else None
        table = self.weight.log_softmax(-1)
        entropy = -(table.exp() * table).sum(-1)[batch.tokens].detach()
        return _gather(self.weight, batch), entropy, batch


def _gather(weight, batch):
    return weight.log_softmax(-1)[batch.tokens, batch.targets]


def reference_loss(model, trajectories, algo, tis, norm_length, on_policy=False):
    """The mini-batch loss from its definition, one scalar at a time."""
    now, old, frozen = (weight.log_softmax(-1) for weight in (model.weight, model.old, model.reference))
    rows = []
    for item in trajectories:
        contexts = [item.prompt_ids[-1], *item.response_ids[:-1]]
        steps = list(zip(contexts, item.response_ids, strict=True))
        new = [now[a, b] for a, b in steps]
        before = [value.detach() for value in new] if on_policy else [old[a, b] for a, b in steps]
        if algo.ratio == "sequence":
            # plain GSPO: one ratio for the row, differentiated as it stands
            single = torch.exp(sum(n - o for n, o in zip(new, before, strict=True)) / len(steps))
            ratios = [single] * len(steps)
        else:
            ratios = [torch.exp(n - o) for n, o in zip(new, before, strict=True)]
        gaps = [float(o) - float(torch.tensor(r)) for o, r in zip(before, item.rollout_logprobs, strict=True)]
        if algo.ratio == "sequence":
            gaps = [sum(gaps) / len(gaps)] * len(gaps)
        losses = []
        for place, ratio in enumerate(ratios):
            first = -item.advantage * ratio
            second = -item.advantage * min(max(ratio, 1 - algo.clip_low), 1 + algo.clip_high)
            loss = max(first, second)
            if algo.dual_clip is not None and item.advantage < 0:
                loss = min(loss, -item.advantage * algo.dual_clip)
            if tis:
                loss = loss * min(math.exp(gaps[place]), algo.tis_cap)
            if algo.kl_coef:
                gap = frozen[steps[place]] - new[place]
                loss = loss + algo.kl_coef * (torch.exp(gap) - gap - 1)
            losses.append(loss)
        rows.append(losses)
    if algo.aggregate == "token-mean":
        return sum(sum(row) for row in rows) / sum(len(row) for row in rows)
    if algo.aggregate == "seq-mean-token-mean":
        return sum(sum(row) / len(row) for row in rows) / len(rows)
    return sum(sum(row) / norm_length for row in rows) / len(rows)


def whole_loss(model, trajectories, algo, tis, *, ranks=1, micro_batches=1, norm_length=16, on_policy=False):
    """The same through the product: every rank and micro-batch apart, plain sums of losses, gradients and sums."""
    counts = denominators(trajectories, norm_length)
    loss_fn = make_loss_fn(algo, counts, tis)
    rows = [row for rank in plan_micro_batches([t.length for t in trajectories], ranks, 10**6) for row in rank[0]]
    per_batch = math.ceil(len(rows) / (ranks * micro_batches))
    total, sums = 0.0, {}
    model.weight.grad = None
    for start in range(0, ranks * micro_batches * per_batch, per_batch):
        parts = model.batch(trajectories, rows[start : start + per_batch], kl=algo.kl_coef > 0, on_policy=on_policy)
        loss, new = loss_fn(*parts)
        loss.backward()
        total += loss.item()
        sums = {key: sums.get(key, 0.0) + float(value) for key, value in new.items()}
    return total, model.weight.grad.clone(), sums


@pytest.mark.parametrize("on_policy", [False, True])
@pytest.mark.parametrize(("name", "kl", "tis"), VARIANTS)
def test_loss_and_gradient_equal_the_definition(name, kl, tis, on_policy):
    algo = config(name, kl_coef=kl)
    model, trajectories = Model(), make_trajectories()
    loss, grad, _ = whole_loss(model, trajectories, algo, tis, on_policy=on_policy)
    expected = reference_loss(model, trajectories, algo, tis, 16, on_policy)
    (expected_grad,) = torch.autograd.grad(expected, model.weight)
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-14)
    assert expected_grad.abs().max() > 1e-6


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (1, 9)])
@pytest.mark.parametrize(("name", "kl", "tis"), VARIANTS)
def test_splits_change_nothing(name, kl, tis, ranks, micro_batches):
    algo = config(name, kl_coef=kl)
    model, trajectories = Model(), make_trajectories()
    loss, grad, sums = whole_loss(model, trajectories, algo, tis)
    other_loss, other_grad, other_sums = whole_loss(
        model, trajectories, algo, tis, ranks=ranks, micro_batches=micro_batches
    )
    assert other_loss == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(other_grad, grad, rtol=1e-12, atol=1e-15)
    assert other_sums == pytest.approx(sums, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_exactly_on_policy_the_ratio_is_one(name):
    model, trajectories = Model(), make_trajectories()
    _, _, sums = whole_loss(model, trajectories, config(name), tis=False, on_policy=True)
    assert sums["ratio_sum"] == sums["tokens"]
    assert sums["kl_sum"] == sums["clip_high_sum"] == sums["clip_low_sum"] == 0


def test_on_policy_gradient_is_the_policy_gradient():
    # token-mean: minus the mean over all tokens of A grad log pi
    model, trajectories = Model(), make_trajectories()
    _, grad, _ = whole_loss(model, trajectories, config("dapo"), tis=False, on_policy=True)
    table = model.weight.log_softmax(-1)
    objective = sum(
        item.advantage * table[context, token]
        for item in trajectories
        for context, token in zip([item.prompt_ids[-1], *item.response_ids[:-1]], item.response_ids, strict=True)
    )
    (expected,) = torch.autograd.grad(objective, model.weight)
    torch.testing.assert_close(grad, -expected / sum(len(t.response_ids) for t in trajectories), rtol=1e-12, atol=0)


def test_daa_adds_the_positive_term():
    # g' = g + (lambda-1) sigma s_plus with sigma = sqrt(k(G-k))/G (ddof 0), s_plus the mean score of the correct ones
    from da3po_cli.algos.advantages import daa_weights, group_advantages

    acc, lam = [1, 1, 0, 0, 0, 0, 0, 0], 2.0
    trajectories = make_trajectories(8, seed=3)
    for item in trajectories:  # one token each, so that token and sequence means coincide
        item.response_ids, item.rollout_logprobs = item.response_ids[:1], item.rollout_logprobs[:1]
    plain = group_advantages([2.0 * correct - 1 for correct in acc], std_power=1.0, ddof=0)
    weights = daa_weights(acc, lam=lam, tau=0.5)
    grads = []
    for factors in ([1.0] * 8, weights):
        for item, advantage, factor in zip(trajectories, plain, factors, strict=True):
            item.advantage = factor * advantage
        grads.append(-whole_loss(Model(), trajectories, config("da3po"), tis=False, on_policy=True)[1])
    model = Model()
    table = model.weight.log_softmax(-1)
    s_plus = sum(table[item.prompt_ids[-1], item.response_ids[0]] for item in trajectories[:2]) / 2
    (score,) = torch.autograd.grad(s_plus, model.weight)
    sigma = math.sqrt(2 * 6) / 8
    torch.testing.assert_close(grads[1], grads[0] + (lam - 1) * sigma * score, rtol=1e-5, atol=1e-9)


def test_gspo_gradient_is_that_of_the_sequence_ratio():
    model, trajectories = Model(moved=0.01), make_trajectories()
    algo = config("gspo", clip_low=10.0, clip_high=10.0)  # no clipping: every row contributes
    _, grad, _ = whole_loss(model, trajectories, algo, tis=False)
    now, old = model.weight.log_softmax(-1), model.old.log_softmax(-1)
    objective = 0.0
    for item in trajectories:
        contexts = torch.tensor([item.prompt_ids[-1], *item.response_ids[:-1]])
        tokens = torch.tensor(item.response_ids)
        objective += item.advantage * (now[contexts, tokens] - old[contexts, tokens]).mean().exp() / len(trajectories)
    (expected,) = torch.autograd.grad(objective, model.weight)
    torch.testing.assert_close(grad, -expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("name", "kl", "tis"), VARIANTS)
def test_padding_of_any_value_is_harmless(name, kl, tis, bad):
    model, trajectories = Model(), make_trajectories()
    algo = config(name, kl_coef=kl)
    clean_logp, entropy, batch = model.batch(trajectories, range(8), kl=kl > 0)
    counts = denominators(trajectories, 16)
    results = []
    for poison in (False, True):
        values = [clean_logp.detach(), entropy, batch.rollout_logprobs, batch.old_logprobs, batch.ref_logprobs]
        if poison:
            values = [None if v is None else torch.where(batch.mask, v, torch.tensor(bad).double()) for v in values]
        logp = values[0].clone().requires_grad_()
        dirty = replace(batch, rollout_logprobs=values[2], old_logprobs=values[3], ref_logprobs=values[4])
        loss, sums = policy_loss(logp, dirty, algo, counts, tis=tis, entropy=values[1])
        (grad,) = torch.autograd.grad(loss, logp)
        results.append((loss.item(), grad.tolist(), {key: float(value) for key, value in sums.items()}))
    assert results[0] == results[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_micro_batch_without_response_tokens_adds_nothing(name):
    model = Model()
    logp, entropy, batch = model.batch([], [], kl=True)
    loss, sums = policy_loss(logp, batch, config(name, kl_coef=0.1), denominators([], 16), tis=True, entropy=entropy)
    loss.backward()
    assert loss.item() == 0
    assert not model.weight.grad.any()
    assert all(value == 0 for value in sums.values())
    assert all(value == 0 for value in finish_metrics({key: float(value) for key, value in sums.items()}).values())


def test_norm_length_is_the_constant_and_not_the_padded_width():
    model, trajectories = Model(), make_trajectories()
    short = whole_loss(model, trajectories, config("dr_grpo"), tis=False, norm_length=16)[0]
    assert whole_loss(model, trajectories, config("dr_grpo"), tis=False, norm_length=64)[0] == pytest.approx(short / 4)


def test_metrics_are_means_per_token():
    model, trajectories = Model(), make_trajectories()
    _, _, sums = whole_loss(model, trajectories, config("dapo"), tis=True, micro_batches=4)
    metrics = finish_metrics(sums)
    steps = [
        (context, token, item, place)
        for item in trajectories
        for place, (context, token) in enumerate(
            zip([item.prompt_ids[-1], *item.response_ids[:-1]], item.response_ids, strict=True)
        )
    ]
    now, old = model.weight.detach().log_softmax(-1), model.old.log_softmax(-1)
    logp = [now[a, b].item() for a, b, _, _ in steps]
    before = [old[a, b].item() for a, b, _, _ in steps]
    rollout = [float(torch.tensor(item.rollout_logprobs[place])) for _, _, item, place in steps]
    ratios = [math.exp(new - o) for new, o in zip(logp, before, strict=True)]
    signs = [item.advantage for _, _, item, _ in steps]
    raw = [math.exp(o - r) for o, r in zip(before, rollout, strict=True)]

    def mean(values):
        values = list(values)
        return pytest.approx(sum(values) / len(values), rel=1e-9, abs=1e-12)

    assert metrics["train/logp"] == mean(logp)
    assert metrics["train/ratio"] == mean(ratios)
    assert metrics["train/clip_high"] == mean(a > 0 and r > 1.28 for a, r in zip(signs, ratios, strict=True))
    assert metrics["train/clip_low"] == mean(a < 0 and r < 0.8 for a, r in zip(signs, ratios, strict=True))
    assert metrics["train/kl"] == mean(r - 1 - math.log(r) for r in ratios)
    assert metrics["train/rollout_kl"] == mean(r - 1 - math.log(r) for r in raw)
    assert metrics["train/rollout_gap"] == mean(abs(math.log(r)) for r in raw)
    assert metrics["train/rollout_far"] == mean(abs(math.log(r)) > 1 for r in raw)
    assert metrics["train/tis"] == mean(min(r, 2.0) for r in raw)
    assert metrics["train/tis_capped"] == mean(r > 2.0 for r in raw)
    entropies = -(now.exp() * now).sum(-1)
    assert metrics["train/entropy"] == mean(entropies[a].item() for a, _, _, _ in steps)
    assert sums["sequences"] == 8
    assert 0 < metrics["train/clip_high"] < 1
    assert 0 < metrics["train/clip_low"] < 1


CHANGES = {
    "ratio": "sequence",
    "clip_low": 0.01,
    "clip_high": 0.01,
    "dual_clip": 1.5,
    "aggregate": "seq-mean-token-mean",
    "kl_coef": 0.1,
    "tis_cap": 1.1,
}


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_every_loss_field_changes_the_loss(field):
    model, trajectories = Model(), make_trajectories()
    base = AlgoConfig(clip_low=0.2, clip_high=0.28, dual_clip=10.0)
    plain = whole_loss(model, trajectories, base, tis=True)[0]
    changed = whole_loss(model, trajectories, replace(base, **{field: CHANGES[field]}), tis=True)[0]
    assert abs(changed - plain) > 1e-6


def test_float32_is_close_to_float64():
    model, trajectories = Model(), make_trajectories()
    logp, entropy, batch = model.batch(trajectories, range(8))
    counts = denominators(trajectories, 16)
    exact, _ = policy_loss(logp, batch, config("da3po"), counts, tis=True, entropy=entropy)
    single, sums = policy_loss(logp.detach().float(), batch, config("da3po"), counts, tis=True, entropy=entropy.float())
    assert single.dtype == torch.float32
    assert single.item() == pytest.approx(exact.item(), rel=1e-5)
    assert {value.dtype for value in sums.values()} == {torch.float64}
