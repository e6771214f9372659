"""First on PYTHONPATH, this makes the rollout engine of a real run do something else than it is told: ENGINE_FAULT.

`temperature=T` samples at T whatever the config says, `stale` loads the weights of the first push and no later ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from da3po_cli.rollouts.engine import VllmGenerator

fault, _, value = os.environ.get("ENGINE_FAULT", "").partition("=")

if fault == "temperature":
    request = VllmGenerator._request

    def at_another(self: VllmGenerator, prompt: Any, number: int, sampling: Any) -> Any:
        return request(self, prompt, number, replace(sampling, temperature=float(value)))

    VllmGenerator._request = at_another
elif fault == "stale":
    load = VllmGenerator.load_weights

    def only_once(self: VllmGenerator, weights: Iterator[Any]) -> None:
        VllmGenerator.load_weights = lambda self, weights: [None for _ in weights] and None
        load(self, weights)

    VllmGenerator.load_weights = only_once
