"""Megatron's distributed optimizer (AdamW), clipping, and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

from da3po_cli.config.schema import Fp8Config, TrainConfig


def build_optimizer(
    chunks: list[DistributedDataParallel], train: TrainConfig, dtype: torch.dtype, fp8: Fp8Config
) -> MegatronOptimizer:
    """AdamW over float32 main parameters, sharded over the data-parallel ranks; no decay on biases and norms.

    Call it when the chunks hold their weights: the main parameters are copied from them.
    """
    optimizer: Any = get_megatron_optimizer(
        config=OptimizerConfig(
            optimizer="adam",
            lr=train.lr,
            min_lr=train.lr,
            weight_decay=train.weight_decay,
            adam_beta1=train.adam_beta1,
            adam_beta2=train.adam_beta2,
            adam_eps=train.adam_eps,
            clip_grad=train.grad_clip,
            bf16=dtype is torch.bfloat16,
            params_dtype=dtype,
            use_distributed_optimizer=True,
            fp8_recipe=None if fp8.format == "none" else fp8.recipe,
        ),
        model_chunks=[*chunks],
        use_gloo_process_groups=False,
    )
    for part in optimizer.chained_optimizers:
        part.data_parallel_group_gloo = part.data_parallel_group  # it has gloo for CPU tensors; saves gather over it
        if isinstance(part.optimizer, torch.optim.AdamW):
            _guard(part)
        else:  # TransformerEngine's or Apex's FusedAdam; without a state a save before the first step fails
            part.init_state_fn(part.optimizer, part.config)
    return optimizer


def step(optimizer: MegatronOptimizer, *, sound: bool = True) -> tuple[float, bool]:
    """Clip and step on the reduced gradients.

    Args:
        sound: False skips the step, as a gradient does that is not finite; the same on every rank.

    Returns:
        (global gradient norm before clipping, whether the step was skipped). A skipped step leaves weights and
        optimizer state untouched, on every rank: the norm is the same everywhere.
    """
    optimizer.prepare_grads()
    norm = float(optimizer.get_grad_norm())
    if not (sound and math.isfinite(norm)):
        return norm, True
    if optimizer.config.clip_grad > 0:
        clip_grad_by_total_norm_fp32([*optimizer.get_parameters()], optimizer.config.clip_grad, norm)
    optimizer.step_with_ready_grads()
    return norm, False


class WarmupSchedule:
    """Linear warm-up over rollout steps, then constant.

    The updates of rollout step i (0-based) use lr * min(1, (i + 1) / warmup_steps): the first step already learns, and
    the warmup_steps-th has the full rate. 0 warm-up steps is constant.

    It also sets the weight decay of each group, as Megatron's own scheduler does: its optimizer notes that norms and
    biases are not decayed (`wd_mult` 0), but leaves it to the scheduler to act on it.
    """

    def __init__(self, optimizer: MegatronOptimizer, train: TrainConfig) -> None:
        self.optimizer, self.position = optimizer, 0
        self.peak, self.warmup_steps, self.weight_decay = train.lr, train.warmup_steps, train.weight_decay
        self._apply()

    @property
    def lr(self) -> float:
        """The rate in use."""
        return self.peak * min(1.0, (self.position + 1) / max(1, self.warmup_steps))

    def advance(self) -> None:
        """On to the next rollout step."""
        self.seek(self.position + 1)

    def seek(self, position: int) -> None:
        """Go to rollout step `position`, as after loading a checkpoint."""
        self.position = position
        self._apply()

    def _apply(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * group["lr_mult"]
            group["weight_decay"] = self.weight_decay * group["wd_mult"]


def _guard(part: Any) -> None:
    """Mend three faults of Megatron's DistributedOptimizer over torch.optim.AdamW (seen in 0.16.1 and 0.19.2).

    1. Its state dict asserts before the first step, so a fresh optimizer can neither save nor load: give every
       parameter zero state now.
    2. Loading the fully_reshardable format looks up a per-parameter `step` that the format does not carry.
    3. Loading gives ONE step tensor to all parameters; each then counts it up, and training goes on with a wrong
       bias correction. Clone it per parameter.
    """
    for group in part.optimizer.param_groups:
        for param in group["params"]:
            state = part.optimizer.state[param]
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(param), torch.zeros_like(param)

    set_states: Callable[..., None] = part._set_main_param_and_optimizer_states
    load_state: Callable[..., None] = part.load_state_dict

    def set_states_with_step(model_param: Any, tensors: dict[str, Any]) -> None:
        group, order = part.model_param_group_index_map[model_param]
        main = part.optimizer.param_groups[group]["params"][order]
        set_states(model_param, {"step": part.optimizer.state[main]["step"], **tensors})

    def load_state_with_own_steps(state_dict: dict[str, Any]) -> None:
        load_state(state_dict)
        for state in part.optimizer.state.values():
            state["step"] = state["step"].clone()

    part._set_main_param_and_optimizer_states = set_states_with_step
    part.load_state_dict = load_state_with_own_steps
