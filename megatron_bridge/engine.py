"""The policy under training: forward and backward through Megatron's own schedules. The one place of loss scaling.

What Megatron does to a loss, and what is set here so that gradients are plain sums:

1. `schedules.forward_step_calc_loss`: a loss function that returns a pair has its loss divided by the number of
   micro-batches; a triple (loss, number of tokens, metrics) has it divided by both, unless
   `config.calculate_per_token_loss`. That is set, and a triple is returned: the loss goes to backward untouched.
2. `DistributedDataParallel` multiplies gradients by 1 / (data-parallel size) before it sums them over the ranks,
   unless `calculate_per_token_loss`, when the factor is 1.
3. `finalize_model_grads` at last divides by the global number of tokens when it is given one: it is given none.

So the gradient is sum over ranks and micro-batches of d loss / d weight. The loss function that `update` receives has
already divided by the global denominators, which is why nothing depends on how the batch was cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from torch import Tensor

from da3po_cli.algos.types import MicroBatch
from da3po_cli.errors import DivergedError
from da3po_cli.protocols import Update
from megatron_bridge import checkpoint
from megatron_bridge.arch import Arch
from megatron_bridge.backends import Backend
from megatron_bridge.logprobs import token_logprobs
from megatron_bridge.optimizer import WarmupSchedule, step
from megatron_bridge.packing import Packed, pack, packed_length
from megatron_bridge.parallel import Parallel
from megatron_bridge.weights import Exporter

if TYPE_CHECKING:
    from da3po_cli.algos.types import LossFn
    from da3po_cli.protocols import SumsCheck

# (log-probs, entropy, batch) -> (loss for backward, anything to keep of this micro-batch)
_Objective = Callable[[Tensor, Tensor, MicroBatch], tuple[Tensor, Any]]


@dataclass(frozen=True)
class _Work:
    """A micro-batch on the device, as the model reads it and as the objective does."""

    packed: Packed
    batch: MicroBatch
    objective: _Objective
    temperature: float


class MegatronPolicy:
    """A `Policy` over one Megatron GPTModel. All methods are collective over the whole job."""

    def __init__(
        self,
        chunks: list[DistributedDataParallel],
        arch: Arch,
        parallel: Parallel,
        backend: Backend,
        optimizer: MegatronOptimizer,
        schedule: WarmupSchedule,
        temperature: float,
        with_reference: bool = False,
        on_forward: Callable[[], None] = lambda: None,
    ) -> None:
        self.chunks, self.arch, self.parallel, self.backend = chunks, arch, parallel, backend
        self.optimizer, self.schedule, self.temperature = optimizer, schedule, temperature
        self.exporter = Exporter(chunks, arch, parallel, backend.values)
        self._reference = _copy_out(chunks) if with_reference else None
        self._on_forward = on_forward
        self.config = chunks[0].config
        self.config.finalize_model_grads_func = _sum_gradients
        self._multiple = backend.token_multiple(parallel.tensor_size if self.config.sequence_parallel else 1)

    def iter_hf_weights(self, include_tied_head: bool = True) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, full tensor), one at a time, on every rank in step; see `Exporter.tensors`."""
        return self.exporter.tensors(include_tied_head)

    def logprobs(
        self, batches: Sequence[MicroBatch], *, reference: bool = False, temperature: float | None = None
    ) -> list[Tensor]:
        """See `Policy.logprobs`. `reference=True` needs a policy built with `with_reference=True`."""
        if not batches:
            return []
        if not reference:
            return self._logprobs(batches, temperature)
        if self._reference is None:
            raise RuntimeError("this policy keeps no reference weights: build it with with_reference=True")
        current = _copy_out(self.chunks)
        try:
            _copy_in(self.chunks, self._reference)
            return self._logprobs(batches, temperature)
        finally:
            _copy_in(self.chunks, current)

    def _logprobs(self, batches: Sequence[MicroBatch], temperature: float | None) -> list[Tensor]:
        def keep(logprobs: Tensor, entropy: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
            return logprobs.new_zeros(()), logprobs

        with torch.no_grad():
            kept = self._run([(batch, keep) for batch in batches], backward=False, temperature=temperature)
        sizes = [batch.tokens.numel() for batch in batches]
        if self.parallel.pipeline_size > 1:
            flat = torch.empty(sum(sizes), dtype=torch.float32, device=self.parallel.device)
            if self.parallel.last_stage:
                torch.cat([one.flatten() for one in kept], out=flat)
            dist.broadcast(flat, src=self.parallel.pipeline_ranks[-1], group=self.parallel.pipeline_group)
            kept = [part.view(batch.tokens.shape) for part, batch in zip(flat.split(sizes), batches, strict=True)]
        return [torch.where(batch.mask, one.cpu(), 0.0) for one, batch in zip(kept, batches, strict=True)]

    def update(self, batches: Sequence[MicroBatch], loss: LossFn, check: SumsCheck | None = None) -> Update:
        """See `Policy.update`. Data-parallel ranks may bring different numbers of micro-batches, also none.

        A log-prob of -inf can have a finite gradient, so the loss and its sums count as well as the gradient norm.
        """
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        value, sums = self.accumulate(batches, loss)
        if check is not None:
            check(sums)
        with self.parallel.megatron():
            norm, skipped = step(self.optimizer, sound=all(map(math.isfinite, (value, *sums.values()))))
        return Update(loss=value, grad_norm=norm, lr=self.schedule.lr, skipped=skipped, sums=sums)

    def accumulate(
        self, batches: Sequence[MicroBatch], loss: LossFn, *, all_reduce: bool = False
    ) -> tuple[float, dict[str, float]]:
        """Forward and backward over all micro-batches; gradients end in the parameters' `main_grad`.

        Args:
            all_reduce: leave the whole reduced gradient on every data-parallel rank, not only the rank's share.

        Returns:
            (loss, sums), each summed over micro-batches and data-parallel ranks, the same on every rank.
        """

        def keep(logprobs: Tensor, entropy: Tensor, batch: MicroBatch) -> tuple[Tensor, Any]:
            value, sums = loss(logprobs, entropy, batch)
            return value, (value.detach(), sums)

        work: list[tuple[MicroBatch, _Objective]] = [(batch, keep) for batch in batches]
        return self._total(self._run(work or [(_blank(), _add_nothing)], backward=True, all_reduce=all_reduce))

    def advance_schedule(self) -> None:
        """See `Policy.advance_schedule`."""
        self.schedule.advance()

    def save(self, directory: Path) -> None:
        """See `Policy.save`."""
        self._save(directory, background=False).finish()

    def begin_save(self, directory: Path) -> checkpoint.Save:
        """See `Policy.begin_save`."""
        return self._save(directory, background=True)

    def _save(self, directory: Path, *, background: bool) -> checkpoint.Save:
        self._check_weights(directory)
        with self.parallel.megatron():
            return checkpoint.save(
                directory, self.chunks, self.optimizer, self.schedule, self.parallel, background=background
            )

    def _check_weights(self, directory: Path) -> None:
        """No checkpoint of weights that nothing can be learnt from: the one before is the one to go on from."""
        weights = (item for chunk in self.chunks for item in chunk.named_parameters())
        bad = [name for name, weight in weights if not torch.isfinite(weight).all()]
        found = [name for names in self.parallel.gather(bad[:1]) for name in names]
        if found:
            raise DivergedError(
                f"{found[0].removeprefix('module.')} holds values that are not finite, so no checkpoint is written",
                where=str(directory),
                hint="lower train.lr or raise train.warmup_steps, and go on from the last checkpoint with --resume",
            )

    def load(self, directory: Path) -> None:
        """See `Policy.load`."""
        with self.parallel.megatron():
            checkpoint.load(directory, self.chunks, self.optimizer, self.schedule, self.parallel)

    def _run(
        self,
        work: Sequence[tuple[MicroBatch, _Objective]],
        *,
        backward: bool,
        all_reduce: bool = False,
        temperature: float | None = None,
    ) -> list[Any]:
        """Megatron's schedule over the micro-batches; what their objectives kept (empty before the last stage)."""
        count, interleaved = len(work), len(self.chunks) > 1
        if interleaved:  # the interleaved schedule takes whole rounds of micro-batches over the pipeline
            work = [*work, *[(_blank(), _add_nothing)] * (-count % self.parallel.pipeline_size)]
        ready = self._ready(work, self.temperature if temperature is None else temperature)
        iterators = [iter(ready) for _ in self.chunks]
        with self.parallel.megatron():
            kept = get_forward_backward_func()(
                forward_step_func=self._forward_step,
                data_iterator=iterators if interleaved else iterators[0],
                model=[*self.chunks],
                num_microbatches=len(ready),
                seq_length=ready[0].packed.tokens.shape[1],
                micro_batch_size=1,
                forward_only=not backward,
                force_all_reduce=all_reduce,
            )
        return kept[:count]

    def _ready(self, work: Sequence[tuple[MicroBatch, _Objective]], temperature: float) -> list[_Work]:
        """Packed, on the device; in a pipeline all of one length, for stages do not tell each other what they send."""
        device, lengths_on = self.parallel.device, self.backend.lengths_on
        totals = [packed_length(batch, self._multiple) for batch, _ in work]
        if self.parallel.pipeline_size > 1:
            totals = [max(totals)] * len(totals)
        return [
            _Work(pack(batch, total, device, lengths_on), _to(batch, device), objective, temperature)
            for (batch, objective), total in zip(work, totals, strict=True)
        ]

    def _forward_step(
        self, work: Iterator[_Work], model: DistributedDataParallel
    ) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, Any]]]:
        """One micro-batch through this chunk: hidden states, or at the end of the model logits [1, T, V/TP]."""
        self._on_forward()
        one = next(work)
        half = {"fp32_output": False} if model.config.bf16 else {}
        packed = one.packed
        output = model(packed.tokens, packed.positions, None, packed_seq_params=packed.sequences, **half)
        return output, partial(self._loss, one)

    def _loss(self, one: _Work, logits: Tensor) -> tuple[Tensor, Tensor, Any]:
        """Megatron's loss triple; the number of tokens is 0 because nothing is divided by it."""
        shape = one.batch.tokens.shape
        logprobs, entropy = token_logprobs(
            logits,
            one.packed.targets,
            temperature=one.temperature,
            vocab=self.arch.vocab,
            tensor_rank=self.parallel.tensor_rank,
            tensor_group=self.parallel.tensor_group,
        )
        logprobs, entropy = one.packed.unpack(logprobs, shape), one.packed.unpack(entropy, shape)
        loss, kept = one.objective(logprobs, entropy, one.batch)
        return loss, torch.zeros((), dtype=torch.int, device=logits.device), kept

    def _total(self, kept: list[tuple[Tensor, dict[str, Tensor]]]) -> tuple[float, dict[str, float]]:
        """Sums in float64 over micro-batches, then over ranks; each data-parallel rank's last stage counts once.

        Names travel with the values, because a rank without micro-batches or before the last stage knows none.
        """
        local: dict[str | None, float] = {}  # None names the loss
        for loss, sums in kept:
            names = [None, *sums]
            values = torch.stack([loss.double(), *(torch.as_tensor(x).double().to(loss.device) for x in sums.values())])
            for name, value in zip(names, values.tolist(), strict=True):
                local[name] = local.get(name, 0.0) + value
        speaks = self.parallel.last_stage and self.parallel.tensor_rank == 0
        total: dict[str | None, float] = {}
        for one in self.parallel.gather(local if speaks else {}):
            for name, value in one.items():
                total[name] = total.get(name, 0.0) + value
        loss = total.pop(None)
        return loss, {str(name): value for name, value in total.items()}


