"""A mutant, and the names that the table is written with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A mistake that a developer could make."""

    name: str
    file: str
    """Below the root of the project."""
    old: str
    """In the file exactly once."""
    new: str
    killer: str
    """The id of a test that fails on it; without a [case], one of its cases has to."""


ALGOS, TRAINING, ROLLOUTS, BRIDGE = "da3po_cli/algos/", "da3po_cli/training/", "da3po_cli/rollouts/", "megatron_bridge/"
LOOP, COLLECT, CHECKPOINT = TRAINING + "loop.py", TRAINING + "collect.py", TRAINING + "checkpoint.py"
LOSSES, ADVANTAGES, SAMPLING = ALGOS + "losses.py", ALGOS + "advantages.py", ALGOS + "sampling.py"
BATCHING, SHAPING, ROLLOUT = ALGOS + "batching.py", "da3po_cli/rewards/shaping.py", ROLLOUTS + "engine.py"
ENGINE, OPTIMIZER, LOGPROBS = BRIDGE + "engine.py", BRIDGE + "optimizer.py", BRIDGE + "logprobs.py"
PACKING, SYNC = BRIDGE + "packing.py", ROLLOUTS + "sync.py"


def replayed(arm: str) -> str:
    """Two steps on saved rollouts, against the oracle."""
    return f"tests/oracle/test_replayed.py::test_two_steps[{arm}]"


def live(arm: str) -> str:
    """Two steps with a vLLM engine, against the oracle; starting the engine takes most of it."""
    return f"tests/oracle/test_live.py::test_two_steps[{arm}]"


def unit(file: str, name: str) -> str:
    """A test by `folder/file`, without the `test_` of both names."""
    folder, _, stem = file.partition("/")
    return f"tests/{folder}/test_{stem}.py::test_{name}"
