"""Dynamic sampling (DAPO, arXiv 2503.14476): generate in rounds until enough groups carry a learning signal.

A pure state machine without I/O. The caller's side of one step:

    sampler.start()
    while not sampler.full:
        sampler.add(grade(generate(draw(sampler.next_round()))))
    batch = sampler.finish()

The state may be saved between any two of these calls; `start` then goes on with the step that is in progress.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from da3po_cli.algos.records import group_from_dict, group_to_dict
from da3po_cli.algos.table import AlgoConfig
from da3po_cli.algos.types import DropReason, Group
from da3po_cli.errors import DivergedError

# What the first round goes by: 3 of 4 groups kept, weighing as much as 8 groups seen. Wrong by much, it costs one
# more round or some surplus in step 1 only.
PRIOR_KEPT, PRIOR_SEEN = 6.0, 8.0
FORGET = 0.5  # weight of the earlier steps' keep rate at each new step, for the policy moves
SLACK = 1.0  # standard deviations: a second round costs the time of its longest answer, however few its prompts
MAX_ROUND = 4  # most prompts of a round, in multiples of the groups needed per step


class SamplingExhausted(DivergedError):
    """The cap on rounds was reached and there are too few groups to train on."""

    kind = "sampling"


@dataclass
class Batch:
    """What a step trains on, and what became of the rest."""

    kept: list[Group]  # in prompt order; with algo.carry_surplus those carried over from earlier steps come first
    dropped: list[Group]  # each with its drop_reason, in prompt order
    generated: list[Group]  # in this step and in prompt order: kept, dropped, or carried on to the next step
    rounds: int = 0
    carried: int = 0  # kept groups beyond the batch that were put aside for the next step


def judge(group: Group) -> DropReason | None:
    """Why a graded group carries no signal, or None to keep it: 0 < k < G on raw correctness.

    Never on the reward: overlong shaping makes a unanimous group look mixed and trains on length alone. Responses
    whose verdict is unknown do not count; a group with none left, or with a failed response, is "failed", for a
    failure is not a wrong answer.
    """
    known = len(group.known)
    if not known or any(response.finish_reason == "failed" for response in group.responses):
        return "failed"
    if group.correct == 0:
        return "too_hard"
    return "too_easy" if group.correct == known else None


@dataclass
class _Step:
    """A step: its groups in prompt order, the carried ones first."""

    groups: list[Group] = field(default_factory=list[Group])
    generated: int = 0  # of `groups`, the last so many
    rounds: int = 0
    started: bool = False

    @property
    def kept(self) -> list[Group]:
        return [group for group in self.groups if group.drop_reason is None]


class DynamicSampler:
    """Decides how many prompts to draw, which groups to keep and when the batch is full.

    Args:
        needed: groups per step. Without algo.dynamic_sampling a step is one round of exactly this many prompts and
            every group but the failed ones is kept.
    """

    def __init__(self, algo: AlgoConfig, needed: int) -> None:
        self._algo = algo
        self._needed = needed
        self._kept = self._seen = 0.0  # evidence on the keep rate, with exponential forgetting
        self._carried: list[Group] = []
        self._step = _Step()

    def start(self) -> None:
        """Begin a step, unless one is in progress: groups carried over from the last one are its first."""
        if self._step.started:
            return
        self._step = _Step(groups=self._carried, started=True)
        self._carried = []
        self._kept, self._seen = FORGET * self._kept, FORGET * self._seen

    @property
    def keep_rate(self) -> float:
        """Estimated share of groups that are kept: the measured rate, drawn towards 3/4 while little is measured."""
        return (self._kept + PRIOR_KEPT) / (self._seen + PRIOR_SEEN)

    @property
    def started(self) -> bool:
        """A step is in progress."""
        return self._step.started

    @property
    def full(self) -> bool:
        """No further round is needed, or allowed."""
        limit = self._algo.max_rounds if self._algo.dynamic_sampling else 1
        return self._step.rounds >= limit or len(self._step.kept) >= self._needed

    @property
    def progress(self) -> str:
        """For the display, for example `kept 20/32`."""
        return f"kept {min(len(self._step.kept), self._needed)}/{self._needed}"

    def next_round(self) -> int:
        """Prompts to draw in the next round; 0 when `full`.

        The smallest n whose expected number of kept groups, less one standard deviation, covers the m that are
        missing: n r - sqrt(n r (1 - r)) >= m with keep rate r; at most MAX_ROUND times the groups of a step.
        """
        if self.full:
            return 0
        if not self._algo.dynamic_sampling:
            return self._needed
        missing = self._needed - len(self._step.kept)
        rate = self.keep_rate
        spread = SLACK * math.sqrt(rate * (1 - rate))
        root = (spread + math.sqrt(spread**2 + 4 * rate * missing)) / (2 * rate)  # of n, from the quadratic above
        return min(math.ceil(root**2), MAX_ROUND * self._needed)

    def add(self, groups: Sequence[Group]) -> None:
        """Judge one round of graded groups, given in prompt order (finish order would favour short answers)."""
        for group in groups:
            reason = judge(group)
            group.drop_reason = reason if self._algo.dynamic_sampling or reason == "failed" else None
        self._step.groups += groups
        self._step.rounds += 1
        self._step.generated += len(groups)
        self._seen += len(groups)
        self._kept += sum(group.drop_reason is None for group in groups)

    def finish(self) -> Batch:
        """Close the step: the first `needed` kept groups, in prompt order, and everything else with its reason.

        Raises:
            SamplingExhausted: too few groups and algo.on_exhausted is "error", or none at all. With dynamic sampling
                the step stays in progress, so that it can go on with other settings; without, there is nothing to keep.
        """
        step = self._step
        short = self._algo.dynamic_sampling and len(step.kept) < self._needed
        if short and self._algo.on_exhausted == "unfiltered":
            self._fill_up(step)
        kept = step.kept
        if not kept or (short and self._algo.on_exhausted == "error"):
            if not self._algo.dynamic_sampling:
                self._step = _Step()
            raise self._exhausted(step)
        surplus = kept[self._needed :]
        if self._algo.carry_surplus:
            self._carried = surplus
        else:
            for group in surplus:
                group.drop_reason = "surplus"
        dropped = [group for group in step.groups if group.drop_reason is not None]
        generated = step.groups[len(step.groups) - step.generated :]
        self._step = _Step()
        return Batch(kept[: self._needed], dropped, generated, step.rounds, carried=len(self._carried))

    def state(self) -> dict[str, Any]:
        """All that the next call depends on, as JSON values; also valid in the middle of a step."""
        return {
            "kept": self._kept,
            "seen": self._seen,
            "carried": [group_to_dict(group) for group in self._carried],
            "groups": [group_to_dict(group) for group in self._step.groups],
            "generated": self._step.generated,
            "rounds": self._step.rounds,
            "started": self._step.started,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state()` was taken."""
        self._kept, self._seen = state["kept"], state["seen"]
        self._carried = [group_from_dict(record) for record in state["carried"]]
        groups = [group_from_dict(record) for record in state["groups"]]
        started = state.get("started", state["rounds"] > 0)  # older checkpoints do not say
        self._step = _Step(groups, state["generated"], state["rounds"], started)

    def _fill_up(self, step: _Step) -> None:
        """Take back as many unanimous groups as are missing, earliest first."""
        unanimous = [group for group in step.groups if group.drop_reason in ("too_easy", "too_hard")]
        for group in unanimous[: self._needed - len(step.kept)]:
            group.drop_reason = None

    def _exhausted(self, step: _Step) -> SamplingExhausted:
        reasons = Counter(group.drop_reason for group in step.groups if group.drop_reason)
        known = [response.acc for group in step.groups for response in group.known]
        accuracy = sum(known) / max(1, len(known))
        rate = len(step.kept) / max(1, len(step.groups))
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())) or "none dropped"
        hint = (
            "go on with these groups: --resume with a larger algo.max_rounds, or with algo.on_exhausted=short (or "
            "unfiltered); or start a run on data nearer to the model's ability, or with a larger rollout.group_size"
        )
        if not self._algo.dynamic_sampling:
            hint = "see why the engine or the grader failed on every group; --resume goes on with the next prompts"
        return SamplingExhausted(
            f"kept {len(step.kept)} of {self._needed} groups after {step.rounds} round(s): "
            f"acceptance rate {rate:.3f} of {len(step.groups)} groups ({counts}), mean accuracy {accuracy:.3f}",
            hint=hint,
        )
