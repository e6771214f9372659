"""Training steps computed again by somebody else: with torch and transformers, and nothing of da3po.

It takes what a run left (the saved groups of a step, the config, the weights before) and goes the way of the papers,
one response at a time and without tensors of a whole batch: rewards, advantages, old log-probs, the loss of each
mini-batch, its gradient, AdamW. Written to be read beside docs/algorithms.md; slow, and on purpose so.

Legend: G responses of a prompt (the group), k of them correct, p = k / G, R tokens of a response.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

Group = Mapping[str, Any]  # a line of rollouts/step_N.jsonl
Settings = Mapping[str, Mapping[str, Any]]  # config.yaml
Moments = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]  # AdamW's first and second, by parameter

Counts = dict[str, float]  # sums over tokens

MAX_LOG_RATIO = 20.0


# ------------------------------------------------------------------------------------------- what a response is worth


def drop_reason(group: Group, algo: Mapping[str, Any]) -> str | None:
    """Why a group is not trained on; None where it may be. Dynamic sampling keeps 0 < k < G (DAPO, eq. 11)."""
    known = [one for one in group["responses"] if one["verdict"] != "unknown"]
    correct = sum(one["verdict"] == "correct" for one in known)
    if not known or any(one["finish_reason"] == "failed" for one in group["responses"]):
        return "failed"
    if not algo["dynamic_sampling"] or 0 < correct < len(known):
        return None
    return "too_hard" if correct == 0 else "too_easy"


def reward(response: Mapping[str, Any], settings: Settings) -> float:
    """Right or wrong, and DAPO's soft overlong punishment (eq. 13) of the generated length."""
    cache, longest = settings["algo"]["overlong_cache"], settings["rollout"]["max_tokens"]
    if cache is None:  # a share of the longest response, whole tokens
        cache = math.floor(settings["algo"]["overlong_share"] * longest)
    value = settings["reward"]["correct"] if response["verdict"] == "correct" else settings["reward"]["wrong"]
    beyond = len(response["token_ids"]) - (longest - cache)
    if cache and beyond > 0:
        value -= settings["algo"]["overlong_factor"] * min(1.0, beyond / cache)
    return value


def advantages(group: Group, algo: Mapping[str, Any]) -> list[tuple[float, float]]:
    """(advantage, its DAA factor) of each response, from the rewards as they were saved.

    A = (r - mean) / (std ** std_power + 1e-6) over the responses that could be judged, 0 for the others; times lambda
    where the response is correct, A is positive and the prompt is hard, p < tau (arXiv 2608.27982).
    """
    known = [one for one in group["responses"] if one["verdict"] != "unknown"]
    rewards = [one["reward"] for one in known]
    scale, mean = 1.0, statistics.fmean(rewards) if rewards else 0.0
    if algo["std_power"] and len(rewards) > 1:
        deviation = statistics.stdev(rewards) if algo["std_ddof"] else statistics.pstdev(rewards)
        scale = deviation ** algo["std_power"] + 1e-6
    correct = sum(one["verdict"] == "correct" for one in known)
    factor = amplification(correct, len(known), algo)
    found: list[tuple[float, float]] = []
    for one in group["responses"]:
        value = (one["reward"] - mean) / scale if one["verdict"] != "unknown" and len(set(rewards)) > 1 else 0.0
        weight = factor if one["verdict"] == "correct" and value > 0 else 1.0
        found.append((value * weight, weight))
    return found


def amplification(correct: int, size: int, algo: Mapping[str, Any]) -> float:
    """The factor on the correct responses of a group with k = `correct` of G = `size`."""
    lam, tau = algo["daa_lambda"], algo["daa_tau"]
    if lam == 1 or correct == 0 or not correct / size < tau:
        return 1.0
    p = correct / size
    if algo["daa_schedule"] == "inverse_gamma":  # what the filter takes: (1 - p^(G-1)) / (1 - (1-p)^(G-1))
        return (1 - p ** (size - 1)) / (1 - (1 - p) ** (size - 1))
    if algo["daa_schedule"] == "linear":
        return lam - (lam - 1) * p / tau
    return lam


# ------------------------------------------------------------------------------------------------------ the loss of one


@dataclass(frozen=True)
class Sample:
    """One response that is trained on, with what does not change during the step."""

    prompt: list[int]
    response: list[int]
    advantage: float
    rollout: Tensor  # [R] log-probs of the rollout engine
    old: Tensor  # [R] of the trainer before the step
    reference: Tensor | None  # [R] of the initial policy


