"""An evaluation, resolved: which model answers which problems, how, and a hash of all that its numbers depend on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from da3po_cli.config.paths import expanded
from da3po_cli.config.schema import Config
from da3po_cli.data.spec import JINJA_SUFFIXES
from da3po_cli.errors import UsageError
from da3po_cli.evals.problems import Problem, Problems
from da3po_cli.evals.registry import Benchmark
from da3po_cli.runtime import Sampling

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
    """What else the numbers depend on: dtype, quantization, stop tokens, versions, code."""

    @property
    def fingerprint(self) -> str:
        """Hash of all that the samples and grades depend on; names, paths and the number of engines are not part."""
        content = {
            "weights": self.model.weights,
            "engine": self.engine,
            "tasks": [
                {
                    "template": _template_text(task.template),
                    **{
                        key: value
                        for key, value in asdict(replace(task, problems=())).items()
                        if key in ("data", "thinking", "instruction", "reward", "by_source", "options", "uid_prefix")
                    },
                    "sampling": asdict(task.sampling),
                }
                for task in self.tasks
            ],
        }
        return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()

    def write(self, file: Path) -> None:
        """As JSON, for the ranks."""
        file.write_text(json.dumps(asdict(self), ensure_ascii=False))

    @classmethod
    def read(cls, file: Path) -> Job:
        """What `write` wrote."""
        raw = json.loads(file.read_text())
        return cls(Model(**raw["model"]), tuple(_task(task) for task in raw["tasks"]), raw["engine"])


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


def _template_text(template: str) -> str:
    """A template file by its content."""
    path = expanded(template)
    return path.read_text(encoding="utf-8") if path.suffix in JINJA_SUFFIXES and path.is_file() else template
