"""Where a step's groups come from: the live engine with dynamic sampling, or the saved rollouts of another run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from da3po_cli.algos.diagnostics import SolvedPrompts
from da3po_cli.algos.records import group_from_dict
from da3po_cli.algos.sampling import Batch, DynamicSampler
from da3po_cli.algos.types import Group, Prompt, Response
from da3po_cli.config.schema import RewardConfig
from da3po_cli.data.verify import Golds, verifier
from da3po_cli.errors import DivergedError, UsageError
from da3po_cli.protocols import Comm, Generator, Sampling
from da3po_cli.rewards import Grade, GradeMany, GradingPool, Shaping, grade_groups, make_reward
from da3po_cli.rewards.registry import sources
from da3po_cli.runs.rollouts import read_rollouts, rollouts_file
from da3po_cli.training.clock import Clock

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


class Grader:
    """Grades on rank 0 and tells the others, so that no two ranks can disagree about a verdict.

    Raises:
        UsageError: a reward of the config cannot be imported or has another signature.
    """

    MIN_UNKNOWN = 4  # so few unknown answers never stop a run, whatever their share

    def __init__(self, config: RewardConfig, shaping: Shaping, comm: Comm) -> None:
        self._config, self._shaping, self._comm = config, shaping, comm
        self._by_source = sources(config.by_source)
        self._pools: dict[str, GradingPool] = {}
        if comm.rank == 0:
            for name in {config.name, *self._by_source.values()}:
                make_reward(name)  # fails here, before a step is paid for
                self._pools[name] = GradingPool(name, workers=config.workers, deadline_s=config.deadline_s)

    def __call__(self, groups: Sequence[Group]) -> None:
        """Fill verdict, acc and reward of every response.

        Raises:
            DivergedError: more than reward.max_unknown of the responses could not be judged. On every rank.
        """
        responses = [response for group in groups for response in group.responses]
        if self._comm.rank == 0:
            grade_groups(groups, self._grades, self._shaping)
        if self._comm.world > 1:
            marks = self._comm.broadcast([(r.verdict, r.acc, r.reward) for r in responses])
            for response, mark in zip(responses, marks, strict=True):
                response.verdict, response.acc, response.reward = mark
        self._stop_if_blind(responses)

    def verify(self, golds: Golds) -> Sequence[Grade]:
        """Each gold graded as an answer to itself, by the reward of its data source; the same on every rank."""
        grades = verifier(self._config, self._pools.__getitem__)(golds) if self._comm.rank == 0 else []
        return self._comm.broadcast(grades) if self._comm.world > 1 else grades

    def close(self) -> None:
        """End the grading workers."""
        for pool in self._pools.values():
            pool.close()

    def _grades(self, source: str) -> GradeMany:
        return self._pools[self._by_source.get(source, self._config.name)].grade

    def _stop_if_blind(self, responses: Sequence[Response]) -> None:
        judged = [response for response in responses if response.finish_reason != "failed"]
        unknown = sum(response.verdict == "unknown" for response in judged)
        limit = self._config.max_unknown
        if unknown > max(limit * len(judged), self.MIN_UNKNOWN):
            raise DivergedError(
                f"the grader could not judge {unknown} of {len(judged)} answers, above reward.max_unknown={limit:g}",
                where=f"reward {self._config.name}",
                hint="look at them with `da3po grade` on the run's rollouts; raise reward.deadline_s, "
                "or reward.max_unknown to go on",
            )


class LiveRollouts:
    """Rounds of drawing, generating and grading until the batch is full.

    The sampling seed mixes the run's seed with the step, so that a prompt seen in two steps gets fresh samples. The
    state is that between two steps or, after SamplingExhausted, in the middle of one: the next `collect` then goes on
    with its rounds, and must be told the same step.
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
        self._solved = SolvedPrompts()
        self._spent: dict[str, float] = {}  # seconds by phase, of a step in progress

    def collect(self, step: int, clock: Clock) -> Batch:
        """Groups for `step`; `Batch.kept` has as many as asked for unless algo.on_exhausted is `short`.

        Raises:
            SamplingExhausted: algo.max_rounds did not suffice.
        """
        sampling = replace(self._sampling, seed=self._sampling.seed + step)
        clock.credit(self._spent)
        self._sampler.start()
        while not self._sampler.full:
            drawn = self._prompts.next(self._sampler.next_round())
            self._on_phase("rollout", f"{len(drawn)} prompts x {sampling.n}, {self._sampler.progress}")
            with clock.phase("rollout"):
                groups = self._generator.generate(drawn, sampling)
            with clock.phase("grade"):
                self._grade(groups)
            for group in groups:
                group.step = step
            self._sampler.add(groups)
        with clock.phase("rollout"):
            self._generator.sleep()
        self._spent = {name: clock.spent(name) for name in ("rollout", "grade")}
        batch = self._sampler.finish()
        self._spent = {}
        self._solved.mark(batch.generated)
        return batch

    def state(self) -> dict[str, Any]:
        """JSON-ready; in the middle of a step also what it has cost so far, and how its groups were sampled."""
        state = {"prompts": self._prompts.state(), "sampler": self._sampler.state(), "solved": self._solved.state()}
        if self._sampler.started:
            state["in_step"] = {"seconds": self._spent, "temperature": self._sampling.temperature}
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises:
            UsageError: that is the middle of a step whose groups were sampled at another temperature, or it is of other
                data.
        """
        in_step: dict[str, Any] = state.get("in_step", {})
        before, now = in_step.get("temperature", self._sampling.temperature), self._sampling.temperature
        if before != now:
            raise UsageError(
                f"rollout.temperature={now:g} cannot go on in the middle of a step whose groups were sampled at "
                f"{before:g}",
                where="rollout.temperature",
                hint=f"rollout.temperature={before:g} until that step is done, or an earlier checkpoint",
            )
        self._spent = in_step.get("seconds", {})
        self._prompts.load_state(state["prompts"])
        self._sampler.load_state(state["sampler"])
        self._solved.load_state(state["solved"])


class ReplayedRollouts:
    """The rollouts that a run saved, as they were graded and filtered: no engine, no grader, no randomness."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "rollouts" if (directory / "rollouts").is_dir() else directory
        self._path(1)

    def _path(self, step: int) -> Path:
        path = rollouts_file(self._directory, step)
        if not path.is_file():
            raise UsageError(
                f"no saved rollouts of step {step}",
                where=str(path),
                hint="give a run made with run.save_rollouts=true, and at most as many steps as it has",
            )
        return path

    def collect(self, step: int, clock: Clock) -> Batch:
        """The groups of rollouts/step_N.jsonl, in their order.

        A group that the run carried over is in the file of the step that trained on it, and in no other: it counts as
        generated there.
        """
        with clock.phase("rollout"):
            groups = [group_from_dict(record) for _, record in read_rollouts(self._path(step))]
        kept = [group for group in groups if group.drop_reason is None]
        return Batch(kept, dropped=[g for g in groups if g.drop_reason is not None], generated=groups, rounds=1)

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None: ...
