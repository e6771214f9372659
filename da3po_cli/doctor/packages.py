"""Checks of the packages that training imports, each as another process found it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from da3po_cli.doctor.findings import Context, Finding, fail, ok, warn

TESTED_MEGATRON = ("0.16.1", "0.19.2")
TORCH_CPU = "pip install --no-deps -r requirements/cpu.txt"
TORCH_GPU = "pip install 'torch>=2.9' of the CUDA version that the driver has"
APEX = "pip install --no-build-isolation git+https://github.com/NVIDIA/apex"


def torch(context: Context) -> Iterator[Finding]:
    told = context.probe("torch")
    install = TORCH_GPU if context.cuda else TORCH_CPU
    if broken := _broken(context, "torch", told, install):
        yield broken
        return
    version, cuda = told["version"], told["cuda"]
    build = f"CUDA {cuda}" if cuda else f"ROCm {told['hip']}" if told["hip"] else "CPU"
    found, facts = f"{version}, {build} build", {"version": version, "cuda": cuda}
    if context.cuda and cuda is None:
        yield fail("torch", f"{found}, and there are {context.devices.cuda} CUDA device(s)", TORCH_GPU, **facts)
    elif _numbers(version) < (2, 9):
        yield fail("torch", found, f"2.9 or newer: {install}", **facts)
    else:
        yield ok("torch", found, **facts)


def megatron(context: Context) -> Iterator[Finding]:
    told = context.probe("megatron-core")
    tested = " or ".join(TESTED_MEGATRON)
    if broken := _broken(context, "megatron-core", told, f"pip install megatron-core=={TESTED_MEGATRON[0]}"):
        yield broken
        return
    facts = {"version": told["version"], "tested": list(TESTED_MEGATRON)}
    if "bridge_error" in told:
        yield fail(
            "megatron-core",
            f"{told['version']} does not go with the bridge: {told['bridge_error']}",
            f"megatron-core {tested}",
            **facts,
        )
    elif told["version"] not in TESTED_MEGATRON:
        yield warn("megatron-core", f"{told['version']}: not tested", f"megatron-core {tested}", **facts)
    else:
        yield ok("megatron-core", str(told["version"]), **facts)


def vllm(context: Context) -> Iterator[Finding]:
    told = context.probe("vllm")
    install = "pip install 'vllm>=0.12'" if context.cuda else TORCH_CPU
    if broken := _broken(context, "vllm", told, install):
        yield broken
        return
    version, lacking = told["version"], told["lacking"]
    facts = {"version": version, "lacking": lacking}
    if lacking:
        yield fail("vllm", f"{version} lacks what da3po uses: {', '.join(lacking)}", install, **facts)
    else:
        yield ok("vllm", f"{version}, with all that da3po uses of it", **facts)


def transformer_engine(context: Context) -> Iterator[Finding]:
    told = context.probe("transformer-engine")
    fp8 = context.config.fp8.format != "none"
    install = "pip install --no-build-isolation 'transformer-engine[pytorch]'"
    used = context.cuda and context.config.model.dtype == "bfloat16"
    if told.get("missing"):
        if fp8:
            yield fail("transformer-engine", "not installed, and fp8.format needs it", install, version=None)
        elif used:
            yield warn("transformer-engine", "not installed: Megatron's own layers, no FP8", install, version=None)
        else:
            yield ok("transformer-engine", "not installed, and not used here", version=None)
    elif broken := _broken(context, "transformer-engine", told, install, needed=used or fp8):
        yield broken
    else:
        yield ok("transformer-engine", str(told["version"]), version=told["version"])


def apex(context: Context) -> Iterator[Finding]:
    """NVIDIA's, the unrelated project of that name on PyPI, or none."""
    from importlib.util import find_spec

    if find_spec("apex") is None:
        yield ok("apex", "none: the norms of torch or TransformerEngine are used", kind=None)
    elif find_spec("amp_C") is None:
        yield warn(
            "apex",
            "the unrelated web toolkit of that name, which PyPI has; it is not NVIDIA's Apex",
            f"pip uninstall apex; NVIDIA's, if you want it: {APEX}",
            kind="impostor",
        )
    else:
        told = context.probe("apex")
        if broken := _broken(
            context, "apex", told, f"built for another torch? {APEX}", needed=context.cuda, kind="nvidia"
        ):
            yield broken
        else:
            yield ok("apex", "NVIDIA's, with its compiled extensions", kind="nvidia", version=told["version"])


