"""Grading in worker processes, so that no answer can stall or crash the run.

    grade() -> chunks -> queue -> one thread per worker -> worker process -> lines of grades, in order

A worker that passes its CPU deadline is ended by the kernel (see `worker`); its thread marks the answer on which it
died as unknown, starts another and goes on. While a worker is slow, the rest of its chunk is queued again for the
others: a hostile answer delays itself only. Processes are fresh interpreters, neither forked (the trainer has threads
and CUDA contexts) nor multiprocessing's spawn (that imports the user's `__main__` again).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from da3po_cli.errors import Da3poError, EnvironmentProblem, UsageError
from da3po_cli.rewards.registry import stated
from da3po_cli.rewards.types import Grade, Item, MathOptions

CHUNK = 32  # answers sent to a worker at a time
SLOW_S = 0.25  # wall time on one answer after which the rest of its chunk is offered to the other workers
START_S = 120.0  # longest start of a worker
MEMORY_MB = 1024  # address space of a worker beyond what it has at its start
MAX_WORKERS = 8
DEADLINE = "CPU deadline"
"""The reason of an answer that took longer than its deadline."""


class GradingPool:
    """Grades (response, finish reason, gold) items; safe to use from any thread, and from several at once.

    Args:
        reward: a name in REWARDS or an import path `package.module:function`.
        options: policies of the `math` reward.
        workers: processes; one per usable core by default, at most MAX_WORKERS. They start with the first `grade`.
        deadline_s: CPU seconds per answer. An answer that makes no progress for ten times as long by the wall clock
            (and at least 30 s) is given up as well.
    """

    def __init__(
        self,
        reward: str = "math",
        *,
        options: MathOptions | None = None,
        workers: int | None = None,
        deadline_s: float = 3.0,
    ) -> None:
        if not deadline_s > 0:
            raise UsageError(f"deadline_s={deadline_s} must be above 0", where="reward.deadline_s", hint="3.0")
        self._reward = reward
        self._setup = {
            "reward": reward,
            "options": None if options is None else asdict(options),
            "deadline_s": deadline_s,
            "memory_mb": MEMORY_MB,
        }
        self._size = workers or min(MAX_WORKERS, len(os.sched_getaffinity(0)))
        self._deadline_s = deadline_s
        self._wall_s = max(30.0, 10 * deadline_s)
        self._chunks: queue.SimpleQueue[_Chunk | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Condition()
        self._calls = 0  # of grade(), in progress
        self._closed = False

    def __enter__(self) -> GradingPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def grade(self, items: Iterable[Item]) -> list[Grade]:
        """One grade per item, in order. An answer that could not be graded is "unknown"; its rule is the reason.

        Raises:
            UsageError: the reward cannot be imported or is no reward.
            EnvironmentProblem: no worker process can be started.
        """
        job = _Job(list(items))
        size = max(1, min(CHUNK, -(-len(job.items) // (4 * self._size))))
        chunks = [_Chunk(job, range(at, min(at + size, len(job.items)))) for at in range(0, len(job.items), size)]
        self._begin(len(chunks))
        try:
            for chunk in chunks:
                self._chunks.put(chunk)
            return job.wait()
        finally:
            with self._lock:
                self._calls -= 1
                self._lock.notify_all()

    def verify_golds(self, golds: Iterable[str]) -> list[Grade]:
        """verify(gold, gold): the grade of each gold answer as a response to itself."""
        return self.grade([(stated(self._reward, gold), "stop", gold) for gold in golds])

    def close(self) -> None:
        """End the workers; a `grade` in progress finishes first."""
        with self._lock:
            self._closed = True
            self._lock.wait_for(lambda: not self._calls)
            threads, self._threads = self._threads, []
        for _ in threads:
            self._chunks.put(None)
        for thread in threads:
            thread.join()

    def _begin(self, chunks: int) -> None:
        """Count a call in, and start the threads that it needs."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the grading pool is closed")
            self._calls += 1
            while len(self._threads) < min(self._size, chunks):
                thread = threading.Thread(target=self._serve, name=f"grader-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self) -> None:
        """What a thread does: takes chunks until there is a None."""
        worker: _Worker | None = None
        while (chunk := self._chunks.get()) is not None:
            try:
                if worker is None:
                    worker = _Worker(self._setup)
                if not self._run(worker, chunk):
                    worker.end()
                    worker = None
            except BaseException as error:  # told to the caller of grade(), whose thread this is not
                chunk.job.fail(error)
                if worker is not None:
                    worker.end()
                    worker = None
        if worker is not None:
            worker.end()

    def _run(self, worker: _Worker, chunk: _Chunk) -> bool:
        """Have `worker` grade a chunk. False when the worker can't go on; the chunk's rest is queued again then."""
        job = chunk.job
        left = job.unsolved(chunk.indices)
        if not left or not worker.send([job.items[index] for index in left]):
            if left:
                self._chunks.put(_Chunk(job, left))
            return not left
        shared = False  # whether the answers behind the current one were queued again
        since = time.monotonic()
        while left:
            reply = worker.receive(SLOW_S)
            if isinstance(reply, list):
                job.solve(left.pop(0), Grade(*reply))
                since = time.monotonic()
            elif reply == "ended" or time.monotonic() - since > self._wall_s or not job.unsolved(left):
                reason = worker.why_ended()
                spent = self._deadline_s if reason == DEADLINE else time.monotonic() - since
                job.solve(left.pop(0), Grade("unknown", None, reason, spent))
                if left and not shared:
                    self._chunks.put(_Chunk(job, left))
                return False
            elif not shared and len(left) > 1:
                shared = True
                self._chunks.put(_Chunk(job, left[1:]))
        return True


def self_check(
    golds: Iterable[str], reward: str = "math", *, options: MathOptions | None = None, workers: int | None = None
) -> list[bool]:
    """Whether each gold answer, given as a response, is graded correct. `GradingPool.verify_golds` also says why."""
    with GradingPool(reward, options=options, workers=workers) as pool:
        return [grade.verdict == "correct" for grade in pool.verify_golds(golds)]


@dataclass
class _Job:
    """One call of `grade`. An answer may be graded twice (see `_run`); its first grade counts."""

    items: list[Item]
    grades: list[Grade | None] = field(init=False)
    error: BaseException | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.grades = [None] * len(self.items)
        self.missing = len(self.items)

    def unsolved(self, indices: Sequence[int]) -> list[int]:
        return [] if self.error else [index for index in indices if self.grades[index] is None]

    def solve(self, index: int, grade: Grade) -> None:
        with self.changed:
            if self.grades[index] is None:
                self.grades[index] = grade
                self.missing -= 1
                if not self.missing:
                    self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self.changed:
            self.error = error
            self.changed.notify_all()

    def wait(self) -> list[Grade]:
        with self.changed:
            self.changed.wait_for(lambda: self.error is not None or not self.missing)
        if self.error is not None:
            raise self.error
        return [grade for grade in self.grades if grade is not None]


@dataclass(frozen=True)
class _Chunk:
    job: _Job
    indices: Sequence[int]


class _Worker:
    """A worker process and the pipes to it."""

    def __init__(self, setup: dict[str, Any]) -> None:
        path = [os.path.abspath(entry) for entry in sys.path]
        package = str(Path(__file__).parents[2])
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*path, *([] if package in path else [package])]),
            "OMP_NUM_THREADS": "1",
        }
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "da3po_cli.rewards.pool.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env=environment,
            start_new_session=True,  # a Ctrl-C in the terminal is not for it
        )
        assert self._process.stdin and self._process.stdout
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self._poll = select.poll()
        self._poll.register(self._replies, select.POLLIN)
        self._unread = b""
        self.send(setup)
        self._wait_for_start(setup["reward"])

    def send(self, message: Any) -> bool:
        """False when the process has ended."""
        try:
            self._requests.write(json.dumps(message).encode() + b"\n")
            self._requests.flush()
        except (BrokenPipeError, ValueError):
            return False
        return True

    def receive(self, timeout_s: float) -> Any:
        """The next message, or "silent" after `timeout_s`, or "ended"."""
        until = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            if not self._poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return "silent"
            data = os.read(self._replies.fileno(), 65536)
            if not data:
                return "ended"
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def why_ended(self) -> str:
        """The reason for which the answer in work has no grade; ends the process if it still runs."""
        if self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)  # the pipe may close before the process is gone
        code = self._process.poll()
        self.end()
        if code is None:
            return "no progress within the wall-clock limit"
        if code == -signal.SIGPROF:
            return DEADLINE
        return f"grader killed by signal {-code}" if code < 0 else f"grader ended with exit code {code}"

    def end(self) -> None:
        """Kill the process and free what belongs to it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._requests, self._replies, self._complaints):
            with contextlib.suppress(OSError):
                pipe.close()

    def _wait_for_start(self, reward: str) -> None:
        reply = self.receive(START_S)
        if isinstance(reply, dict) and reply.get("ready"):
            return
        if isinstance(reply, dict):
            self.end()
            raise UsageError(reply["error"], where="reward", hint=reply["hint"])
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace").strip()
        self.end()
        raise EnvironmentProblem(
            f"a grading worker did not start: {said.splitlines()[-1] if said else reply}",
            where=f"reward {reward!r}",
            hint=f"{sys.executable} -m da3po_cli.rewards.pool.worker must be able to run",
        ) from (Da3poError(said) if said else None)
