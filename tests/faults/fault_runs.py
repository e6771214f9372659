"""Jobs to break: short runs on rollouts that need no engine, and the moment at which to break them."""

from __future__ import annotations

import json
import random
import subprocess
import time
from pathlib import Path

from demo_runs import SMALL

from da3po_cli.algos.records import group_to_dict
from da3po_cli.algos.types import Group, Prompt, Response
from da3po_cli.runs.heartbeat import Beat, read_beats

MOST_STEPS = 8
QUIET = ["run.tensorboard=false", "data.validation=null", "checkpoint.keep=2"]
"""Settings that leave the files under test alone."""


def make_rollouts(folder: Path, steps: int, *, seed: int = 3) -> list[str]:
    """Write rollouts of `steps` steps, as a run saves them: made-up answers of 8 prompts, half of them right.

    Those of a step are the same whatever `steps`.

    Returns:
        The arguments of a run that trains on them.
    """
    folder.mkdir()
    dice = random.Random(seed)
    for step in range(1, steps + 1):
        groups = [group(f"0-{step}-{number}", number, dice) for number in range(8)]
        for one in groups:
            one.step = step
        lines = [json.dumps(group_to_dict(one)) for one in groups]
        (folder / f"step_{step}.jsonl").write_text("\n".join(lines) + "\n")
    return [*SMALL, *QUIET, "--algo=dapo", f"--steps={steps}", f"--replay-rollouts={folder}"]


def group(uid: str, index: int = 0, dice: random.Random | None = None) -> Group:
    """A group of four answers, two of them right."""
    dice = dice or random.Random(0)

    def answer(right: bool) -> Response:
        tokens = [dice.randrange(10, 90) for _ in range(dice.randrange(4, 12))]
        logprobs = [-dice.uniform(0.5, 3.0) for _ in tokens]
        reward = 1.0 if right else -1.0
        return Response(tokens, logprobs, "", "stop", "correct" if right else "wrong", int(right), reward)

    prompt = Prompt(uid, tuple(dice.randrange(10, 90) for _ in range(6)), "", "0", "arith", index)
    return Group(prompt, [answer(number % 2 == 0) for number in range(4)])


def logs(run: Path, attempt: int) -> Path:
    """Where the ranks of an attempt write, and beat."""
    return run / "logs" / f"attempt_{attempt}"


def when(job: subprocess.Popen[str], folder: Path, rank: int, phase: str, step: int, *, timeout: float = 240) -> Beat:
    """Wait until `rank` is in `phase` of `step` or a later one, by its beats in `folder`; its beat."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and job.poll() is None:
        for beat in read_beats(folder):
            if beat.rank == rank and beat.step >= step and beat.phase == phase:
                return beat
        time.sleep(0.002)
    job.kill()
    out, err = job.communicate()
    raise AssertionError(f"rank {rank} was never in {phase} of step {step}:\n{out}{err}")
