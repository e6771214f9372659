"""What tests of several folders share; it also makes `demo_runs` importable."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import warm

warm.install()

# a job in the background of a shell ignores it, and so would all that the tests start and interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first, so that with `-n` no process is left with one at the end."""
    slow = {item.path for item in items if any(map(item.get_closest_marker, ("slow", "faults", "long")))}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="module")
def single() -> Iterator[Any]:
    """A world of this one process, taken down after the module: there can be one of them at a time."""
    from megatron_bridge.parallel import initialize

    hidden = {name: os.environ.pop(name) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK") if name in os.environ}
    parallel = initialize(1, 1, seed=1)
    yield parallel
    parallel.shutdown()
    os.environ.update(hidden)


@pytest.fixture(scope="module")
def kept_engine() -> Iterator[None]:
    """See `here.one_engine`: for all runs of a module that are made by `here`."""
    from here import one_engine

    with one_engine():
        yield