def _sum_gradients(model: list[torch.nn.Module], num_tokens: Tensor | None = None, **groups: Any) -> None:
    """Megatron's reduction over data-parallel ranks, shared norms and tied embeddings, without its division."""
    finalize_model_grads(model, None, **groups)


def _add_nothing(logprobs: Tensor, entropy: Tensor, batch: MicroBatch) -> tuple[Tensor, Any]:
    """The objective of a blank micro-batch."""
    return logprobs.sum() * 0.0, (logprobs.new_zeros(()), {})


def _blank() -> MicroBatch:
    """Stands in where a data-parallel rank has no micro-batch, or too few for Megatron's schedule."""
    zeros = torch.zeros((1, 1), dtype=torch.int64)
    return MicroBatch(zeros, zeros, zeros.bool(), torch.zeros(1), torch.zeros(1, 1))


def _to(batch: MicroBatch, device: torch.device) -> MicroBatch:
    """The batch on `device`."""
    if batch.tokens.device == device:
        return batch
    tensors = {k: v.to(device, non_blocking=True) for k, v in vars(batch).items() if isinstance(v, Tensor)}
    return replace(batch, **tensors)


def _copy_out(chunks: Sequence[torch.nn.Module]) -> list[Tensor]:
    """This rank's weights, copied to the CPU."""
    return [param.detach().to("cpu", copy=True) for chunk in chunks for param in chunk.parameters()]


@torch.no_grad()
def _copy_in(chunks: Sequence[torch.nn.Module], values: list[Tensor]) -> None:
    params = (param for chunk in chunks for param in chunk.parameters())
    for param, value in zip(params, values, strict=True):
        param.copy_(value)
