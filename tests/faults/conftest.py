"""Makes fault_runs importable, and has the runs that nothing happens to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory) -> Callable[[int], list[dict]]:
    """The records of an uninterrupted run on `make_rollouts`, by its number of ranks."""
    import demo_runs
    import here
    from demo_runs import metrics
    from fault_runs import MOST_STEPS, make_rollouts

    @cache
    def records(ranks: int) -> list[dict]:
        root = tmp_path_factory.mktemp("unbroken")
        arguments = make_rollouts(root / "rollouts", MOST_STEPS)
        train = here.train if ranks == 1 else demo_runs.train
        train(root, *arguments, f"parallel.data={ranks}", "checkpoint.every=0", "--name=run", "--quiet")
        return metrics(root / "run")

    return records
