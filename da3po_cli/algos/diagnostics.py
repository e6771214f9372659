"""What the rollouts of a step say about the run: shares, lengths, what the filter and the amplification did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from da3po_cli.algos.sampling import Batch
from da3po_cli.algos.types import DropReason, Group, Response


class SolvedPrompts:
    """Which rows of the data have been answered correctly at least once in this run."""

    def __init__(self) -> None:
        self._solved: set[tuple[str, int]] = set()

    def mark(self, groups: Sequence[Group]) -> None:
        """Note the solved ones of `groups`, and mark those whose row never was before with `first_solve`."""
        for group in groups:
            row = (group.prompt.source, group.prompt.index)
            group.first_solve = group.correct > 0 and row not in self._solved
            if group.first_solve:
                self._solved.add(row)

    def state(self) -> list[list[str | int]]:
        """For JSON."""
        return [list(row) for row in sorted(self._solved)]

    def load_state(self, state: Sequence[tuple[str, int]]) -> None:
        self._solved = {(source, index) for source, index in state}


def batch_metrics(batch: Batch, *, tau: float, rollout_seconds: float) -> dict[str, float]:
    """The metrics of a step's groups, under the names of the metric reference.

    `train/acc`, `rollout/*`, `grade/*` and `filter/*` are over everything generated in this step, kept, dropped or
    carried on, so that the filter does not colour them and no group counts in two steps; their rates are left out where
    that is nothing. `sample/hard_share` (pass rate strictly below tau), `daa/*`, `adv/*` and `train/acc_kept` are over
    the kept groups. Accuracies are over judged responses; one that failed in the engine is no response.
    """
    generated = [response for group in batch.generated for response in group.responses]
    responses = [response for response in generated if response.finish_reason != "failed"]
    kept = [response for group in batch.kept for response in group.responses]
    tokens = sum(len(response.token_ids) for response in responses)
    reasons = Counter(group.drop_reason for group in batch.dropped)
    hard = [group.pass_rate < tau for group in batch.kept]
    metrics: dict[str, float] = {
        "train/reward": _mean([response.reward for response in kept]),
        "train/acc_kept": _mean([response.acc for group in batch.kept for response in group.known]),
        "sample/kept": len(batch.kept),
        "sample/generated": len(batch.generated),
        "sample/rounds": batch.rounds,
        "sample/first_solves": sum(group.first_solve for group in batch.generated),
        "sample/hard_share": _mean(hard),
        "daa/amplified": _mean([response.daa_weight != 1.0 for response in kept]),
        "rollout/tokens": tokens,
        **_advantage_mass(kept),
        **measured_alphas(batch.generated),
    }
    for reason in get_args(DropReason):
        metrics[f"sample/drop_{reason}"] = reasons[reason]
    if known := [response.acc for group in batch.generated for response in group.known]:
        metrics["train/acc"] = _mean(known)
    if responses:
        metrics["rollout/length"] = tokens / len(responses)
        metrics["rollout/truncated"] = _mean([response.finish_reason == "length" for response in responses])
        metrics["grade/unknown"] = _mean([response.verdict == "unknown" for response in responses])
        if rollout_seconds > 0:
            metrics["rollout/tokens_per_s"] = tokens / rollout_seconds
    return metrics


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _advantage_mass(kept: Sequence[Response]) -> dict[str, float]:
    """Sum of |A| over correct and over wrong responses, per kept response. Without DAA and shaping they are equal."""
    mass = {1: 0.0, 0: 0.0}
    for response in kept:
        mass[response.acc] += abs(response.advantage)
    count = max(1, len(kept))
    return {"adv/mass_correct": mass[1] / count, "adv/mass_wrong": mass[0] / count}


def measured_alphas(groups: Sequence[Group]) -> dict[str, float]:
    """alpha+ and alpha- of these groups: the factor by which the filter enlarges the advantage of a seen response.

    alpha+ = E[A | correct, kept] / E[A | correct] = responses that are correct / those of them in mixed groups, for
    dropped groups have advantage 0 (arXiv 2608.27982, theorem 3.1; over a mixture of pass rates here). A step without
    a correct response in a mixed group tells nothing and has no value.
    """
    seen, passed = Counter[int](), Counter[int]()
    for group in groups:
        mixed = 0 < group.correct < len(group.known)
        for response in group.known:
            seen[response.acc] += 1
            passed[response.acc] += mixed
    names = {"filter/alpha_plus": 1, "filter/alpha_minus": 0}
    return {name: seen[acc] / passed[acc] for name, acc in names.items() if passed[acc]}
