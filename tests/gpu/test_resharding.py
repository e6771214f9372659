"""The stream of weights that every sync walks, into plain tensors on the GPU: exact, its speed and its memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

REPEATS = 5


def seconds(call: Any) -> float:
    """Best of REPEATS, the GPU's work included."""
    import torch

    found = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return min(found)


@pytest.mark.parametrize("layers", ["te", "local"])
def test_stream_into_plain_tensors(build: Any, wide: Path, layers: str, record_property: Any) -> None:
    import torch
    from safetensors import safe_open

    policy = build(wide, layers)
    targets = {name: torch.empty_like(tensor) for name, tensor in policy.iter_hf_weights(include_tied_head=False)}
    other = {name: torch.empty_like(tensor) for name, tensor in targets.items()}

    def stream() -> None:
        for name, tensor in policy.iter_hf_weights(include_tied_head=False):
            targets[name].copy_(tensor)

    def copy() -> None:  # the floor: the same bytes, already whole
        for name, tensor in targets.items():
            other[name].copy_(tensor)

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    taken = seconds(stream)
    extra = torch.cuda.max_memory_allocated() - before
    gigabytes = sum(tensor.numel() * tensor.element_size() for tensor in targets.values()) / 1e9
    for file in sorted(wide.glob("*.safetensors")):
        with safe_open(file, "pt", device="cuda") as source:
            for name in source.keys():  # noqa: SIM118  # no mapping
                if name in targets:
                    assert torch.equal(targets[name], source.get_tensor(name)), name
    largest = max(tensor.numel() * tensor.element_size() for tensor in targets.values())
    record_property("resharding", f"{gigabytes / taken:.1f} GB/s ({gigabytes:.2f} GB in {taken * 1e3:.1f} ms)")
    record_property("a copy", f"{gigabytes / seconds(copy):.1f} GB/s")
    record_property("extra memory", f"{extra / 2**20:.0f} MiB (largest tensor {largest / 2**20:.0f})")
    assert extra <= 3 * largest
