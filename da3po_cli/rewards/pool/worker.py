"""The process that grades: reads chunks of items from its standard input, writes one line per grade.

It is started as a fresh interpreter by `pool`, so it shares nothing with the trainer: no threads, no CUDA context, no
`__main__`. The kernel enforces the deadline: the profiling timer counts CPU time of this process and its signal ends
it, inside C code too. All messages are lines of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from typing import IO, Any

from da3po_cli.rewards.types import Grade, Item, Reward

MAX_EXTRACTED = 2000  # characters of `Grade.extracted` that are sent back


def main() -> None:
    """Serve until the standard input ends."""
    requests, replies = _take_pipes()
    setup: dict[str, Any] = json.loads(requests.readline())
    try:
        from da3po_cli.rewards.registry import make_reward

        reward = make_reward(setup["reward"], setup["options"])
    except Exception as error:  # told to the parent, which raises it
        _send(replies, {"error": str(error), "hint": getattr(error, "hint", None)})
        return
    _limit_memory(setup["memory_mb"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _send(replies, {"ready": True})
    for line in requests:
        for item in json.loads(line):
            _send(replies, _grade(reward, item, setup["deadline_s"]))


def _take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """The pipes to the parent, moved away from where a reward function could read or print."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    return requests, replies


def _send(replies: IO[bytes], message: Any) -> None:
    replies.write(json.dumps(message).encode() + b"\n")


def _limit_memory(megabytes: int) -> None:
    """Cap the address space at what is in use now plus `megabytes`."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _grade(reward: Reward, item: Item, deadline_s: float) -> list[Any]:
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, deadline_s)
    try:
        grade = as_grade(reward(*item))
    except MemoryError:
        grade = Grade("unknown", None, "out of memory")
    except Exception as error:  # whatever it is, it is counted and the next answer is graded
        grade = Grade("unknown", None, f"grader raised {type(error).__name__}")
    signal.setitimer(signal.ITIMER_PROF, 0)
    extracted = None if grade.extracted is None else grade.extracted[:MAX_EXTRACTED]
    return [grade.verdict, extracted, grade.rule, time.process_time() - start]


def as_grade(value: Grade | bool) -> Grade:
    """What a reward function returned, as a Grade; True and False are verdicts too.

    Raises:
        TypeError: it is anything else.
    """
    if isinstance(value, Grade):
        return value
    if isinstance(value, bool):
        return Grade("correct" if value else "wrong", None, "reward function")
    raise TypeError(f"a reward returns a Grade or a bool, not {type(value).__name__}")


if __name__ == "__main__":
    sys.exit(main())
