"""The machine that a plan is for."""

from __future__ import annotations

import subprocess

from da3po_cli.errors import UsageError
from da3po_cli.planning.estimate import GIB, Machine

DEFAULT_GIB = 80.0  # of a GPU, where nothing else is said


def machine(devices: int, gpus: int | None = None, gpu_memory: float | None = None) -> Machine:
    """`gpus` GPUs of `gpu_memory` GiB each; by default the CUDA `devices` of this machine, or its CPU."""
    count = gpus or devices
    if not count:
        if gpu_memory is not None:
            raise UsageError(
                f"--gpu-memory {gpu_memory:g} without a GPU to plan for", where="--gpu-memory", hint="--gpus N"
            )
        return Machine(0)
    if gpu_memory is None and gpus is None:
        gpu_memory = installed_memory()
    return Machine(count, int((gpu_memory or DEFAULT_GIB) * GIB))


def installed_memory() -> float | None:
    """GiB of the smallest NVIDIA GPU here, as nvidia-smi tells it; None is unknown."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        return min((float(line) / 1024 for line in told.split()), default=None)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