def score(model: Any, prompt: list[int], response: list[int], temperature: float) -> tuple[Tensor, Tensor]:
    """(log-probs of the response's tokens, entropies of their distributions), [R] float32, of softmax(logits / T)."""
    tokens = torch.tensor([prompt + response], device=model.device)
    logits = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float() / temperature
    log_softmax = torch.log_softmax(logits, dim=-1)
    chosen = log_softmax.gather(1, tokens[0, len(prompt) :, None])[:, 0]
    return chosen, -(log_softmax.detach().exp() * log_softmax.detach()).sum(-1)


def token_losses(logp: Tensor, sample: Sample, algo: Mapping[str, Any], tis: bool, count: Counts) -> Tensor:
    """[R] losses of a response's tokens; what is logged is added to `count`."""
    size, high, low = len(sample.response), 1 + algo["clip_high"], 1 - algo["clip_low"]
    advantage = torch.tensor(sample.advantage, dtype=torch.float32, device=logp.device)

    def ratio_of(new: Tensor, old: Tensor) -> Tensor:
        """Importance ratio: of each token, or the geometric mean over the response (GSPO, arXiv 2507.18071)."""
        difference = new - old
        if algo["ratio"] == "sequence":
            difference = difference.mean().expand(size)
        return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()

    ratio = ratio_of(logp, sample.old)
    loss = -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    if algo["dual_clip"] is not None and sample.advantage < 0:
        loss = loss.clamp(max=-sample.advantage * algo["dual_clip"])
        count["dual_clip"] += int((ratio > algo["dual_clip"]).sum())
    if tis:
        raw = ratio_of(sample.old, sample.rollout)
        loss = loss * raw.clamp(max=algo["tis_cap"])
        count["tis"] += raw.clamp(max=algo["tis_cap"]).double().sum().item()
        count["tis_capped"] += int((raw > algo["tis_cap"]).sum())
    if sample.reference is not None:
        loss = loss + algo["kl_coef"] * _k3(sample.reference - logp)
        count["ref_kl"] += _k3(sample.reference.double() - logp.detach().double()).sum().item()
    clipped = "clip_high" if sample.advantage > 0 else "clip_low"
    beyond = ratio > high if sample.advantage > 0 else ratio < low
    count[clipped] += int(beyond.sum()) if sample.advantage else 0
    gap = (sample.old - sample.rollout).double()
    count["ratio"] += ratio.detach().double().sum().item()
    count["logp"] += logp.detach().double().sum().item()
    count["kl"] += _k3(logp.detach().double() - sample.old.double()).sum().item()
    count["rollout_kl"] += _k3(gap).sum().item()
    count["rollout_gap"] += gap.abs().sum().item()
    count["rollout_far"] += int((gap.abs() > 1).sum())
    count["tokens"] += size
    return loss


def _k3(d: Tensor) -> Tensor:
    """Schulman's estimate of KL(q || p) from samples of q, d = log p - log q."""
    return torch.expm1(d) - d


# ------------------------------------------------------------------------------------------------------------ the step


