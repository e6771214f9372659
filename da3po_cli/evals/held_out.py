"""Grading of held-out answers, in a run's validation and in `da3po eval`; and the validation itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from da3po_cli.algos.types import Group, Prompt
from da3po_cli.evals.asking import make_prompts
from da3po_cli.evals.metrics import Sample, by_difficulty, score, tally
from da3po_cli.evals.tasks import Task
from da3po_cli.protocols import Comm, Generator, Sampling, Validation
from da3po_cli.rewards import Grade, GradingPool, Item, MathOptions
from da3po_cli.rewards.registry import sources
from da3po_cli.runs.validations import Correct


class Graders:
    """Grading pools by reward and options; they start with their first answer.

    Args:
        workers: processes of each; None is one per core.
        deadline_s: CPU seconds per answer.
    """

    def __init__(self, workers: int | None, deadline_s: float) -> None:
        self._workers, self._deadline_s = workers, deadline_s
        self._pools: dict[tuple[str, str], GradingPool] = {}

    def grade(self, task: Task, answers: Sequence[tuple[Prompt, str, str]]) -> list[Grade]:
        """Grades of (prompt, response text, finish reason), in order. A failed response is unknown."""
        grades = [Grade("unknown", None, "the engine failed") for _ in answers]
        by_source, waiting = sources(task.by_source), dict[str, list[int]]()
        for place, (prompt, _, reason) in enumerate(answers):
            if reason != "failed":
                waiting.setdefault(by_source.get(prompt.source, task.reward), []).append(place)
        for reward, places in waiting.items():
            items: list[Item] = [(text, reason, prompt.answer) for prompt, text, reason in (answers[p] for p in places)]
            pool = self._pool(reward, task.options if reward == task.reward else {})
            for place, grade in zip(places, pool.grade(items), strict=True):
                grades[place] = grade
        return grades

    def _pool(self, reward: str, options: Mapping[str, Any]) -> GradingPool:
        key = (reward, repr(sorted(options.items())))
        if key not in self._pools:
            chosen = MathOptions(**options) if options else None
            self._pools[key] = GradingPool(reward, options=chosen, workers=self._workers, deadline_s=self._deadline_s)
        return self._pools[key]

    def close(self) -> None:
        """End the grading processes."""
        for pool in self._pools.values():
            pool.close()


@dataclass(frozen=True)
class HeldOut:
    """Held-out prompts under one name, and what fills in the verdicts of their responses, on every rank."""

    name: str
    prompts: Sequence[Prompt]
    grade: Callable[[Sequence[Group]], None]


def benchmark(task: Task, tokenizer: Any, graders: Graders, comm: Comm) -> HeldOut:
    """A benchmark as held-out prompts: graded by its own policy, on rank 0."""

    def grade(groups: Sequence[Group]) -> None:
        responses = [response for group in groups for response in group.responses]
        verdicts = None
        if comm.rank == 0:
            answers = [(group.prompt, r.text, str(r.finish_reason)) for group in groups for r in group.responses]
            verdicts = [grade.verdict for grade in graders.grade(task, answers)]
        for response, verdict in zip(responses, comm.broadcast(verdicts), strict=True):
            response.verdict, response.acc = verdict, int(verdict == "correct")

    return HeldOut(task.name, make_prompts(task, tokenizer), grade)


@dataclass(frozen=True)
class Validator:
    """Samples every held-out prompt `sampling.n` times, all benchmarks in one queue.

    The seeds of the samples come from `sampling.seed` and the prompts' uids alone, so validation draws the same
    random numbers whenever it runs and takes none from training.
    """

    benches: Sequence[HeldOut]
    generator: Generator
    sampling: Sampling
    start: Correct | None
    """The counts before training, which tell hard problems from easy ones: filled by the first validation where it is
    empty; None where they are not known."""

    def __call__(self) -> Validation:
        """val/<bench>/avg@k, pass@k (unbiased), mean response length, truncated and unknown shares, and accuracy on
        the problems that were hard, medium and easy before training."""
        prompts = [prompt for bench in self.benches for prompt in bench.prompts]
        groups = iter(self.generator.generate(prompts, self.sampling))
        metrics: dict[str, float] = {}
        correct: Correct = {}
        for bench in self.benches:
            mine = [next(groups) for _ in bench.prompts]
            bench.grade(mine)
            correct[bench.name] = {group.prompt.uid: group.correct for group in mine}
            metrics |= _metrics(bench.name, mine)
        if self.start is not None:
            if not self.start:
                self.start.update(correct)
            for bench, counts in correct.items():
                start, now = (self._shares(one) for one in (self.start.get(bench, {}), counts))
                levels = by_difficulty(start, now)
                metrics |= {f"val/{bench}/acc_{level}": share for level, share in levels.items()}
        return Validation(metrics, correct)

    def _shares(self, counts: Mapping[str, int]) -> dict[str, float]:
        return {problem: count / self.sampling.n for problem, count in counts.items()}


def _metrics(bench: str, groups: Sequence[Group]) -> dict[str, float]:
    scores = score(
        [
            tally(
                group.prompt.uid,
                group.prompt.index,
                [Sample(r.verdict, None, r.finish_reason, len(r.token_ids)) for r in group.responses],
            )
            for group in groups
        ]
    )
    name = f"val/{bench}"
    return {
        f"{name}/avg@{scores.k}": scores.avg.mean,
        f"{name}/pass@{scores.k}": scores.passes[scores.k].mean,
        f"{name}/length": scores.length.mean,
        f"{name}/truncated": scores.truncated,
        f"{name}/unknown": scores.unknown + scores.failed,
    }
