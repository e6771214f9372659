"""ALGORITHMS: every algorithm is one entry. No torch here: the CLI lists and completes from this table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class AlgoConfig:
    """The `algo` section of the config. Its defaults come from the ALGORITHMS entry called `name`."""

    name: str = "da3po"
    """Entry of the table whose defaults the other keys of this section start from."""
    std_power: float = 1.0
    """The advantage is (reward - mean) / (std ** this + 1e-6) over the group: 1 divides by the standard deviation
    (GRPO), 0 does not divide at all (Dr. GRPO). At least 0."""
    std_ddof: int = 1
    """Degrees of freedom taken off in that standard deviation: 1 (verl, TRL) or 0 (the population). 0 or 1."""
    daa_lambda: float = 1.0
    """Direct Advantage Amplification: factor on the advantage of correct responses to hard prompts. 1 is off.
    Above 0."""
    daa_tau: float = 0.5
    """A prompt is hard when its pass rate in the group is strictly below this. In (0, 1]."""
    daa_schedule: Literal["constant", "inverse_gamma", "linear"] = "constant"
    """How the factor depends on the pass rate p of a hard prompt: lambda itself (the paper); 1 / gamma(p, G), what
    the paper's theorem says that the filter takes, without lambda; or falling from lambda at 0 to 1 at tau."""
    ratio: Literal["token", "sequence"] = "token"
    """Importance ratio per token, or exp(mean log-ratio) per sequence (GSPO)."""
    clip_low: float = 0.2
    """The ratio is clipped below at 1 - this. In (0, 1)."""
    clip_high: float = 0.2
    """The ratio is clipped above at 1 + this. Above 0."""
    dual_clip: float | None = None
    """Upper bound of the loss of negative advantages, as a multiple of |A|; null is off. Above 1."""
    aggregate: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = "token-mean"
    """How token losses become one number: the mean over all tokens of the mini-batch (DAPO); over the tokens of a
    sequence, then over sequences (GRPO); or their sum over rollout.max_tokens, then over sequences (Dr. GRPO)."""
    kl_coef: float = 0.0
    """Coefficient of the k3 KL estimate to the initial policy, added to the loss. At least 0."""
    dynamic_sampling: bool = False
    """Keep a group only if 0 < correct < G, and generate until the batch is full."""
    max_rounds: int = 10
    """Generation rounds per step before `on_exhausted` applies. At least 1."""
    on_exhausted: Literal["error", "short", "unfiltered"] = "error"
    """At the cap: stop the run, train on the kept groups only, or fill up with filtered groups."""
    carry_surplus: bool = False
    """Keep surplus groups for the next step (slightly off-policy) instead of dropping them."""
    overlong_cache: int | None = None
    """Soft overlong punishment over the last this many tokens of rollout.max_tokens; 0 is off, null is the share of
    overlong_share. At least 0."""
    overlong_share: float = 0.0
    """Share of rollout.max_tokens, rounded down to tokens, over which it is where overlong_cache is null; 0 is off.
    In [0, 1)."""
    overlong_factor: float = 1.0
    """Factor of that punishment, which is -1 at full length. At least 0."""
    tis: Literal["auto", "on", "off"] = "auto"
    """Truncated importance sampling between rollout and trainer log-probs; auto = on unless both are float32."""
    tis_cap: float = 2.0
    """Largest weight of truncated importance sampling. Above 0."""


@dataclass(frozen=True)
class Entry:
    """One row of the table: how it is shown, where it comes from, and its defaults."""

    title: str
    source: str
    summary: str
    formula: str
    """Per response with ratio w = pi / pi_old, rewards r of its group, p the group's share of correct ones."""
    defaults: AlgoConfig


_DAPO = AlgoConfig(
    name="dapo",
    clip_low=0.2,
    clip_high=0.28,
    dual_clip=10.0,
    aggregate="token-mean",
    dynamic_sampling=True,
    overlong_share=0.2,  # 4,096 of 20,480 tokens
)

ALGORITHMS: dict[str, Entry] = {
    "da3po": Entry(
        "DA3PO",
        "arXiv 2608.27982",
        "DAPO with Direct Advantage Amplification of correct responses on hard prompts",
        "DAPO's loss with A * lambda where the response is correct and p < tau",
        replace(_DAPO, name="da3po", daa_lambda=2.0, daa_tau=0.5),
    ),
    "dapo": Entry(
        "DAPO",
        "arXiv 2503.14476",
        "decoupled clip, dynamic sampling, token-level loss, overlong reward shaping",
        "mean over tokens of -min(w A, clip(w, 1 - clip_low, 1 + clip_high) A), A = (r - mean) / std, 0 < p < 1 only",
        _DAPO,
    ),
    "grpo": Entry(
        "GRPO",
        "arXiv 2402.03300",
        "group-relative advantage, symmetric clip, mean over tokens then sequences",
        "mean over sequences of the mean over tokens of -min(w A, clip(w, 1 - eps, 1 + eps) A), A = (r - mean) / std",
        AlgoConfig(name="grpo", aggregate="seq-mean-token-mean"),
    ),
    "gspo": Entry(
        "GSPO",
        "arXiv 2507.18071",
        "one importance ratio per sequence, tight clip",
        "GRPO's loss with w = exp(mean over the sequence's tokens of log pi - log pi_old)",
        AlgoConfig(name="gspo", ratio="sequence", clip_low=3e-4, clip_high=4e-4, aggregate="seq-mean-token-mean"),
    ),
    "dr_grpo": Entry(
        "Dr. GRPO",
        "arXiv 2503.20783",
        "GRPO without the standard deviation and without the length normalisation",
        "sum over tokens of -min(w A, clip(w, 1 - eps, 1 + eps) A) / rollout.max_tokens, A = r - mean",
        AlgoConfig(name="dr_grpo", std_power=0.0, aggregate="seq-mean-token-sum-norm"),
    ),
}
