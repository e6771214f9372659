"""The checks of `da3po doctor` on machines that are not this one: GPUs, versions, containers, as facts."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from da3po_cli.config.devices import Devices
from da3po_cli.config.load import load_config
from da3po_cli.doctor import gpu, machine, packages, probe, table
from da3po_cli.doctor.findings import Context, Finding

REPOSITORY = Path(__file__).parents[2]
GIB = 1 << 30
H100 = {"name": "NVIDIA H100 80GB HBM3", "capability": 9.0, "memory": 80 * GIB, "free": 79 * GIB}
TORCH = {"version": "2.9.1+cu128", "cuda": "12.8", "hip": None, "gloo": True, "nccl": "2.27.5", "devices": [H100] * 8}
WHOLE: dict[str, Mapping[str, Any]] = {
    "torch": TORCH,
    "megatron-core": {"version": "0.16.1"},
    "transformers": {"version": "5.17.0"},
    "math-verify": {"version": "0.9.0"},
    "transformer-engine": {"version": "2.9.0", "recipes": {}},
    "vllm": {"version": "0.12.0", "lacking": []},
    "apex": {"missing": True},
    "datasets": {"version": "4.4.0"},
    "wandb": {"missing": True},
}


def context(
    *overrides: str, cuda: int = 8, facts: Mapping[str, Mapping[str, Any]] | None = None, root: Path = Path("/")
) -> Context:
    """A machine with that many GPUs and these packages."""
    config = load_config(["qwen3-4b"] if cuda else ["demo"], overrides, env={}).config
    known = {**WHOLE, **(facts or {})}
    return Context(config, Devices(cuda, f"{cuda} CUDA device(s) found"), {}, known.__getitem__, root=root)


def only(check: Any, at: Context) -> Finding:
    (found,) = check(at)
    return found


def torch_with(**changes: Any) -> dict[str, Mapping[str, Any]]:
    return {"torch": {**TORCH, **changes}}


# ---------------------------------------------------------------------------------------------------------------- GPUs


def test_eight_good_gpus() -> None:
    at = context()
    assert only(gpu.gpus, at).found == "8 x NVIDIA H100 80GB HBM3, 80.0 GiB, compute capability 9.0"
    assert only(gpu.cuda, at).found == "12.8"
    assert only(gpu.communication, at).found == "2.27.5"
    assert only(packages.torch, at).found == "2.9.1+cu128, CUDA 12.8 build"
    found = only(gpu.fp8, at)
    assert found.details["recipes"] == ["delayed", "tensorwise", "blockwise"]
    assert found.details["refused"] == {"mxfp8": "needs compute capability 10.0"}


@pytest.mark.parametrize(
    ("check", "facts", "overrides", "found", "fix"),
    [
        (packages.torch, {"cuda": None}, [], "CPU build, and there are 8 CUDA device(s)", "torch>=2.9"),
        (packages.torch, {"version": "2.8.0+cu128"}, [], "2.8.0+cu128", "2.9 or newer"),
        (gpu.cuda, {"cuda": None}, [], "torch has no CUDA runtime", "a CUDA build"),
        (
            gpu.cuda,
            {"cuda_error": "RuntimeError: driver too old"},
            [],
            "12.8 does not start: RuntimeError",
            "nvidia-smi",
        ),
        (gpu.cuda, {"devices": [H100]}, [], "torch sees 1 device(s), and 8 CUDA", "CUDA_VISIBLE_DEVICES"),
        (gpu.communication, {"nccl": None}, [], "torch has no NCCL", "CUDA build"),
        (gpu.communication, {"gloo": False}, [], "torch has no gloo", "another build"),
        (gpu.gpus, {"devices": []}, [], "torch cannot use any", "first"),
        (gpu.gpus, {"devices": [{**H100, "capability": 7.5}]}, [], "bfloat16 needs 8.0", "model.dtype=float32"),
        (gpu.gpus, {"devices": [{**H100, "capability": 6.0}]}, [], "bfloat16 needs 8.0", "a newer GPU"),
        (
            gpu.gpus,
            {"devices": [{**H100, "free": 40 * GIB}]},
            ["rollout.gpu_memory=0.8"],
            "50% of the memory is free",
            "rollout.gpu_memory=0.5",
        ),
        (gpu.fp8, {}, ["fp8.format=hybrid", "fp8.recipe=mxfp8"], "mxfp8: needs compute capability 10.0", "blockwise"),
        (gpu.fp8, {"devices": []}, ["fp8.format=hybrid"], "tensorwise: needs compute", "fp8.format=none"),
    ],
)
def test_what_a_gpu_run_needs(check: Any, facts: dict[str, Any], overrides: list[str], found: str, fix: str) -> None:
    result = only(check, context(*overrides, facts=torch_with(**facts)))
    assert (result.status, result.needed) == ("fail", True)
    assert found in result.found and fix in str(result.fix)


def test_gpus_of_two_kinds_are_a_warning() -> None:
    other = {**H100, "name": "NVIDIA A100", "capability": 8.0}
    found = only(gpu.gpus, context(facts=torch_with(devices=[H100, other])))
    assert found.status == "warn" and found.found.count("1 x") == 2


def test_transformer_engine_has_the_last_word_on_recipes() -> None:
    why = "FP8 block scaled GEMM requires compute capability 9.0 or higher and CUDA >= 12.9."
    facts = {"transformer-engine": {"version": "2.9.0", "recipes": {"delayed": None, "blockwise": why}}}
    found = only(gpu.fp8, context("fp8.format=hybrid", "fp8.recipe=blockwise", facts=facts))
    assert found.status == "fail" and why in found.found
    assert found.details["recipes"] == ["delayed", "tensorwise"]


@pytest.mark.parametrize(
    ("told", "overrides", "status", "needed"),
    [
        ({"missing": True}, [], "warn", False),
        ({"missing": True}, ["fp8.format=hybrid"], "fail", True),
        ({"error": "ImportError: libcudnn.so.9", "version": "2.9.0"}, [], "fail", True),
        ({"error": "ImportError: libcudnn.so.9", "version": "2.9.0"}, ["model.dtype=float32"], "fail", False),
        ({"version": "2.9.0", "recipes": {}}, ["fp8.format=hybrid"], "ok", True),
    ],
)
def test_transformer_engine(told: dict[str, Any], overrides: list[str], status: str, needed: bool) -> None:
    found = only(packages.transformer_engine, context(*overrides, facts={"transformer-engine": told}))
    assert (found.status, found.needed) == (status, needed)


@pytest.mark.parametrize(
    ("printed", "code", "status", "found"),
    [
        ("535.104.05\n535.104.05\n", 0, "ok", "535.104.05"),
        ("470.82.01\n", 0, "fail", "470.82.01 is too old for torch's CUDA 12.8"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
            9,
            "warn",
            "NVIDIA-SMI has",
        ),
    ],
)
def test_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: str, code: int, status: str, found: str
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\nprintf '%s' \"{printed}\"\nexit {code}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    result = only(gpu.driver, context())
    assert result.status == status and found in result.found


def test_a_driver_that_nobody_can_ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert only(gpu.driver, context()).found == "version not known: nvidia-smi is not installed"


# ------------------------------------------------------------------------------------------------------------ packages


def test_versions_that_were_not_tested() -> None:
    found = only(packages.megatron, context(facts={"megatron-core": {"version": "0.18.0"}}))
    assert (found.status, found.found, found.fix) == ("warn", "0.18.0: not tested", "megatron-core 0.16.1 or 0.19.2")
    broken = {"megatron-core": {"version": "0.21.0", "bridge_error": "ImportError: cannot import name 'DDP'"}}
    found = only(packages.megatron, context(facts=broken))
    assert found.status == "fail" and "does not go with the bridge: ImportError: cannot import" in found.found
    found = only(packages.transformers, context(facts={"transformers": {"version": "4.57.1"}}))
    assert (found.status, found.fix) == ("fail", "pip install 'transformers>=5'")


def test_a_vllm_without_our_names() -> None:
    facts = {"vllm": {"version": "0.9.0", "lacking": ["Worker.reload_weights", "SamplingParams.flat_logprobs"]}}
    found = only(packages.vllm, context(facts=facts))
    assert found.found == "0.9.0 lacks what da3po uses: Worker.reload_weights, SamplingParams.flat_logprobs"
    assert found.status == "fail" and found.fix == "pip install 'vllm>=0.12'"


def test_packages_that_only_some_configs_need() -> None:
    missing = {"datasets": {"missing": True}, "wandb": {"missing": True}}
    found = {one.name: one for one in packages.optional(context("run.wandb_project=x", facts=missing))}
    assert (found["datasets"].status, found["wandb"].status) == ("fail", "fail")  # qwen3-4b reads data of the hub
    assert "BytedTsinghua-SIA/DAPO-Math-17k" in found["datasets"].found
    found = {one.name: one for one in packages.optional(context(cuda=0, facts=missing))}
    assert {one.status for one in found.values()} == {"ok"}


def test_math_verify_is_needed_by_its_own_reward_only() -> None:
    missing = {"math-verify": {"missing": True}}
    reward = "reward.name=da3po_cli.rewards.reference:grade_math_verify"
    assert not only(packages.math_verify, context(facts=missing)).needed
    assert only(packages.math_verify, context(reward, facts=missing)).needed


def test_the_names_asked_of_vllm_are_those_that_the_rollout_uses() -> None:
    """Read from its source: arguments of SamplingParams and of LLM, methods called on the engine."""
    tree = ast.parse((REPOSITORY / "da3po_cli/rollouts/engine.py").read_text())
    sampling: set[str] = set()
    methods: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "SamplingParams":
            sampling |= {word.arg for word in node.keywords if word.arg}
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self._engine":
            methods.add(node.attr)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "common":
            assert isinstance(node.value, ast.Dict)
            sampling |= {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
    start = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "_start")
    options = {
        key.value
        for node in ast.walk(start)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }
    assert sampling == set(probe.SAMPLING_FIELDS)
    assert methods - {"engine_core"} == set(probe.ENGINE_METHODS)
    assert options == set(probe.ENGINE_OPTIONS)


# ------------------------------------------------------------------------------------------------------------- machine


def fake_root(tmp_path: Path, files: Mapping[str, str]) -> Path:
    meminfo = "MemTotal: 33554432 kB\nMemFree: 1 kB\nMemAvailable: 16777216 kB\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_limits_of_control_groups_version_2(tmp_path: Path) -> None:
    root = fake_root(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/job\n",
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/slice/memory.max": "max\n",
            "sys/fs/cgroup/slice/job/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/slice/job/memory.current": f"{5 * GIB}\n",
            "sys/fs/cgroup/slice/job/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
        },
    )
    assert machine.cpu_quota(root) == 1.5
    assert machine.memory_bytes(root) == (8 * GIB, 5 * GIB)


def test_limits_of_control_groups_version_1(tmp_path: Path) -> None:
    root = fake_root(
        tmp_path,
        {
            "proc/self/cgroup": "9:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert machine.cpu_quota(root) == 4
    assert machine.memory_bytes(root) == (4 * GIB, 3 * GIB)


def test_no_limits(tmp_path: Path) -> None:
    root = fake_root(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"})
    assert machine.cpu_quota(root) is None
    assert machine.memory_bytes(root) == (32 * GIB, 16 * GIB)


def test_little_memory_is_a_warning(tmp_path: Path) -> None:
    root = fake_root(tmp_path, {"proc/meminfo": "MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\n"})
    found = only(machine.memory, context("parallel.data=2", cuda=0, root=root))
    assert found.status == "warn" and found.found.startswith("1.0 GiB of 2.0 GiB available; this config takes about")


def test_shared_memory(tmp_path: Path) -> None:
    found = only(machine.shared_memory, context(root=tmp_path))
    assert (found.status, found.needed, found.found) == ("fail", True, "/dev/shm is missing")
    assert not only(machine.shared_memory, context(cuda=0, root=tmp_path)).needed
    (tmp_path / "dev/shm").mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(tmp_path / "dev/shm")]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    try:
        found = only(machine.shared_memory, context(root=tmp_path))
        assert found.found == "/dev/shm has 64.0 MiB of 64.0 MiB free; NCCL needs it"
        assert only(machine.shared_memory, context(cuda=0, root=tmp_path)).status == "ok"
    finally:
        subprocess.run(["umount", mount[-1]], check=True)


def test_the_disk_holds_the_checkpoints_of_the_plan(tmp_path: Path) -> None:
    """0.8 M parameters with float32 weights, main parameters and two moments: 16 bytes each, and `keep` + 2 of them."""
    at = context(cuda=0)
    found = only(machine.runs_directory, at)
    each = found.details["checkpoint"]
    assert 16 * 800_640 <= each < 17 * 800_640
    assert found.details["wanted"] == each * (at.config.checkpoint.keep + 2)


def test_a_check_that_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(context: Context) -> Any:
        raise KeyError("surprise")
        yield

    monkeypatch.setattr(table, "CHECKS", (("machine", broken),))
    ((group, found),) = table.run(context())
    assert (group, found.name, found.status, found.needed) == ("machine", "broken", "fail", False)
    assert "KeyError: 'surprise'" in found.found