class Oracle:
    """A policy that is trained on saved groups.

    Args:
        settings: the run's config.yaml, whole.
        model: a transformers causal language model in the run's dtype, with the weights before the first step that is
            asked for. It is trained in place.
        reference: the model with the initial weights, where the loss has a KL term.
        main: float32 weights by parameter name, where `model` is rounded; by default those of `model`.
        moments: AdamW's, by parameter name; None at the beginning of training.
        updates: AdamW's updates so far.
    """

    def __init__(
        self,
        settings: Settings,
        model: Any,
        *,
        reference: Any = None,
        main: Mapping[str, Tensor] | None = None,
        moments: Moments | None = None,
        updates: int = 0,
    ) -> None:
        self.settings, self.model, self.reference = settings, model.eval(), reference
        self.parameters: dict[str, Tensor] = dict(model.named_parameters())  # a tied head is not named again
        self.main = {
            name: (weight if main is None else main[name]).detach().float().clone().to(weight.device)
            for name, weight in self.parameters.items()
        }
        train = settings["train"]
        matrices = [weight for weight in self.main.values() if weight.ndim > 1]
        vectors = [weight for weight in self.main.values() if weight.ndim <= 1]  # norms and biases do not decay
        self.adam = torch.optim.AdamW(
            [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
            lr=train["lr"],
            betas=(train["adam_beta1"], train["adam_beta2"]),
            eps=train["adam_eps"],
            weight_decay=train["weight_decay"],
        )
        for name, weight in self.main.items() if moments is not None else ():
            first, second = (moment[name].float().to(weight.device) for moment in moments or ())
            self.adam.state[weight] = {"step": torch.tensor(float(updates)), "exp_avg": first, "exp_avg_sq": second}

    def step(self, number: int, groups: Sequence[Group]) -> dict[str, float]:
        """Train on the kept ones of a step's groups; the step's metrics under the names of metrics.jsonl.

        Args:
            number: the step, from 1: the learning rate depends on it.
        """
        algo, train = self.settings["algo"], self.settings["train"]
        kept = [group for group in groups if group["drop_reason"] is None]
        older = any(group.get("step", number) < number for group in kept)  # carried over: sampled by earlier weights
        rounded = self.settings["model"]["dtype"] != "float32"
        tis = algo["tis"] == "on" or (algo["tis"] == "auto" and (rounded or older))
        batch = [[self._sample(group, one, value) for one, value in _valued(group, algo)] for group in kept]
        size = train["mini_batch_prompts"]
        parts = [[*chain(*batch[start : start + size])] for start in range(0, len(batch), size)]
        # linear warm-up over steps: the first one already learns
        rate = train["lr"] * min(1.0, number / max(1, train["warmup_steps"]))
        count: Counts = defaultdict(float)
        updates = [self._update(part, rate, tis, count) for part in parts * train["epochs"]]
        tokens = count.pop("tokens")
        names = ["ratio", "kl", "clip_high", "clip_low", "dual_clip", "entropy", "logp", "rollout_kl"]
        names += ["rollout_gap", "rollout_far"]
        names += ["ref_kl"] * (self.reference is not None) + ["tis", "tis_capped"] * tis
        trained = [weight for group in kept for _, (_, weight) in _valued(group, algo)]
        return {
            **{f"train/{name}": count[name] / tokens for name in names},
            "train/loss": statistics.fmean(loss for loss, _ in updates),
            "train/grad_norm": statistics.fmean(norm for _, norm in updates),
            "train/lr": rate,
            "train/updates": len(updates),
            "daa/amplified": sum(weight != 1 for weight in trained) / len(trained),
        }

    def _sample(self, group: Group, response: Mapping[str, Any], advantage: tuple[float, float]) -> Sample:
        prompt, tokens = list(group["prompt"]["token_ids"]), list(response["token_ids"])
        rollout = torch.tensor(response["logprobs"], dtype=torch.float32, device=self.model.device)
        with torch.no_grad():
            old, _ = score(self.model, prompt, tokens, self._temperature)
            initial = None
            if self.reference is not None:
                initial, _ = score(self.reference, prompt, tokens, self._temperature)
        return Sample(prompt, tokens, advantage[0], rollout, old, initial)

    def _update(self, part: list[Sample], rate: float, tis: bool, count: Counts) -> tuple[float, float]:
        """One optimizer step on a mini-batch. Returns its loss, and the norm of its gradient before clipping."""
        algo, train = self.settings["algo"], self.settings["train"]
        part = [sample for sample in part if sample.response]
        tokens, total = sum(len(sample.response) for sample in part), 0.0
        gradient = {name: torch.zeros_like(weight) for name, weight in self.main.items()}
        for sample in part:
            logp, entropy = score(self.model, sample.prompt, sample.response, self._temperature)
            count["entropy"] += entropy.double().sum().item()
            losses = token_losses(logp, sample, algo, tis, count)
            if algo["aggregate"] == "token-mean":  # over all tokens of the mini-batch (DAPO)
                loss = losses.sum() / tokens
            elif algo["aggregate"] == "seq-mean-token-mean":  # of each response, then over responses (GRPO)
                loss = losses.mean() / len(part)
            else:  # "seq-mean-token-sum-norm": a constant in place of the length (Dr. GRPO)
                loss = losses.sum() / self.settings["rollout"]["max_tokens"] / len(part)
            total += loss.item()
            loss.backward()
            for name, weight in self.parameters.items():  # summed in float32, whatever the model's dtype
                if weight.grad is not None:
                    gradient[name] += weight.grad.float()
                    weight.grad = None
        norm = math.sqrt(sum(one.double().square().sum().item() for one in gradient.values()))
        scale = min(1.0, train["grad_clip"] / norm) if norm else 1.0
        for name, weight in self.main.items():
            weight.grad = gradient[name] * scale
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        with torch.no_grad():
            for name, weight in self.parameters.items():
                weight.copy_(self.main[name])
        return total, norm

    @property
    def _temperature(self) -> float:
        return self.settings["rollout"]["temperature"]


def _valued(group: Group, algo: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], tuple[float, float]]]:
    """The responses of a group with their advantages."""
    return zip(group["responses"], advantages(group, algo), strict=True)