def transformers(context: Context) -> Iterator[Finding]:
    told = context.probe("transformers")
    install = "pip install 'transformers>=5'"
    if broken := _broken(context, "transformers", told, install):
        yield broken
    elif _numbers(told["version"]) < (5,):
        yield fail("transformers", str(told["version"]), install, version=told["version"])
    else:
        yield ok("transformers", str(told["version"]), version=told["version"])


def math_verify(context: Context) -> Iterator[Finding]:
    """Training grades by itself; `da3po grade --compare` asks math-verify too."""
    reward = context.config.reward
    needed = any("grade_math_verify" in text for text in (reward.name, reward.by_source))
    told = context.probe("math-verify")
    if broken := _broken(context, "math-verify", told, "pip install 'math-verify>=0.9'", needed=needed):
        yield broken
    else:
        yield ok("math-verify", str(told["version"]), version=told["version"])


def optional(context: Context) -> Iterator[Finding]:
    """Packages that only some configs need."""
    wanted = {
        "datasets": (bool(context.hub_data), f"reads {', '.join(context.hub_data)} from the hub"),
        "wandb": (context.config.run.wandb_project is not None, "run.wandb_project is set"),
    }
    for name, (needed, why) in wanted.items():
        told = context.probe(name)
        if not needed and told.get("missing"):
            yield ok(name, "not installed, and not used by this config", version=None)
        elif broken := _broken(
            context, name, told, f"pip install {name}", needed=needed, because=why if needed else None
        ):
            yield broken
        else:
            yield ok(name, str(told["version"]), version=told["version"])


def declared(context: Context) -> Iterator[Finding]:
    """The versions that the package itself asks for, as its metadata has them."""
    from importlib import metadata

    try:
        from packaging.requirements import Requirement

        wanted = [Requirement(text) for text in metadata.requires("da3po") or []]
    except (ImportError, metadata.PackageNotFoundError):
        yield ok("dependencies", "not checked: da3po runs from a directory and is not installed", wrong=[])
        return
    wrong: list[str] = []
    for one in wanted:
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(one.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{one} is missing")
            continue
        if not one.specifier.contains(version, prereleases=True):
            wrong.append(f"{one}, and {version} is installed")
    if wrong:
        fix = "pip install --editable . (GPU), or pip install --no-deps -r requirements/cpu.txt (CPU)"
        yield warn("dependencies", "; ".join(wrong), fix, wrong=wrong)
    else:
        yield ok("dependencies", "all of the declared versions", wrong=[])


def _broken(
    context: Context,
    name: str,
    told: Mapping[str, Any],
    fix: str,
    *,
    needed: bool = True,
    because: str | None = None,
    **details: Any,
) -> Finding | None:
    """The failure of a package that is not there or cannot be imported, else None."""
    why = f", and {because}" if because else ""
    if told.get("missing"):
        return fail(name, f"not installed{why}", fix, needed=needed, version=None, **details)
    if "error" in told:
        if name != "torch" and told["error"] == context.probe("torch").get("error"):
            fix = "mend torch first"
        version = told.get("version")
        about = f"{version} cannot be imported" if version else "cannot be imported"
        return fail(name, f"{about}: {told['error']}{why}", fix, needed=needed, version=version, **details)
    return None


def _numbers(version: object) -> tuple[int, ...]:
    """2.13.0+cpu -> (2, 13, 0); what is not a number ends it."""
    numbers: list[int] = []
    for part in str(version).partition("+")[0].split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
