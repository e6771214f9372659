"""The training loop. Every rank runs it in step; it knows the outside by protocols only.

prompts -> rollout -> grade -> dynamic sampling -> advantage (DAA) -> old log-probs (not when exactly on-policy)
-> micro-batches -> per mini-batch: forward/backward, log-prob check, optimizer -> reshard to the engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from da3po_cli.algos.advantages import assign_advantages
from da3po_cli.algos.batching import collate, denominators, plan_micro_batches
from da3po_cli.algos.diagnostics import batch_metrics
from da3po_cli.algos.losses import finish_metrics, make_loss_fn
from da3po_cli.algos.sampling import Batch, SamplingExhausted
from da3po_cli.algos.types import Group, MicroBatch, Trajectory
from da3po_cli.config.schema import Config
from da3po_cli.protocols import Comm, Policy, Update, Validation, WeightSync
from da3po_cli.training.clock import Clock
from da3po_cli.training.collect import RolloutSource
from da3po_cli.training.health import Health, not_finite
from da3po_cli.training.skipped import skipped_batch


class Observer(Protocol):
    """Who is told about the run: display, metric files, saved rollouts."""

    def begin(self, step: int) -> None: ...
    def phase(self, name: str, detail: str = "") -> None: ...
    def warn(self, text: str) -> None: ...
    def skipped(self, step: int, update: int, why: str, batch: Sequence[dict[str, Any]]) -> None: ...
    def rollouts(self, step: int, batch: Batch) -> None: ...
    def validated(self, step: int, found: Validation) -> None: ...
    def record(self, record: dict[str, Any]) -> None: ...
    def amend(self, step: int, found: dict[str, float]) -> None: ...


class Checkpoints(Protocol):
    """Saves everything that the next step depends on; see `checkpoint.CheckpointStore`."""

    seconds: float

    def score(self, record: dict[str, Any]) -> bool: ...
    def save(self, step: int, record: dict[str, Any]) -> None: ...
    def save_in_step(self, step: int, record: dict[str, Any]) -> None: ...
    def amend(self, step: int, found: dict[str, float]) -> None: ...
    def poll(self) -> None: ...
    def wait(self) -> None: ...


class Stops(Protocol):
    """Decides whether the job goes on; see `stop.Stop`."""

    def begin(self, step: int) -> None: ...
    def asked(self) -> bool: ...
    def here(self, save: float) -> bool: ...


class Validate(Protocol):
    def __call__(self) -> Validation: ...


@dataclass(frozen=True)
class Parts:
    """What a run is made of. Without an engine (replayed rollouts) `sync` and `validate` are None."""

    comm: Comm
    policy: Policy
    source: RolloutSource
    sync: WeightSync | None
    validate: Validate | None
    observer: Observer
    checkpoints: Checkpoints
    stop: Stops
    health: Health


def train(config: Config, parts: Parts, *, first_step: int = 1, validation_due: bool = False) -> int:
    """Run steps `first_step` to `config.run.steps`.

    Args:
        first_step: 1, or the one after the checkpoint that the parts were loaded from.
        validation_due: that checkpoint's validation was left out, for its job had to stop: it is made up for.

    Returns:
        The last step that was done; below `config.run.steps` when the job was asked to stop or is short of time.

    Raises:
        DivergedError: numbers were not finite several updates in a row, a limit of `health` was passed, or trainer and
            engine disagree. On every rank.
    """
    clock = Clock(parts.observer.phase)
    if parts.sync:
        with clock.phase("sync"):
            parts.sync.push()
    record: dict[str, Any] = {}  # of the step before
    if first_step == 1 and parts.validate:
        scores = validate(0, parts.validate, parts.observer, clock)
        parts.checkpoints.score(scores)
        record = {"step": 0, **scores, **clock.lap()}
        parts.observer.record(record)
    elif validation_due and parts.validate:
        make_up(first_step - 1, parts.validate, parts, clock)
    clock.lap()
    step = first_step - 1
    for step in range(first_step, config.run.steps + 1):
        parts.stop.begin(step)
        parts.observer.begin(step)
        batch = collect(step, record, parts, clock)
        for group in batch.kept:
            assign_advantages(group, config.algo)
        updates = learn(step, batch.kept, config, parts, clock)
        record = {"step": step, **batch_metrics(batch, tau=config.algo.daa_tau, rollout_seconds=clock.spent("rollout"))}
        record |= update_metrics(updates) | {"health/skipped_updates": parts.health.skipped}
        record |= push(parts, clock)
        parts.observer.rollouts(step, batch)
        stopping = finish_step(step, record, config, parts, clock)
        record |= clock.lap()
        parts.observer.record(record)
        for warning in parts.health.check_step(record):
            parts.observer.warn(warning)
        if stopping:
            break
    parts.checkpoints.wait()
    return step


def collect(step: int, before: dict[str, Any], parts: Parts, clock: Clock) -> Batch:
    """The step's groups. Where the data have no more to give, all that there is is saved before that is raised.

    Args:
        before: the record of the step before.
    """
    try:
        return parts.source.collect(step, clock)
    except SamplingExhausted:
        parts.checkpoints.save_in_step(step - 1, before)
        raise


def push(parts: Parts, clock: Clock) -> dict[str, float]:
    """Reshard the new weights to the engine; what that cost."""
    if not parts.sync:
        return {}
    with clock.phase("sync"):
        report = parts.sync.push()
    return {"sync/seconds": report.seconds, "sync/gb_per_s": report.gigabytes / max(report.seconds, 1e-9)}


def validate(step: int, run: Validate, observer: Observer, clock: Clock) -> dict[str, float]:
    """The metrics of a validation, whose counts per problem the observer keeps."""
    with clock.phase("validate"):
        found = run()
    observer.validated(step, found)
    return found.metrics


def make_up(step: int, run: Validate, parts: Parts, clock: Clock) -> None:
    """The validation of a step whose job had to stop, for its checkpoint, its record and its counts per problem.

    The counts come last: a run without them makes it up.
    """
    with clock.phase("validate"):
        found = run()
    parts.checkpoints.amend(step, found.metrics)
    parts.observer.amend(step, found.metrics)
    parts.observer.validated(step, found)


def finish_step(step: int, record: dict[str, Any], config: Config, parts: Parts, clock: Clock) -> bool:
    """Validate and save where that is due, or where the job stops here. Returns whether it does.

    A signal means soon, so a validation that is due is left out then. A validation that beats every checkpoint makes
    one, unless `checkpoint.every` is 0.
    """
    last, every = config.run.steps, config.checkpoint.every
    best, stopping = False, step < last and parts.stop.asked()
    if parts.validate and due(step, config.validation.every, last) and not stopping:
        record |= validate(step, parts.validate, parts.observer, clock)
        best = config.checkpoint.keep_best and every > 0 and parts.checkpoints.score(record)
    parts.checkpoints.poll()
    stopping = stopping or (step < last and parts.stop.here(parts.checkpoints.seconds))
    if due(step, every, last) or best or stopping:
        with clock.phase("checkpoint"):
            parts.checkpoints.save(step, record | clock.so_far())
    return stopping


def due(step: int, every: int, last: int) -> bool:
    """Whether something done every `every` steps (0: never but at the end) happens after `step`."""
    return step == last or (every > 0 and step % every == 0)


def learn(step: int, groups: Sequence[Group], config: Config, parts: Parts, clock: Clock) -> list[Update]:
    """All optimizer steps of one rollout batch: `train.epochs` passes over its mini-batches."""
    trajectories = [
        Trajectory(group.prompt.token_ids, response.token_ids, response.logprobs, response.advantage)
        for group in groups
        for response in group.responses
    ]
    parts_of_batch = [
        (rows, micro_batches(trajectories, rows, config, parts.comm))
        for rows in mini_batch_rows(groups, config.train.mini_batch_prompts)
    ]
    sampled_in = [group.step for group in groups for _ in group.responses]
    tis = use_tis(config, stale=any(one < step for one in sampled_in))
    with clock.phase("logprob"):
        # The first mini-batch of a single epoch meets the very weights that are the old policy: its ratio is exactly 1.
        # Weights that sampled a group in an earlier step do not come into it: they are TIS's, which divides by them.
        first_off_policy = 1 if config.train.epochs == 1 else 0
        late = [batch for _, batches in parts_of_batch[first_off_policy:] for batch in batches]
        for batch, logprobs in zip(late, parts.policy.logprobs(late), strict=True):
            batch.old_logprobs = logprobs
        if config.algo.kl_coef:
            everything = [batch for _, batches in parts_of_batch for batch in batches]
            for batch, logprobs in zip(everything, parts.policy.logprobs(everything, reference=True), strict=True):
                batch.ref_logprobs = logprobs
    updates: list[Update] = []
    with clock.phase("train"):
        for number, (rows, batches) in enumerate(parts_of_batch * config.train.epochs, 1):
            parts.observer.phase("train", f"update {number}/{len(parts_of_batch) * config.train.epochs}")
            divisors = denominators([trajectories[row] for row in rows], config.rollout.max_tokens)
            check = None
            # tokens of an earlier step's weights, and of other runs, are allowed to differ
            if parts.sync and all(sampled_in[row] == step for row in rows):
                check = partial(parts.sync.check, batches=batches, where=f"step {step}, update {number}")
            update = parts.policy.update(batches, make_loss_fn(config.algo, divisors, tis=tis), check)
            updates.append(update)
            parts.health.count(update)
            if update.skipped:
                kept: list[dict[str, Any]] = []
                if parts.health.keeps_batch:
                    kept = skipped_batch(groups, trajectories, rows, parts.policy, config.train.micro_batch_tokens)
                parts.observer.skipped(step, number, not_finite(update), kept)
                parts.health.check_updates(step, number, update)
        parts.policy.advance_schedule()
    return updates


def mini_batch_rows(groups: Sequence[Group], mini_batch_prompts: int) -> Iterator[list[int]]:
    """Trajectory numbers of each mini-batch: whole groups of any size, in prompt order; the last may be short."""
    row = 0
    for start in range(0, len(groups), mini_batch_prompts):
        count = sum(len(group.responses) for group in groups[start : start + mini_batch_prompts])
        yield list(range(row, row + count))
        row += count


def micro_batches(
    trajectories: Sequence[Trajectory], rows: Sequence[int], config: Config, comm: Comm
) -> list[MicroBatch]:
    """This data-parallel rank's share of a mini-batch, as padded tensors."""
    plan = plan_micro_batches(
        [trajectories[row].length for row in rows], comm.data_size, config.train.micro_batch_tokens
    )
    return [collate(trajectories, [rows[i] for i in bin_]) for bin_ in plan[comm.data_rank]]


