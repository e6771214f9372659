"""The policy on Megatron-Core: `build_policy` is the one public name; importing the package loads nothing heavy.

Part of the distribution `da3po`; it has nothing to do with NVIDIA's `megatron-bridge` (import name `megatron.bridge`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from da3po_cli.config.schema import TrainConfig
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
    with_reference: bool = False,
) -> MegatronPolicy:
    """A policy with the weights of a Hugging Face directory, ready to train. Collective.

    Args:
        hf_dir: holds config.json and safetensors.
        dtype: of weights and activations; main parameters, gradients and moments are float32.
        parallel: from `megatron_bridge.parallel.initialize`.
        train: optimizer and schedule.
        temperature: log-probs are of logits / temperature.
        seed: of torch's generator on this rank (nothing in the model is drawn at random: there is no dropout).
        with_reference: keep a CPU copy of the initial weights for `logprobs(reference=True)`.

    Raises:
        UsageError: an unknown architecture, a layout that does not divide, a missing or unexpected tensor.
    """
    import torch

    from megatron_bridge import model, optimizer, weights
    from megatron_bridge.engine import MegatronPolicy

    arch = model.read_arch(Path(hf_dir))
    model.check_layout(arch, parallel.tensor_size, parallel.pipeline_size)
    torch.manual_seed(seed)
    with parallel.megatron():
        stage = model.build_stage(arch, model.DTYPES[dtype], parallel, train.recompute)
        weights.load_hf(stage, arch, parallel)
        wrapped = model.wrap(stage, parallel)
        adam = optimizer.build_optimizer(wrapped, train, model.DTYPES[dtype])
    schedule = optimizer.WarmupSchedule(adam, train)
    return MegatronPolicy(wrapped, arch, parallel, adam, schedule, temperature, with_reference)
