"""A real pretrained model, for which `make test-real` sets DA3PO_REAL_MODEL; without it these tests are skipped."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

FIGURES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash[FIGURES]:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def figure(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """figure(line): show a measured figure at the end of the session."""
    return pytestconfig.stash[FIGURES].append


@pytest.fixture(scope="session")
def model() -> Path:
    """The directory of the model."""
    given = os.environ.get("DA3PO_REAL_MODEL")
    if not given:
        pytest.skip("needs a pretrained model: make test-real, or DA3PO_REAL_MODEL=DIR")
    if not (Path(given) / "config.json").is_file():
        pytest.fail(f"DA3PO_REAL_MODEL={given} is no Hugging Face model directory")
    return Path(given).resolve()