def use_tis(config: Config, *, stale: bool) -> bool:
    """Truncated importance sampling: `auto` turns it on where the engine's policy is not the trainer's.

    Args:
        stale: a group of the step was sampled in an earlier one, so from older weights.
    """
    return config.algo.tis == "on" or (config.algo.tis == "auto" and (stale or config.model.dtype != "float32"))


def update_metrics(updates: Sequence[Update]) -> dict[str, float]:
    """Means over a step's optimizer steps; token-weighted where the loss function gives sums.

    An update whose numbers are not finite is left out, unless there is no other: it would hide what the others were.
    """
    totals: dict[str, float] = {}
    sound = [u for u in updates if all(map(math.isfinite, (u.loss, *u.sums.values())))] or updates
    for update in sound:
        for name, value in update.sums.items():
            totals[name] = totals.get(name, 0.0) + value
    finite = [update.grad_norm for update in updates if math.isfinite(update.grad_norm)]
    return {
        "train/loss": sum(update.loss for update in sound) / max(1, len(sound)),
        "train/grad_norm": sum(finite) / len(finite) if finite else math.nan,
        "train/lr": updates[-1].lr if updates else 0.0,
        "train/updates": len(updates),
        "train/skipped": sum(update.skipped for update in updates),
        **finish_metrics(totals),
    }
