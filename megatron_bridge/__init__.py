"""The policy on Megatron-Core: `build_policy` is the one public name; importing the package loads nothing heavy.

Part of the distribution `da3po`; it has nothing to do with NVIDIA's `megatron-bridge` (import name `megatron.bridge`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from da3po_cli.config.schema import Fp8Config, ParallelConfig, TrainConfig
    from megatron_bridge.engine import MegatronPolicy
    from megatron_bridge.parallel import Parallel

__all__ = ["build_policy"]


def build_policy(
    hf_dir: Path,
    *,
    dtype: Literal["float32", "bfloat16"],
    parallel: Parallel,
    train: TrainConfig,
    temperature: float,
    seed: int,
    layout: ParallelConfig | None = None,
    fp8: Fp8Config | None = None,
    with_reference: bool = False,
    on_forward: Callable[[], None] = lambda: None,
) -> MegatronPolicy:
    """A policy with the weights of a Hugging Face directory, ready to train. Collective.

    Args:
        hf_dir: holds config.json and safetensors.
        dtype: of weights and activations; main parameters, gradients and moments are float32.
        parallel: from `megatron_bridge.parallel.initialize`.
        train: optimizer and schedule.
        temperature: log-probs are of logits / temperature.
        seed: of torch's generator on this rank (nothing in the model is drawn at random: there is no dropout).
        layout: how layers are cut; by default what `parallel` says, spread evenly, without sequence parallelism.
        fp8: FP8 training; off by default.
        with_reference: keep a CPU copy of the initial weights for `logprobs(reference=True)`.
        on_forward: called before each forward pass of a micro-batch, to show that this rank gets on.

    Raises:
        UsageError: an unknown architecture, a layout that does not divide, a missing or unexpected tensor.
        EnvironmentProblem: FP8 where it can't run.
    """
    import torch

    from da3po_cli.config.schema import Fp8Config, ParallelConfig
    from megatron_bridge import model, optimizer, weights
    from megatron_bridge.arch import check_layout, read_arch
    from megatron_bridge.backends import choose_backend
    from megatron_bridge.engine import MegatronPolicy

    fp8, kind = fp8 or Fp8Config(), model.DTYPES[dtype]
    layout = layout or ParallelConfig(tensor=parallel.tensor_size, pipeline=parallel.pipeline_size)
    backend = choose_backend(parallel.device, kind, fp8)
    arch = read_arch(Path(hf_dir))
    check_layout(arch, layout)
    torch.manual_seed(seed)
    with parallel.megatron():
        config = model.transformer_config(arch, kind, parallel, layout, backend.config_fields(), train.recompute)
        chunks = model.build_chunks(config, arch, parallel, layout, backend)
        weights.load_hf(chunks, arch, parallel)
        wrapped = [model.wrap(chunk, fp8) for chunk in chunks]
        adam = optimizer.build_optimizer(wrapped, train, kind, fp8)
    schedule = optimizer.WarmupSchedule(adam, train)
    return MegatronPolicy(wrapped, arch, parallel, backend, adam, schedule, temperature, with_reference, on_forward)
