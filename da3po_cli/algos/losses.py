"""The policy loss: ratio -> clip -> dual clip -> TIS weight -> KL -> aggregation. Pure: it never communicates.

Legend of shapes: B sequences of a micro-batch, S its padded length. Every [B, S] tensor is set to 0 outside the mask
*before* any arithmetic: `0 * nan` is nan, so a mask that multiplies would let padding into the sum.

The denominators are those of the whole mini-batch (all micro-batches, all data-parallel ranks), so that plain sums
over micro-batches and ranks give the loss and gradient of the undivided mini-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from da3po_cli.algos.table import AlgoConfig
from da3po_cli.algos.types import Denominators, MicroBatch

if TYPE_CHECKING:
    from da3po_cli.algos.types import LossFn

MAX_LOG_RATIO = 20.0  # exp(20) = 4.9e8 is still far from the float32 limit; verl clamps at the same value
FAR = 1.0  # nats; two log-probs of a token that rounding alone hardly puts further apart


def make_loss_fn(algo: AlgoConfig, denominators: Denominators, tis: bool) -> LossFn:
    """Bind everything that is fixed for one mini-batch; `tis` is `algo.tis` with "auto" already decided."""

    def loss_fn(logp: Tensor, entropy: Tensor, batch: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        return policy_loss(logp, batch, algo, denominators, tis=tis, entropy=entropy)

    return loss_fn


def policy_loss(
    logp: Tensor, batch: MicroBatch, algo: AlgoConfig, denominators: Denominators, *, tis: bool, entropy: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of one micro-batch, to be summed over micro-batches and data-parallel ranks.

        L = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high));  A < 0: min(L, -A dual_clip)      (r: importance ratio)
        loss = aggregate(w L + kl_coef KL)                                                        (w: TIS weight or 1)

    Args:
        logp: log-probs of `batch.targets` under the current weights, with gradient, [B, S], float32 or float64.
        batch: `old_logprobs` None means exactly on-policy: the ratio is then 1 to the last bit, with its gradient.
        tis: multiply by min(pi_old / pi_rollout, tis_cap), detached, between trainer and rollout engine; like the ratio
            it is per token or, for "sequence", the geometric mean over the sequence.
        entropy: of the whole softmax, nats, [B, S]; only logged.

    Returns:
        The scalar loss (0, with a gradient of 0, when no position is unmasked) and detached float64 sums, see
        `finish_metrics`.
    """
    mask = batch.mask
    logp = _masked(logp, mask)
    rollout = _masked(batch.rollout_logprobs, mask).to(logp.dtype)
    old = logp.detach() if batch.old_logprobs is None else _masked(batch.old_logprobs, mask).to(logp.dtype)
    advantages = batch.advantages.to(logp.dtype).unsqueeze(1)  # [B, 1]

    ratio = importance_ratio(logp, old, mask, algo.ratio)
    per_token = clipped_surrogate(ratio, advantages, algo.clip_low, algo.clip_high, algo.dual_clip)
    raw_tis = importance_ratio(old, rollout, mask, algo.ratio).detach()
    if tis:
        per_token = per_token * raw_tis.clamp(max=algo.tis_cap)

    sums = _sums(logp, old, rollout, ratio, advantages, entropy, mask, algo)
    if tis:
        sums["tis_sum"] = _total(raw_tis.clamp(max=algo.tis_cap), mask)
        sums["tis_capped_sum"] = _total(raw_tis > algo.tis_cap, mask)
    if algo.kl_coef:
        if batch.ref_logprobs is None:
            raise ValueError(f"kl_coef is {algo.kl_coef} but the micro-batch has no ref_logprobs")
        kl = k3(_masked(batch.ref_logprobs, mask).to(logp.dtype) - logp)
        per_token = per_token + algo.kl_coef * kl
        sums["ref_kl_sum"] = _total(kl, mask)
    return aggregate(per_token, mask, algo.aggregate, denominators), sums


def importance_ratio(logp: Tensor, old: Tensor, mask: Tensor, kind: str) -> Tensor:
    """pi / pi_old, [B, S]; `logp` and `old` are 0 outside the mask.

    "token": exp(logp - old). "sequence": s_i = exp(mean_t (logp - old)) at every token of i, in the GSPO-token form
    s_it = sg[s_i] pi_t / sg[pi_t] (arXiv 2507.18071), whose value is s_i and whose mean over the tokens of i has the
    gradient of s_i. Log-ratios are clamped to +-20; beyond it the gradient is 0.
    """
    log_ratio = logp - old
    if kind == "sequence":
        mean = log_ratio.detach().sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        log_ratio = mean + (logp - logp.detach())  # the bracket is exactly 0, its gradient is not
    return torch.exp(_clamped(log_ratio))


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> Tensor:
    """Clipped policy-gradient loss per token, [B, S], for `ratio` [B, S] and `advantages` [B, 1].

    Clip-Higher (arXiv 2503.14476) is clip_high > clip_low; the dual clip bounds the loss of a negative advantage,
    which the ordinary clip leaves open for large ratios.
    """
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high))
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)


