"""CUDA devices without torch: device nodes of the driver and CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from pathlib import Path

import pytest

from da3po_cli.config.devices import cuda_devices


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Four GPUs and the driver's other nodes."""
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 4),
        ("", 0),
        ("-1", 0),
        ("2", 1),
        ("0,1,3", 3),
        ("0, 1", 2),
        ("0,9,1", 1),  # CUDA stops at the first invalid entry
        ("0,-1,1", 1),
        ("GPU-8932f937-d72c,GPU-1", 2),
        ("MIG-1", 1),
        ("NoDevFiles", 0),
    ],
)
def test_visible_devices(machine: Path, visible: str | None, count: int) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert cuda_devices(env, machine).cuda == count


def test_a_machine_without_gpus(tmp_path: Path) -> None:
    assert cuda_devices({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path).cuda == 0
    assert "no CUDA device" in cuda_devices({}, tmp_path).why
