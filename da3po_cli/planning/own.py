"""The estimate of a config on its own layout, as `train --dry-run` shows it."""

from __future__ import annotations

from da3po_cli.config.schema import Config
from da3po_cli.errors import UsageError
from da3po_cli.planning.estimate import Estimate, estimate
from da3po_cli.planning.known import planned_facts
from da3po_cli.planning.machine import machine
from da3po_cli.planning.shape import shape_of


def own_estimate(config: Config, devices: int) -> tuple[Estimate | None, str]:
    """(estimate, "") of a checked config on `devices` CUDA devices (0: a CPU), or (None, why there is none)."""
    facts, _ = planned_facts(config.model.path)
    if facts is None:
        return None, "unknown before the model is downloaded"
    try:
        return estimate(config, shape_of(facts), machine(devices)), ""
    except UsageError as error:
        return None, f"unknown: {error.message}"