def k3(log_ratio: Tensor) -> Tensor:
    """Schulman's k3 estimate exp(d) - d - 1 >= 0 of KL(q || p) for samples of q and d = log p - log q, per token.

    With p the reference and q the policy, its gradient with respect to log q is 1 - p / q. Above d = 20 the exponential
    goes on along its tangent: a clamp there would drop that term and leave a gradient of the wrong sign.
    """
    capped = log_ratio.clamp(max=MAX_LOG_RATIO)
    return torch.exp(capped) * (1 + (log_ratio - capped)) - log_ratio - 1


def aggregate(per_token: Tensor, mask: Tensor, mode: str, denominators: Denominators) -> Tensor:
    """Sum [B, S] into this micro-batch's share of the mini-batch loss.

    token-mean: over all response tokens of the mini-batch (DAPO). seq-mean-token-mean: mean over the tokens of a
    sequence, then over sequences (GRPO, GSPO). seq-mean-token-sum-norm: sum over tokens / norm_length, then mean over
    sequences (Dr. GRPO). Sequences without a response token count nowhere.
    """
    per_token = _masked(per_token, mask)
    if mode == "token-mean":
        return per_token.sum() / max(1, denominators.tokens)
    per_sequence = per_token.sum(1)
    if mode == "seq-mean-token-mean":
        per_sequence = per_sequence / mask.sum(1).clamp(min=1)
    elif mode == "seq-mean-token-sum-norm":
        per_sequence = per_sequence / denominators.norm_length
    else:
        raise ValueError(f"unknown aggregate {mode!r}")
    return per_sequence.sum() / max(1, denominators.sequences)


def finish_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Turn sums over all micro-batches and ranks (and, if wished, several updates) into logged means per token.

    clip_high and clip_low are the shares of tokens whose gradient the clip removes (A > 0 above, A < 0 below);
    kl is k3 of old -> new policy, ref_kl of the policy to the frozen one, rollout_kl of rollout engine -> trainer,
    rollout_gap the mean |trainer - engine| in nats and rollout_far the share above `FAR`; tis and tis_capped the mean
    weight and the share above the cap, from the raw ratio.
    """
    tokens = sums.get("tokens", 0.0)
    names = {key: f"train/{key.removesuffix('_sum')}" for key in sums if key.endswith("_sum")}
    return {name: float(sums[key]) / tokens if tokens else 0.0 for key, name in names.items()}


def _sums(
    logp: Tensor,
    old: Tensor,
    rollout: Tensor,
    ratio: Tensor,
    advantages: Tensor,
    entropy: Tensor,
    mask: Tensor,
    algo: AlgoConfig,
) -> dict[str, Tensor]:
    """The logged sums that every algorithm has; each may be added over micro-batches and ranks."""
    with torch.no_grad():
        dual = algo.dual_clip if algo.dual_clip is not None else float("inf")
        return {
            "tokens": mask.sum(dtype=torch.float64),
            "sequences": mask.any(1).sum(dtype=torch.float64),
            "entropy_sum": _total(entropy, mask),
            "logp_sum": _total(logp, mask),
            "ratio_sum": _total(ratio, mask),
            "clip_high_sum": _total((advantages > 0) & (ratio > 1 + algo.clip_high), mask),
            "clip_low_sum": _total((advantages < 0) & (ratio < 1 - algo.clip_low), mask),
            "dual_clip_sum": _total((advantages < 0) & (ratio > dual), mask),
            "kl_sum": _total(k3(logp - old), mask),
            "rollout_kl_sum": _total(k3(old - rollout), mask),
            "rollout_gap_sum": _total((old - rollout).abs(), mask),
            "rollout_far_sum": _total((old - rollout).abs() > FAR, mask),
            # not logged: the least-squares slope of the difference over the surprise, see `rollouts.agreement`
            "rollout_tilt": _total((rollout - old) * (old + entropy), mask),
            "surprise_square": _total((old + entropy).square(), mask),
        }


def _masked(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def _total(values: Tensor, mask: Tensor) -> Tensor:
    return _masked(values.detach(), mask).sum(dtype=torch.float64)


def _clamped(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
