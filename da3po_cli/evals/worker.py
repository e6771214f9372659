"""What each rank of an evaluation does.

The ranks share nothing while they sample: each engine has its own share of the problems in one queue, and grades and
writes what it finishes.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from da3po_cli.algos.types import Prompt, Response
from da3po_cli.config.schema import Config
from da3po_cli.evals.held_out import Graders
from da3po_cli.evals.progress import make_progress
from da3po_cli.evals.samples import Record, SampleStore, SampleWriter
from da3po_cli.evals.tasks import Job, Task

if TYPE_CHECKING:
    import torch

    from da3po_cli.launching.launch import WorkerOptions
    from da3po_cli.rollouts.engine import VllmGenerator
    from megatron_bridge.parallel import Parallel

JOB, FACTS = "job.json", "engine.json"


LONGEST = 7 * 86400.0  # seconds: engines sample on their own, and the first to be through waits for the last


@dataclass(frozen=True)
class Wanted:
    """One sample that is still to be made."""

    task: Task
    prompt: Prompt
    number: int


def eval_worker(config: Config, directory: Path, options: WorkerOptions) -> None:
    """What every rank does: start its part of an engine, sample its share, grade and write it."""
    from megatron_bridge.parallel import initialize

    job = Job.read(directory / JOB)
    parallel = initialize(1, 1, config.run.seed, timeout=LONGEST)
    generator: VllmGenerator | None = None
    graders: Graders | None = None
    try:
        say = _sayer(parallel, silent=options.quiet or options.json)
        say("starting the engine (vLLM) ...")
        generator, facts = _start(job, config, parallel)
        cores = len(os.sched_getaffinity(0))
        graders = Graders(config.reward.workers or max(1, cores // generator.engines), config.reward.deadline_s)
        if parallel.rank == 0:
            (directory / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
        _sample(directory, job, generator, graders, parallel, options)
        parallel.barrier()
    finally:
        if graders is not None:
            graders.close()
        if generator is not None:
            generator.close()
        parallel.shutdown()


def _sayer(parallel: Parallel, *, silent: bool) -> Any:
    from da3po_cli.output import Out

    return Out("quiet" if silent else "plain", parallel.rank).say


def _start(job: Job, config: Config, parallel: Parallel) -> tuple[VllmGenerator, dict[str, Any]]:
    """The engine with the weights that are evaluated, and facts about it."""
    from da3po_cli.rollouts.engine import VllmGenerator

    hf_dir, checkpoint = Path(job.model.path), job.model.checkpoint
    prompt_tokens = job.facts["max_prompt_tokens"]
    generator = VllmGenerator(
        hf_dir,
        # the longest response need not be one to the longest prompt; what counts is the context that the two add up to
        rollout=replace(config.rollout, max_tokens=job.longest - prompt_tokens),
        dtype=config.model.dtype,
        seed=config.run.seed,
        max_prompt_tokens=prompt_tokens,
        stop_token_ids=job.stop_token_ids,
        comm=parallel,
        load=checkpoint is None,
    )
    if checkpoint is not None:
        generator.load_weights(_weights(Path(checkpoint) / "policy", hf_dir, config.model.dtype))
    facts = {
        "engines": generator.engines,
        "tensor": config.rollout.tensor,
        "device": str(parallel.device.type),
        "context": generator.max_model_len,
    }
    return generator, facts


def _weights(policy: Path, hf_dir: Path, dtype: str) -> Iterator[tuple[str, torch.Tensor]]:
    """A checkpoint's weights in the engine's dtype, the tied head included."""
    import torch

    from megatron_bridge.arch import read_arch
    from megatron_bridge.offline import iter_checkpoint_weights

    for name, tensor in iter_checkpoint_weights(policy, read_arch(hf_dir), include_tied_head=True):
        yield name, tensor.to(getattr(torch, dtype))


def _sample(
    directory: Path,
    job: Job,
    generator: VllmGenerator,
    graders: Graders,
    parallel: Parallel,
    options: WorkerOptions,
) -> None:
    """Make the samples of this rank's engine that are not on disk yet."""
    store = SampleStore(directory)
    done: set[tuple[str, str, int]] = parallel.broadcast(store.done() if parallel.rank == 0 else None)
    mine = share(job, generator.engines, generator.engine)
    left = [one for one in mine if (one.task.name, one.prompt.uid, one.number) not in done]
    total = sum(task.sampling.n * len(task.problems) for task in job.tasks)
    before = len(done)
    progress = make_progress(total, before, silent=parallel.rank > 0 or options.quiet or options.json)
    recorder = Recorder(store.writer(parallel.rank), graders) if generator.leads else None
    made = tokens = 0
    try:
        for batch in generator.stream([(one.prompt, one.number, one.task.sampling) for one in left]):
            if recorder is not None:
                recorder.add([(left[at], response) for at, response in batch])
            made += len(batch)
            tokens += generator.engines * sum(len(response.token_ids) for _, response in batch)
            # rank 0 sees its own engine; the others have as much to do
            progress.update(before + (total - before) * made // max(1, len(left)), tokens)
        if recorder is not None:
            recorder.finish()
    finally:
        progress.close()
        if recorder is not None:
            recorder.close()


def share(job: Job, engines: int, engine: int) -> list[Wanted]:
    """The samples of one engine. Problems go round the engines, so that each has as many of every benchmark.

    All samples of a problem stay together: an engine then computes the prompt once.
    """
    problems = [(task, prompt) for task, group in zip(job.tasks, job.prompts, strict=True) for prompt in group]
    return [
        Wanted(task, prompt, number) for task, prompt in problems[engine::engines] for number in range(task.sampling.n)
    ]


class Recorder:
    """Grades responses and writes them to disk, in a thread, while the engine goes on."""

    def __init__(self, writer: SampleWriter, graders: Graders) -> None:
        self._writer, self._graders = writer, graders
        self._waiting: queue.SimpleQueue[list[tuple[Wanted, Response]] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._dropped = False
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    def add(self, batch: list[tuple[Wanted, Response]]) -> None:
        """Hand over finished responses.

        Raises:
            whatever grading or writing earlier ones raised.
        """
        if self._error is not None:
            raise self._error
        self._waiting.put(batch)

    def finish(self) -> None:
        """Wait until everything is on disk."""
        self._waiting.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End; what has not been graded yet is dropped, and made again by the next attempt."""
        self._dropped = True
        self._waiting.put(None)
        self._thread.join()
        with suppress(OSError):
            self._writer.close()

    def _work(self) -> None:
        while (batch := self._waiting.get()) is not None:
            last = False
            while not self._waiting.empty():  # take all there is: one grading call and one fsync for it
                more = self._waiting.get()
                last = last or more is None
                batch += more or []
            if self._dropped:
                return
            try:
                self._writer.append(self._graded(batch))
            except BaseException as error:  # raised again in the thread that samples
                self._error = error
                return
            if last:
                return

    def _graded(self, batch: Sequence[tuple[Wanted, Response]]) -> list[Record]:
        by_task: dict[str, list[tuple[Wanted, Response]]] = {}
        for wanted, response in batch:
            by_task.setdefault(wanted.task.name, []).append((wanted, response))
        records: list[Record] = []
        for pairs in by_task.values():
            answers = [(wanted.prompt, response.text, str(response.finish_reason)) for wanted, response in pairs]
            grades = self._graders.grade(pairs[0][0].task, answers)
            for (wanted, response), grade in zip(pairs, grades, strict=True):
                records.append(_record(wanted, response, grade))
        return records


def _record(wanted: Wanted, response: Response, grade: Any) -> Record:
    prompt = wanted.prompt
    return {
        "bench": wanted.task.name,
        "index": prompt.index,
        "uid": prompt.uid,
        "sample": wanted.number,
        "response": response.text,
        "finish_reason": response.finish_reason,
        "tokens": len(response.token_ids),
        "gold": prompt.answer,
        "extracted": grade.extracted,
        "verdict": grade.verdict,
        "rule": grade.rule,
        "seconds": round(grade.seconds, 6),
    }
