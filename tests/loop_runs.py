"""Runs of the real loop: sampler, source, checkpoints, log and files are real; engine, trainer and scores are scripted.

The trainer is a policy of one number w: every token has log-prob -w under it, and every update adds STRIDE to w. So a
response tells by its log-probs which weights sampled it.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from da3po_cli.algos.sampling import DynamicSampler
from da3po_cli.algos.table import AlgoConfig
from da3po_cli.algos.types import Group, MicroBatch, Prompt, Response
from da3po_cli.config.schema import (
    CheckpointConfig,
    Config,
    ModelConfig,
    RolloutConfig,
    RunConfig,
    TrainConfig,
    ValidationConfig,
)
from da3po_cli.data.formats import Dropped
from da3po_cli.data.prompts import Item, Part, PromptStream
from da3po_cli.launching.launch import WorkerOptions
from da3po_cli.launching.stop import Stop
from da3po_cli.protocols import Sampling, Update, Validation
from da3po_cli.runs.checkpoints import saved_steps
from da3po_cli.runs.display import PlainLines
from da3po_cli.runs.metrics import read_metrics
from da3po_cli.runs.validations import validation_file
from da3po_cli.training.checkpoint import CheckpointStore
from da3po_cli.training.collect import LiveRollouts, ReplayedRollouts
from da3po_cli.training.health import Health
from da3po_cli.training.loop import Parts, due, train
from da3po_cli.training.worker import _run_log

SEED = 1000  # of the run; the step is added to it
STRIDE = 0.125  # exact in float32
SCORE = "val/held/avg@1"


class One:
    """A job of one rank."""

    rank, world, data_rank, data_size = 0, 1, 0, 1

    def barrier(self) -> None: ...
    def broadcast(self, value: Any) -> Any:
        return value


@dataclass
class Trainer:
    """The policy of one number; `rows` has the trajectories of every update, and `bad` updates are not finite."""

    weight: float = 1.0
    steps: int = 0
    saves: int = 0
    bad: frozenset[int] = frozenset()
    rows: list[list[int]] = field(default_factory=list[list[int]])

    def logprobs(self, batches: Sequence[MicroBatch], *, reference: bool = False) -> list[torch.Tensor]:
        return [torch.where(batch.mask, -self.weight, 0.0) for batch in batches]

    def update(self, batches: Sequence[MicroBatch], loss_fn: Any, check: Any = None) -> Update:
        loss, sums = 0.0, {}
        for batch, logp in zip(batches, self.logprobs(batches), strict=True):
            part, found = loss_fn(logp, torch.ones_like(logp), batch)
            loss += float(part)
            sums = {name: sums.get(name, 0.0) + float(value) for name, value in found.items()}
        self.rows.append(sorted(row for batch in batches for row in batch.rows))
        skipped = len(self.rows) in self.bad
        self.weight += 0 if skipped else STRIDE
        return Update(float("nan") if skipped else loss, 1.0, 1e-3, skipped, sums)

    def advance_schedule(self) -> None:
        self.steps += 1

    def save(self, directory: Path) -> None:
        self.saves += 1
        (directory / "weights.distcp").write_text(f"{self.weight} {self.steps}")

    def load(self, directory: Path) -> None:
        weight, steps = (directory / "weights.distcp").read_text().split()
        self.weight, self.steps = float(weight), int(steps)


@dataclass
class Engine:
    """Answers that follow from the prompt's uid, the sample's number and the seed; some fail, some cannot be judged."""

    trainer: Trainer
    rate: float
    unjudged: float = 0.0
    failing: float = 0.0
    made: dict[int, list[Group]] = field(default_factory=dict[int, list[Group]])  # by step
    rounds: int = 0

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Group]:
        self.rounds += 1
        groups = [
            Group(prompt, [self._answer(prompt, number, sampling) for number in range(sampling.n)])
            for prompt in prompts
        ]
        self.made.setdefault(sampling.seed - SEED, []).extend(groups)
        return groups

    def _answer(self, prompt: Prompt, number: int, sampling: Sampling) -> Response:
        dice = random.Random(f"{prompt.uid} {number} {sampling.seed}")
        tokens, right = [dice.randrange(1, 9) for _ in range(dice.randrange(1, 6))], dice.random() < self.rate
        if dice.random() < self.failing:
            return Response([], [], "", "failed", "unknown")
        unknown = dice.random() < self.unjudged
        verdict = "unknown" if unknown else "correct" if right else "wrong"
        acc = int(verdict == "correct")
        ending = "length" if len(tokens) == 5 else "stop"
        return Response(tokens, [-self.trainer.weight] * len(tokens), "", ending, verdict, acc, 2.0 * acc - 1)

    def sleep(self) -> None: ...


class Signal:
    """A SIGTERM that comes in a step."""

    def __init__(self, trainer: Trainer, step: int | None) -> None:
        self._trainer, self._step = trainer, step

    @property
    def asked(self) -> signal.Signals | None:
        return signal.SIGTERM if self._step is not None and self._trainer.steps >= self._step else None

    def patient(self, tell: Any) -> None: ...
    def impatient(self) -> None: ...


def config(
    algo: AlgoConfig,
    *,
    steps: int = 4,
    prompts: int = 4,
    size: int = 4,
    epochs: int = 1,
    validate: int = 0,
    **saving: Any,
) -> Config:
    """A small run in float32; `saving` are keys of `checkpoint`."""
    return replace(
        Config(),
        run=RunConfig(steps=steps, save_rollouts=True, tensorboard=False),
        model=ModelConfig(dtype="float32"),
        algo=algo,
        rollout=RolloutConfig(prompts=prompts, group_size=size, max_tokens=5),
        train=TrainConfig(mini_batch_prompts=2, micro_batch_tokens=40, epochs=epochs),
        validation=ValidationConfig(every=validate),
        checkpoint=CheckpointConfig(**{"every": 1, "keep": 100, **saving}),
    )


@dataclass
class Played:
    """What a start of a run has left: its parts, and where its files are."""

    root: Path
    trainer: Trainer
    engine: Engine
    store: CheckpointStore
    last: int = 0

    @property
    def records(self) -> list[dict[str, Any]]:
        """metrics.jsonl without what a clock has measured."""
        found = read_metrics(self.root / "metrics.jsonl")
        return [{k: v for k, v in one.items() if "timing/" not in k and not k.endswith("_per_s")} for one in found]

    def steps(self) -> list[int]:
        return saved_steps(self.root / "checkpoints")


def play(
    root: Path,
    config: Config,
    *,
    resume: str | None = None,
    rate: float = 0.5,
    unjudged: float = 0.0,
    failing: float = 0.0,
    rows: int = 7,
    scores: Mapping[int, float] | None = None,
    stop_in: int | None = None,
    replay: Path | None = None,
    bad: Sequence[int] = (),
    played: list[Played] | None = None,
) -> Played:
    """Start a run, or go on with it, as a worker does.

    Args:
        resume: a step, or "" for the latest checkpoint.
        rate: share of right answers.
        scores: of the validation after each step; None is no validation.
        stop_in: the step in which a signal comes.
        played: takes the result before the first step, for a run that ends with an error.
    """
    trainer = Trainer(bad=frozenset(bad))
    engine = Engine(trainer, rate, unjudged, failing)
    root.mkdir(exist_ok=True)
    if replay is None:
        items = [Item((1, 2), "", "", "data", row, str(row)) for row in range(rows)]
        prompts = PromptStream([Part(items, 1)], "train", 3, Dropped())
        sampler = DynamicSampler(config.algo, config.rollout.prompts)
        sampling = Sampling(config.rollout.group_size, 5, temperature=config.rollout.temperature, seed=SEED)
        source = LiveRollouts(prompts, engine, lambda groups: None, sampler, sampling, lambda *_: None)
    else:
        source = ReplayedRollouts(replay)
    store = CheckpointStore(root / "checkpoints", config.checkpoint, trainer, source, One())
    store.open()
    first = 1 if resume is None else 1 + store.load(int(resume) if resume else None)
    options = WorkerOptions(attempt=1, resume=resume, replay=None if replay is None else str(replay))
    log = _run_log(config, root, options, PlainLines(config.run.steps), 0, first, store.record)
    stop = Stop(One(), Signal(trainer, stop_in), lambda text: None, None)

    def validate() -> Validation:
        return Validation({SCORE: (scores or {})[trainer.steps]}, {"held": {}})

    parts = Parts(
        One(), trainer, source, None, validate if scores else None, log, store, stop,
        Health(config.health, config.rollout.max_tokens),
    )  # fmt: skip
    missing = due(first - 1, config.validation.every, config.run.steps)
    missing = missing and not validation_file(root, first - 1).is_file()
    result = Played(root, trainer, engine, store)
    if played is not None:
        played.append(result)
    try:
        result.last = train(config, parts, first_step=first, validation_due=missing)
    finally:
        log.close()
    return result
