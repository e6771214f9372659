"""Checks of the GPUs: driver, CUDA runtime, NCCL, memory, and what FP8 they can do."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from da3po_cli.checks.layout import FP8_CAPABILITY
from da3po_cli.doctor.findings import Context, Finding, fail, gib, ok, warn

LEAST_DRIVER = {12: 525, 13: 580}
"""Major version of CUDA -> oldest driver that runs it, by NVIDIA's table of minor-version compatibility."""
LEAST_CAPABILITY = {"bfloat16": 8.0, "float32": 7.5}
"""Ampere for bfloat16; Turing is the oldest that vLLM has kernels for."""


@dataclass(frozen=True)
class Smi:
    """What nvidia-smi tells: the driver's version, and why it tells nothing."""

    driver: str | None
    why: str = ""


def nvidia_smi() -> Smi:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        return Smi(None, "nvidia-smi is not installed")
    except (OSError, subprocess.SubprocessError) as error:
        return Smi(None, f"nvidia-smi: {error}")
    lines = (told.stdout + told.stderr).strip().splitlines()
    if told.returncode:
        return Smi(None, f"nvidia-smi: {lines[0] if lines else f'exit code {told.returncode}'}")
    return Smi(lines[0].strip() if lines else None)


def driver(context: Context) -> Iterator[Finding]:
    if not context.cuda:
        yield ok("driver", f"not used: {context.devices.why}", version=None)
        return
    smi, cuda = nvidia_smi(), context.probe("torch").get("cuda")
    if smi.driver is None:
        yield warn(
            "driver", f"version not known: {smi.why or 'nvidia-smi tells none'}", "install nvidia-smi", version=None
        )
        return
    major, least = smi.driver.partition(".")[0], LEAST_DRIVER.get(int(str(cuda).partition(".")[0])) if cuda else None
    if least is not None and major.isdecimal() and int(major) < least:
        yield fail(
            "driver",
            f"{smi.driver} is too old for torch's CUDA {cuda}",
            f"driver {least} or newer, or a torch for an older CUDA",
            version=smi.driver,
        )
    else:
        yield ok("driver", smi.driver, version=smi.driver)


def cuda(context: Context) -> Iterator[Finding]:
    told = context.probe("torch")
    version = told.get("cuda")
    if not context.cuda:
        yield ok("cuda", "not used: this config trains on the CPU", version=version)
    elif unknown := _without_torch("cuda", told):
        yield unknown
    elif version is None:
        yield fail("cuda", "torch has no CUDA runtime", "a CUDA build of torch", version=None)
    elif "cuda_error" in told:
        fix = "nvidia-smi must list the devices; compare its driver with torch's CUDA version"
        yield fail("cuda", f"{version} does not start: {told['cuda_error']}", fix, version=version)
    elif len(told["devices"]) != context.devices.cuda:
        yield fail(
            "cuda",
            f"{version}: torch sees {len(told['devices'])} device(s), and {context.devices.why}",
            "CUDA_VISIBLE_DEVICES, or the devices that the container is given",
            version=version,
        )
    else:
        yield ok("cuda", str(version), version=version)


def communication(context: Context) -> Iterator[Finding]:
    """NCCL between GPUs, gloo between the ranks of a CPU; Python objects always travel over gloo."""
    told = context.probe("torch")
    nccl, gloo = told.get("nccl"), told.get("gloo", False)
    if unknown := _without_torch("nccl", told):
        yield unknown
    elif not gloo:
        yield fail("nccl", "torch has no gloo, which every run uses", "another build of torch", nccl=nccl, gloo=False)
    elif context.cuda and nccl is None:
        yield fail("nccl", "torch has no NCCL", "a CUDA build of torch for Linux", nccl=None, gloo=True)
    else:
        yield ok(
            "nccl", str(nccl) if nccl else "none in this torch; ranks on a CPU talk over gloo", nccl=nccl, gloo=True
        )


