"""The CPU device shim: lets Megatron-Core, which names CUDA devices throughout, run on a CPU.

`cpu_device()` is a context of plain wrappers around a few names of torch and Megatron, active only around calls into
Megatron: vLLM, which shares the process, must not see it. It is not imported on CUDA. Plain wrappers rather than a
TorchFunctionMode, because a mode is off inside backward (activation recomputation makes tensors there) and slows
every op.

Right for models without dropout whose weights are initialised on the CPU: the RNG tracker's `fork` does nothing here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

_FACTORIES = (
    "tensor",
    "zeros",
    "ones",
    "empty",
    "full",
    "arange",
    "rand",
    "randn",
    "empty_like",
    "zeros_like",
    "ones_like",
)
_depth = 0  # entering twice is allowed: only the outermost context patches


class _NoStream:
    """Stands for a CUDA stream where everything is synchronous."""

    def wait_stream(self, stream: object) -> None: ...

    def synchronize(self) -> None: ...


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`factory` with a CUDA (or integer) `device=` read as the CPU."""

    @functools.wraps(factory)
    def wrapper(*args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if device is not None and (isinstance(device, int) or "cuda" in str(device)):
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return wrapper


def _cuda_type_name(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.type()` in the CUDA spelling: Megatron's optimizers compare that string."""

    def wrapper(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if args or kwargs:
            return result
        return result.replace("torch.", "torch.cuda.", 1) if not result.startswith("torch.cuda.") else result

    return wrapper


def _note_seed(tracker: Any, name: str, seed: int) -> None:
    """`add` of Megatron's RNG tracker without a CUDA generator."""
    tracker._is_initialized = True
    tracker.seeds_.add(seed)
    tracker.states_[name] = torch.Generator().manual_seed(seed).get_state()


def _no_fork(tracker: Any, name: str = "") -> Any:
    """`fork` of Megatron's RNG tracker where nothing is drawn."""
    return nullcontext()


def _patches() -> list[tuple[Any, str, Any]]:
    """(owner, name, replacement) of every name that the shim changes."""
    from megatron.core.tensor_parallel import random as megatron_random

    patches: list[tuple[Any, str, Any]] = [(torch, name, _on_cpu(getattr(torch, name))) for name in _FACTORIES]
    patches += [
        (torch.Tensor, "cuda", lambda self, *args, **kwargs: self),
        (torch.Tensor, "type", _cuda_type_name(torch.Tensor.type)),
        (torch.cuda, "current_device", lambda: "cpu"),
        (torch.cuda, "synchronize", lambda *args: None),
        (torch.cuda, "current_stream", lambda *args: _NoStream()),
        (torch.cuda, "get_rng_state", lambda *args, **kwargs: torch.get_rng_state()),
        (torch.cuda, "manual_seed", lambda seed: None),
        (megatron_random, "_get_cuda_rng_state", lambda *args, **kwargs: torch.get_rng_state()),
        (megatron_random, "_set_cuda_rng_state", lambda *args, **kwargs: None),
        (megatron_random.CudaRNGStatesTracker, "add", _note_seed),
        (megatron_random.CudaRNGStatesTracker, "fork", _no_fork),
    ]
    return patches


@contextmanager
def cpu_device() -> Iterator[None]:
    """Patch the names for the duration of the block, then put every one back, also after an error."""
    global _depth
    if _depth:
        yield
        return
    saved: list[tuple[Any, str, Any]] = []
    _depth += 1
    try:
        for owner, name, replacement in _patches():
            saved.append((owner, name, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in reversed(saved):
            if original is _ABSENT:  # inherited (Tensor methods live on the C base class): uncover it again
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        _depth -= 1


@contextmanager
def shared_groups() -> Iterator[None]:
    """Inside, torch.distributed.new_group makes one gloo group per set of ranks, however often it is asked for.

    Megatron makes some forty groups, most of them over the same few sets of ranks, and every gloo group costs three
    threads, one of which wakes a hundred times a second.
    """
    made: dict[tuple[int, ...], Any] = {}
    original = torch.distributed.new_group

    def new_group(ranks: list[int] | None = None, *args: Any, **kwargs: Any) -> Any:
        key = tuple(sorted(ranks)) if ranks is not None else ()
        if key not in made:
            made[key] = original(ranks, *args, **kwargs)
        return made[key]

    torch.distributed.new_group = new_group
    try:
        yield
    finally:
        torch.distributed.new_group = original


_ABSENT = object()
