"""Small jobs and results, made without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from da3po_cli.algos.types import Prompt
from da3po_cli.config.schema import Config
from da3po_cli.evals.problems import Problem, Problems
from da3po_cli.evals.registry import Benchmark
from da3po_cli.evals.result import Result, make_result
from da3po_cli.evals.tasks import Asked, Job, Model, Task, resolve


def make_task(name: str = "toy", problems: int = 4, k: int = 2, **fields: Any) -> Task:
    rows = tuple(
        Problem(f"{name}{index}", index, ({"role": "user", "content": f"What is {index}?"},), str(index), name)
        for index in range(problems)
    )
    bench = Benchmark(name, title=name.upper(), path=f"{name}.jsonl", problems=problems, **fields)
    return resolve(bench, Problems(rows, f"{name}.jsonl", problems, ()), Config(), Asked(k=k), is_run=False)


def make_job(*tasks: Task, weights: str = "w", name: str = "model", **engine: Any) -> Job:
    prompts = tuple(tuple(make_prompt(task, problem) for problem in task.problems) for task in tasks)
    return Job(Model(name, "/model", weights), tasks, {"dtype": "float32", **engine}, prompts, (2,))


def make_prompt(task: Task, problem: Problem) -> Prompt:
    """A token for each character, without any template."""
    text = problem.messages[-1]["content"]
    return Prompt(task.uid(problem), tuple(map(ord, text)), text, problem.answer, problem.source, problem.index)


def records(task: Task, correct: Sequence[int]) -> list[dict[str, Any]]:
    """Samples of which the first `correct[problem]` of each problem are right."""
    return [
        {
            "bench": task.name,
            "index": problem.index,
            "uid": task.uid(problem),
            "sample": number,
            "response": "",
            "finish_reason": "stop" if number % 2 == 0 else "length",
            "tokens": 10 + number,
            "gold": problem.answer,
            "extracted": problem.answer if number < right else f"no {number}",
            "verdict": "correct" if number < right else "wrong",
            "rule": "",
            "seconds": 0.0,
        }
        for problem, right in zip(task.problems, correct, strict=True)
        for number in range(task.sampling.n)
    ]


def result_of(correct: dict[str, Sequence[int]], k: int = 2, name: str = "model") -> Result:
    """A result with the given numbers of right samples per problem and benchmark."""
    tasks = [make_task(bench, len(counts), k) for bench, counts in correct.items()]
    samples = [one for task, counts in zip(tasks, correct.values(), strict=True) for one in records(task, counts)]
    job = make_job(*tasks, name=name)
    return make_result(job, samples, {"ran": job.facts})