def gpus(context: Context) -> Iterator[Finding]:
    devices = context.probe("torch").get("devices") or []
    if not context.cuda:
        yield ok("gpus", f"not used: {context.devices.why}", devices=[])
        return
    if unknown := _without_torch("gpus", context.probe("torch")):
        yield unknown
        return
    if not devices:
        yield fail(
            "gpus", f"torch cannot use any; {context.devices.why}", "mend torch, cuda and driver first", devices=[]
        )
        return
    kinds: dict[str, int] = {}
    for device in devices:
        kind = f"{device['name']}, {gib(device['memory'])}, compute capability {device['capability']:.1f}"
        kinds[kind] = kinds.get(kind, 0) + 1
    found = "; ".join(f"{count} x {kind}" for kind, count in kinds.items())
    lowest, dtype = min(device["capability"] for device in devices), context.config.model.dtype
    share = min(device["free"] / device["memory"] for device in devices)
    if lowest < LEAST_CAPABILITY[dtype]:
        fix = "model.dtype=float32" if lowest >= LEAST_CAPABILITY["float32"] else "a newer GPU"
        yield fail("gpus", f"{found}: {dtype} needs {LEAST_CAPABILITY[dtype]}", fix, devices=devices)
    elif share < context.config.rollout.gpu_memory:
        yield fail(
            "gpus",
            f"{found}: {share:.0%} of the memory is free, and rollout.gpu_memory={context.config.rollout.gpu_memory:g}",
            f"end what nvidia-smi lists, or rollout.gpu_memory={max(0.05, int(share * 20) / 20):g}",
            devices=devices,
        )
    elif len({device["name"] for device in devices}) > 1:
        yield warn("gpus", f"{found}: the slowest sets the pace", "CUDA_VISIBLE_DEVICES of one kind", devices=devices)
    else:
        yield ok("gpus", found, devices=devices)


def memory(context: Context) -> Iterator[Finding]:
    """Whether the config's own layout fits, by the estimate of `da3po plan`."""
    found = context.estimate
    if not context.cuda or found is None:
        yield ok(
            "gpu memory", "not used" if not context.cuda else "no estimate before the model is downloaded", fits=None
        )
        return
    text = f"{gib(found.stage.most_peak)} per GPU at most, of {gib(found.limit)}"
    facts = {"fits": found.fits, "peak": found.stage.most_peak, "limit": found.limit}
    if found.fits:
        yield ok("gpu memory", f"this config takes an estimated {text}", **facts)
    else:
        fix = f"da3po plan --gpus {context.devices.cuda} lists the layouts that fit"
        yield warn("gpu memory", f"this config is estimated not to fit: {text}", fix, **facts)


def fp8(context: Context) -> Iterator[Finding]:
    """The recipes that the devices can do: by compute capability, and by TransformerEngine's word where it is there."""
    wanted = context.config.fp8.recipe if context.config.fp8.format != "none" else None
    devices = context.probe("torch").get("devices") or []
    told = context.probe("transformer-engine")
    refusals: dict[str, str | None] = {}
    lowest = min((device["capability"] for device in devices), default=0.0)
    for recipe, least in FP8_CAPABILITY.items():
        refusals[recipe] = None if lowest >= least else f"needs compute capability {least}"
        if lowest >= least and told.get("recipes", {}).get(recipe):
            refusals[recipe] = told["recipes"][recipe]
    able = [recipe for recipe, why in refusals.items() if why is None]
    facts = {"recipes": able, "refused": {recipe: why for recipe, why in refusals.items() if why}}
    if wanted is not None and not context.cuda:
        yield fail("fp8", f"fp8.recipe={wanted} needs a GPU; {context.devices.why}", "fp8.format=none", **facts)
    elif wanted is not None and refusals[wanted]:
        others = f", or fp8.recipe= one of {', '.join(able)}" if able else ""
        yield fail("fp8", f"fp8.recipe={wanted}: {refusals[wanted]}", f"fp8.format=none{others}", **facts)
    elif not context.cuda:
        yield ok("fp8", f"no recipe: {context.devices.why}", **facts)
    elif told.get("missing") and able:
        yield ok("fp8", f"{', '.join(able)} by the devices, once transformer-engine is installed", **facts)
    else:
        reasons = "; ".join(f"{recipe}: {why}" for recipe, why in facts["refused"].items())
        yield ok("fp8", (", ".join(able) or "no recipe") + (f" ({reasons})" if reasons else ""), **facts)


def _without_torch(name: str, told: Mapping[str, Any]) -> Finding | None:
    """What can be said of the GPUs while torch itself cannot be imported; None where it can."""
    if "error" in told or told.get("missing"):
        return warn(name, "not known while torch cannot be imported", "mend torch first")
    return None
