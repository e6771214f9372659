"""An evaluation, resolved: which model answers which problems, how, and a hash of all that its numbers depend on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from da3po_cli.algos.types import Prompt
from da3po_cli.config.schema import Config
from da3po_cli.errors import UsageError
from da3po_cli.evals.problems import Problem, Problems
from da3po_cli.evals.registry import Benchmark
from da3po_cli.protocols import Sampling

SEED = 1  # one for every evaluation and validation, so that models are compared on the same draws
PLAIN_TEMPLATES = ("dapo", "boxed", "none")
TEMPLATE = "dapo"  # for a model that is no run: what the paper's runs are trained with


@dataclass(frozen=True)
class Asked:
    """What the command line says; None leaves it to the benchmark, and then to the config."""

    k: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    template: str | None = None
    limit: int | None = None
    seed: int = SEED


@dataclass(frozen=True)
class Task:
    """One benchmark of an evaluation: nothing left open."""

    name: str
    title: str
    metrics: tuple[str, ...]
    expected: int | None
    """Problems that the benchmark has, by its entry."""
    total: int
    """Problems found, before --limit."""
    place: str
    warnings: tuple[str, ...]
    data: str
    """Fingerprint of the problems."""
    template: str
    thinking: bool | None
    instruction: str
    reward: str
    by_source: str
    options: dict[str, Any]
    sampling: Sampling
    uid_prefix: str
    problems: tuple[Problem, ...]

    def uid(self, problem: Problem) -> str:
        """Names the problem's prompt; the seeds of its samples depend on it."""
        return f"{self.uid_prefix}-{problem.index}"


def resolve(bench: Benchmark, problems: Problems, config: Config, asked: Asked, *, is_run: bool) -> Task:
    """Fill in what a benchmark leaves open: the command line, then its entry, then the config.

    Args:
        config: of the run under evaluation, or the defaults for a model that is no run.
        is_run: whether config.data.template is how the model was trained.

    Raises:
        UsageError: a number that makes no sense.
    """
    own = config.validation
    sampling = Sampling(
        n=_first(asked.k, bench.k, own.samples),
        max_tokens=_first(asked.max_tokens, bench.max_tokens, config.rollout.max_tokens),
        temperature=float(_first(asked.temperature, bench.temperature, own.temperature)),
        top_p=float(_first(asked.top_p, bench.top_p, own.top_p)),
        seed=asked.seed,
    )
    for name, value in (("--k", sampling.n), ("--max-tokens", sampling.max_tokens)):
        if value < 1:
            raise UsageError(f"{name} {value} must be at least 1", where=name, hint=f"{name} 1 or more")
    if sampling.temperature < 0 or not 0 < sampling.top_p <= 1:
        raise UsageError(
            f"temperature {sampling.temperature:g} and top-p {sampling.top_p:g} do not make a distribution",
            where="--temperature, --top-p",
            hint="a temperature of 0 (greedy) or more, and top-p in (0, 1]",
        )
    template = _first(asked.template, bench.template, config.data.template if is_run else TEMPLATE)
    return Task(
        name=bench.name,
        title=bench.title,
        metrics=bench.metrics,
        expected=bench.problems,
        total=problems.total,
        place=problems.place,
        warnings=problems.warnings,
        data=problems.fingerprint,
        template=template,
        thinking=None if template in PLAIN_TEMPLATES else config.data.thinking,
        instruction=bench.instruction,
        reward=_first(bench.reward, config.reward.name),
        by_source=config.reward.by_source if bench.reward is None else "",
        options=dict(bench.options),
        sampling=sampling,
        uid_prefix=bench.uid_prefix,
        problems=problems.problems,
    )


def _first(*values: Any) -> Any:
    """The first that is not None."""
    return next(value for value in values if value is not None)


@dataclass(frozen=True)
class Model:
    """What is evaluated."""

    name: str
    """As the tables call it."""
    path: str
    """Hugging Face directory: config and tokenizer, and the weights where there is no checkpoint."""
    weights: str
    """Fingerprint of the files; see da3po_cli.evals.identity."""
    run: str | None = None
    step: int | None = None
    checkpoint: str | None = None
    """A run's checkpoint, the directory step_N."""


@dataclass(frozen=True)
class Job:
    """A whole evaluation of one model."""

    model: Model
    tasks: tuple[Task, ...]
    engine: dict[str, Any]
    """What else the numbers depend on: dtype, quantization, the graders' deadline, versions, code."""
    prompts: tuple[tuple[Prompt, ...], ...]
    """Of each task, one per problem: what the engine is asked."""
    stop_token_ids: tuple[int, ...]
    notes: tuple[str, ...] = ()
    """What a reader of the numbers must know about the prompts."""

    @property
    def fingerprint(self) -> str:
        """Hash of all that the samples and grades depend on; names, paths and the number of engines are not part.

        Of a prompt and its responses it is what the engine gets that counts, tokens and limits, so that no code and
        no setting on the way there can be forgotten.
        """
        content = {
            "weights": self.model.weights,
            "engine": self.engine,
            "stop_token_ids": self.stop_token_ids,
            "tasks": [_content(task, prompts) for task, prompts in zip(self.tasks, self.prompts, strict=True)],
        }
        return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its longest response: the context that the engine needs."""
        return max(
            len(prompt.token_ids) + task.sampling.limit(prompt)
            for task, prompts in zip(self.tasks, self.prompts, strict=True)
            for prompt in prompts
        )

    @property
    def facts(self) -> dict[str, Any]:
        """For the result: the longest prompt, and of each task the smallest and the largest limit of a response."""
        limits = {
            task.name: [task.sampling.limit(prompt) for prompt in prompts]
            for task, prompts in zip(self.tasks, self.prompts, strict=True)
        }
        return {
            "max_prompt_tokens": max(len(prompt.token_ids) for prompts in self.prompts for prompt in prompts),
            "max_tokens": {name: [min(found), max(found)] for name, found in limits.items()},
            "stop_token_ids": list(self.stop_token_ids),
            "notes": list(self.notes),
        }

    def write(self, file: Path) -> None:
        """As JSON, for the ranks."""
        file.write_text(json.dumps(asdict(self), ensure_ascii=False))

    @classmethod
    def read(cls, file: Path) -> Job:
        """What `write` wrote."""
        raw = json.loads(file.read_text())
        return cls(
            Model(**raw["model"]),
            tuple(_task(task) for task in raw["tasks"]),
            raw["engine"],
            tuple(tuple(_prompt(prompt) for prompt in prompts) for prompts in raw["prompts"]),
            tuple(raw["stop_token_ids"]),
            tuple(raw["notes"]),
        )


def _content(task: Task, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """What the samples and grades of one benchmark depend on, JSON-ready."""
    sampling = task.sampling
    return {
        "data": task.data,
        "prompts": [(one.uid, one.token_ids, sampling.limit(one), one.answer, one.source) for one in prompts],
        "sampling": {key: getattr(sampling, key) for key in ("n", "temperature", "top_p", "top_k", "seed")},
        "reward": task.reward,
        "by_source": task.by_source,
        "options": task.options,
    }


def _prompt(raw: Mapping[str, Any]) -> Prompt:
    return Prompt(**{**raw, "token_ids": tuple(raw["token_ids"])})


def _task(raw: Mapping[str, Any]) -> Task:
    problems = tuple(Problem(**{**one, "messages": tuple(one["messages"])}) for one in raw["problems"])
    return Task(
        **{
            **raw,
            "problems": problems,
            "sampling": Sampling(**raw["sampling"]),
            "metrics": tuple(raw["metrics"]),
            "warnings": tuple(raw["warnings"]),
        }
    )
