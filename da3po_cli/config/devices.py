"""Which CUDA devices a job may use, found without importing torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Devices:
    """`cuda` devices are visible; `why` is a phrase for the one line that tells so."""

    cuda: int
    why: str


def installed_gpus(root: Path = Path("/")) -> int:
    """NVIDIA GPUs that the kernel driver shows to this machine or container.

    Device nodes are counted first: a container may see fewer of them than /proc lists. WSL has one node for all.
    """
    nodes = [node for node in root.glob("dev/nvidia[0-9]*") if node.name[len("nvidia") :].isdecimal()]
    if nodes:
        return len(nodes)
    if (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libcuda.so.1").exists():
        return 1
    return 0


def cuda_devices(env: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Devices:
    """The devices left by CUDA_VISIBLE_DEVICES, with CUDA's rule that an invalid entry ends the list."""
    installed = installed_gpus(root)
    if installed == 0:
        return Devices(0, "no CUDA device found")
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return Devices(installed, f"{installed} CUDA device(s) found")
    count = 0
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdecimal() and int(entry) >= installed:
            break
        if not (entry.isdecimal() or entry.startswith(("GPU-", "MIG-"))):
            break
        count += 1
    return Devices(count, f"CUDA_VISIBLE_DEVICES={visible} leaves {count} of {installed} device(s)")


def compute_capability() -> float | None:
    """The lowest compute capability of the NVIDIA GPUs, such as 9.0, as nvidia-smi tells it; None is unknown."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        return min((float(line) for line in told.split()), default=None)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
