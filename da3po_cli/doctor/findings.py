"""One line of `da3po doctor`, and what a check may know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from da3po_cli.checks.rules import is_hub_data
from da3po_cli.config.devices import Devices
from da3po_cli.config.models import is_hub_id, model_directory
from da3po_cli.config.plan import layout
from da3po_cli.config.schema import Config
from da3po_cli.data.spec import parse_spec
from da3po_cli.errors import UsageError
from da3po_cli.planning.estimate import Estimate
from da3po_cli.planning.own import own_estimate
from da3po_cli.runs.directory import runs_root

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    name: str
    status: Status
    found: str
    fix: str | None = None
    needed: bool = True
    """Whether the chosen config cannot run without it; a failure of something else costs no exit code."""
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The same for programs; part of --json."""


def ok(name: str, found: str, **details: Any) -> Finding:
    return Finding(name, "ok", found, details=details)


def warn(name: str, found: str, fix: str, **details: Any) -> Finding:
    return Finding(name, "warn", found, fix, needed=False, details=details)


def fail(name: str, found: str, fix: str, *, needed: bool = True, **details: Any) -> Finding:
    return Finding(name, "fail", found, fix, needed, details)


class Prober(Protocol):
    """Imports packages elsewhere and tells how it went."""

    def __call__(self, package: str) -> Mapping[str, Any]:
        """`{"missing": True}`, `{"error": text}`, or facts: `version` and what `probe.PROBES` adds."""
        ...


@dataclass(frozen=True)
class Context:
    """What a check may know: the chosen config, the environment, and the packages as another process sees them."""

    config: Config
    devices: Devices
    env: Mapping[str, str]
    probe: Prober
    problems: tuple[UsageError, ...] = ()
    """Of the config on this machine."""
    chosen: str = ""
    """How the config was chosen, as a phrase."""
    root: Path = Path("/")
    """Of /proc, /sys and /dev."""

    @property
    def cuda(self) -> bool:
        return self.devices.cuda > 0

    @property
    def runs(self) -> Path:
        return runs_root(self.env)

    @cached_property
    def ranks(self) -> int:
        """Ranks on this machine."""
        return layout(self.config, devices=self.devices.cuda).world

    @cached_property
    def estimate(self) -> Estimate | None:
        """Memory and disk of the config, as `da3po plan` has them; None for a model that is not known here."""
        try:
            return own_estimate(self.config, self.devices.cuda)[0]
        except UsageError:
            return None

    @cached_property
    def model(self) -> Path | None:
        """The model's directory on this machine; None where it is on the hub only, or wrong."""
        try:
            return model_directory(self.config.model.path, self.env)
        except UsageError:
            return None

    @cached_property
    def hub_model(self) -> str | None:
        """The id of a model that has to be downloaded first."""
        path = self.config.model.path
        return path if is_hub_id(path) and self.model is None else None

    @cached_property
    def hub_data(self) -> list[str]:
        """The ids of the data sets that come from the hub."""
        specs = [spec for spec in (self.config.data.train, self.config.data.validation) if spec and is_hub_data(spec)]
        return [source.name for spec in specs for source in parse_spec(spec) if source.is_hub]


class CheckFunction(Protocol):
    def __call__(self, context: Context, /) -> Iterator[Finding]: ...


def gib(count: float) -> str:
    """Bytes as people read them."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.0f} KiB"
