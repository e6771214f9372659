"""The directory of an ablation: ablation.json (the matrix, and how each run ended), the runs, logs, and the report.

runs/<ablation>/
  ablation.json
  <arm>-seed<k>/      ordinary run directories
  logs/<run>.log      what the run said
  report.html
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from da3po_cli.ablations.matrix import Arm
from da3po_cli.config.paths import expanded
from da3po_cli.errors import UsageError
from da3po_cli.runs.claim import check_unclaimed, claim
from da3po_cli.runs.directory import RunDir, runs_root
from da3po_cli.runs.files import replace_text

FILE = "ablation.json"


@dataclass
class RunState:
    """One run of the matrix."""

    name: str
    arm: str
    seed: int
    config_hash: str
    status: str = "pending"
    """pending, running, finished, diverged (exit code 5), failed, interrupted."""
    exit_code: int | None = None
    error: str | None = None
    seconds: float = 0.0
    """Wall time of all its attempts."""


@dataclass
class Ablation:
    """The content of ablation.json."""

    name: str
    files: list[str]
    overrides: list[str]
    """Of the user, for all arms."""
    ranks: int
    """Of each run, where the config leaves parallel.data open: CUDA devices, or processes on a CPU."""
    arms: list[Arm]
    seeds: list[int]
    reference: str
    """Label of the arm that the others are compared with."""
    gate: str | None = None
    target: float | None = None
    created: str = ""
    argv: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    git: str | None = None
    runs: list[RunState] = field(default_factory=list)

    def state(self, name: str) -> RunState | None:
        return next((run for run in self.runs if run.name == name), None)


@dataclass(frozen=True)
class AblationDir:
    """Paths and state. Making the object touches nothing on disk."""

    path: Path

    @property
    def file(self) -> Path:
        return self.path / FILE

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def used(self) -> bool:
        return self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir()))

    def run(self, name: str) -> RunDir:
        return RunDir(self.path / name)

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"

    def read(self) -> Ablation:
        """Raises UsageError where the file is absent or of another version."""
        try:
            raw = json.loads(self.file.read_text(encoding="utf-8"))
            arms = [Arm(one["label"], one["slug"], tuple(one["overrides"])) for one in raw.pop("arms")]
            return Ablation(arms=arms, runs=[RunState(**run) for run in raw.pop("runs")], **raw)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"cannot read it: {type(error).__name__} {error}",
                where=str(self.file),
                hint="put it right; --name chooses another ablation",
            ) from error

    def write(self, ablation: Ablation) -> None:
        """A reader never sees half a file."""
        replace_text(self.file, [json.dumps(asdict(ablation), indent=2, ensure_ascii=False), "\n"])

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Have the directory for one `da3po ablate`, while none of its runs is at work for one that was killed.

        Raises:
            UsageError: somebody has it.
        """
        with claim(self.path, "--name"):
            for run in sorted(self.path.glob("*/run.json")):
                check_unclaimed(run.parent, "--name")
            yield


def find_ablation(name_or_path: str, env: Mapping[str, str] = os.environ) -> AblationDir | None:
    """The ablation of that name below DA3PO_RUNS, or at that path; None where there is none."""
    for candidate in (runs_root(env) / name_or_path, expanded(name_or_path)):
        if (candidate / FILE).is_file():
            return AblationDir(candidate)
    return None


def newest_ablation(env: Mapping[str, str] = os.environ) -> AblationDir | None:
    """The one begun last, below DA3PO_RUNS."""
    found = [AblationDir(file.parent) for file in sorted(runs_root(env).glob(f"*/{FILE}"))]
    return max(found, key=lambda one: one.read().created, default=None)
