"""Where a step's groups come from: the live engine with dynamic sampling, or the saved rollouts of another run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from da3po_cli.algos.sampling import Batch, DynamicSampler, group_from_dict
from da3po_cli.algos.types import Group, Prompt
from da3po_cli.errors import UsageError
from da3po_cli.rewards import Reward, Shaping, grade_groups
from da3po_cli.runtime import Comm, Generator, Sampling
from da3po_cli.runtime.clock import Clock

OnPhase = Callable[[str, str], None]


class Prompts(Protocol):
    """A seeded, resumable stream of prompts."""

    def next(self, n: int) -> list[Prompt]: ...
    def state(self) -> dict[str, Any]: ...
    def load_state(self, state: dict[str, Any]) -> None: ...


class RolloutSource(Protocol):
    """The step's first half: prompts, responses, grades, and which groups are kept."""

    def collect(self, step: int, clock: Clock) -> Batch: ...
    def state(self) -> dict[str, Any]: ...
    def load_state(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Grader:
    """Grades on rank 0 and tells the others, so that no two ranks can disagree about a verdict."""

    reward: Reward
    shaping: Shaping
    comm: Comm

    def __call__(self, groups: Sequence[Group]) -> None:
        responses = [response for group in groups for response in group.responses]
        if self.comm.rank == 0:
            grade_groups(groups, self.reward, self.shaping)
        if self.comm.world > 1:
            marks = self.comm.broadcast([(r.verdict, r.acc, r.reward) for r in responses])
            for response, mark in zip(responses, marks, strict=True):
                response.verdict, response.acc, response.reward = mark


class LiveRollouts:
    """Rounds of drawing, generating and grading until the batch is full.

    The sampling seed mixes the run's seed with the step, so that a prompt seen in two steps gets fresh samples.
    """

    def __init__(
        self,
        prompts: Prompts,
        generator: Generator,
        grader: Grader,
        sampler: DynamicSampler,
        sampling: Sampling,
        on_phase: OnPhase,
    ) -> None:
        self._prompts, self._generator, self._grade = prompts, generator, grader
        self._sampler, self._sampling, self._on_phase = sampler, sampling, on_phase

    def collect(self, step: int, clock: Clock) -> Batch:
        """Groups for `step`; `Batch.kept` has as many as asked for unless algo.on_exhausted is `short`."""
        sampling = replace(self._sampling, seed=self._sampling.seed + step)
        self._sampler.start()
        while not self._sampler.full:
            drawn = self._prompts.next(self._sampler.next_round())
            self._on_phase("rollout", f"{len(drawn)} prompts x {sampling.n}, {self._sampler.progress}")
            with clock.phase("rollout"):
                groups = self._generator.generate(drawn, sampling)
            with clock.phase("grade"):
                self._grade(groups)
            self._sampler.add(groups)
        with clock.phase("rollout"):
            self._generator.sleep()
        return self._sampler.finish()

    def state(self) -> dict[str, Any]:
        return {"prompts": self._prompts.state(), "sampler": self._sampler.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self._prompts.load_state(state["prompts"])
        self._sampler.load_state(state["sampler"])


class ReplayedRollouts:
    """The rollouts that a run saved, as they were graded and filtered: no engine, no grader, no randomness."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "rollouts" if (directory / "rollouts").is_dir() else directory
        self._path(1)

    def _path(self, step: int) -> Path:
        path = self._directory / f"step_{step}.jsonl"
        if not path.is_file():
            raise UsageError(
                f"no saved rollouts of step {step}",
                where=str(path),
                hint="give a run made with run.save_rollouts=true, and at most as many steps as it has",
            )
        return path

    def collect(self, step: int, clock: Clock) -> Batch:
        """The groups of rollouts/step_N.jsonl, in their order."""
        with clock.phase("rollout"), self._path(step).open(encoding="utf-8") as lines:
            groups = [group_from_dict(json.loads(line)) for line in lines]
        kept = [group for group in groups if group.drop_reason is None]
        return Batch(
            kept=kept, dropped=[g for g in groups if g.drop_reason is not None], generated=len(groups), rounds=1
        )

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None: ...


def batch_metrics(batch: Batch, *, tau: float, rollout_seconds: float) -> dict[str, float]:
    """What the rollouts of a step say, under the names of the metric reference.

    `train/acc` and `rollout/*` are over everything generated, kept or not, so that the filter does not colour them;
    `sample/hard_share` (pass rate strictly below tau) and `daa/amplified` are over the kept groups.
    """
    groups = batch.kept + batch.dropped
    responses = [response for group in groups for response in group.responses]
    kept = [response for group in batch.kept for response in group.responses]
    tokens = sum(len(response.token_ids) for response in responses)
    reasons = Counter(group.drop_reason for group in batch.dropped)

    def mean(values: list[float]) -> float:
        return sum(values) / len(values) if values else 0.0

    metrics: dict[str, float] = {
        "train/acc": mean([response.acc for response in responses]),
        "train/reward": mean([response.reward for response in kept]),
        "train/acc_kept": mean([response.acc for response in kept]),
        "sample/kept": len(batch.kept),
        "sample/generated": batch.generated,
        "sample/rounds": batch.rounds,
        "sample/hard_share": mean([group.pass_rate < tau for group in batch.kept]),
        "daa/amplified": mean([response.daa_weight != 1.0 for response in kept]),
        "rollout/length": tokens / max(1, len(responses)),
        "rollout/truncated": mean([response.finish_reason == "length" for response in responses]),
        "rollout/tokens": tokens,
        "grade/unknown": mean([response.verdict == "unknown" for response in responses]),
    }
    for reason in ("too_easy", "too_hard", "failed", "duplicate", "surplus"):
        metrics[f"sample/drop_{reason}"] = reasons[reason]
    if rollout_seconds > 0:
        metrics["rollout/tokens_per_s"] = tokens / rollout_seconds
    return metrics
