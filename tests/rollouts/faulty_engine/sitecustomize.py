"""First on PYTHONPATH, this makes the rollout engine of a real run sample at ENGINE_FAULT's `temperature=T`."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from da3po_cli.rollouts.engine import VllmGenerator

fault, _, value = os.environ.get("ENGINE_FAULT", "").partition("=")

if fault == "temperature":
    request = VllmGenerator._request

    def at_another(self: VllmGenerator, prompt: Any, number: int, sampling: Any) -> Any:
        return request(self, prompt, number, replace(sampling, temperature=float(value)))

    VllmGenerator._request = at_another
