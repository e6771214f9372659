"""Weights, gradients and optimizer state of a rank, byte for byte as Megatron allocates them.

`DistributedDataParallel` puts the parameters of a model chunk, last one first, into one flat buffer of weights and one
of float32 gradients. Each parameter starts at a multiple of 64 elements; a buffer, or a bucket of it, ends at a
multiple of lcm(data-parallel ranks, 128) (`_ParamAndGradBuffer.__init__`). There is one bucket, as gradients are not
reduced during backward; only an embedding shared by two pipeline stages has one of its own, and under
`fp8.param_gather` the matrices have a buffer of bytes. The distributed optimizer gives rank r the r-th equal part of
every bucket and keeps, for the elements of parameters in it (not for the padding), float32 moments and, unless the
weights are float32 themselves, a float32 main copy. With torch's AdamW every shard has a step counter of 4 bytes
besides, which is not counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import lcm

from da3po_cli.config.schema import Fp8Config
from da3po_cli.planning.shape import Parameter

_START, _END = 64, 128  # elements: `_pad_start_of_param_if_needed`, `_pad_end_of_bucket_if_needed`
BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class TrainerState:
    """Bytes on one rank.

    Attributes:
        weights: the buffers of weights, with their padding.
        fp8_copies: of matrices in FP8, which TransformerEngine keeps beside the buffer: both orientations of the cast
            weight, or the second one of a weight that is FP8 itself.
        gradients: the float32 buffers, with their padding.
        main: float32 main parameters.
        moments: Adam's two float32 moments.
    """

    weights: int
    fp8_copies: int
    gradients: int
    main: int
    moments: int

    @property
    def total(self) -> int:
        return self.weights + self.fp8_copies + self.gradients + self.main + self.moments


@dataclass(frozen=True)
class Bucket:
    """Part of a flat buffer: where each of its parameters lies, in elements from the start of the bucket."""

    places: tuple[tuple[int, int], ...]
    size: int

    def owned(self, rank: int, ranks: int) -> int:
        """Elements of parameters in the part of data-parallel rank `rank`."""
        part = self.size // ranks
        start, stop = rank * part, (rank + 1) * part
        return sum(max(0, min(stop, end) - max(start, begin)) for begin, end in self.places)


def buckets(parameters: Sequence[Parameter], data: int) -> list[Bucket]:
    """The buckets of one buffer over `data` ranks."""
    runs: list[list[Parameter]] = [[]]
    for parameter in reversed(parameters):
        if parameter.shared:
            runs += [[parameter], []]
        else:
            runs[-1].append(parameter)
    found: list[Bucket] = []
    for run in filter(None, runs):
        begins = [0, *accumulate(_up(parameter.size, _START) for parameter in run)]
        places = tuple((begin, begin + parameter.size) for begin, parameter in zip(begins, run, strict=False))
        found.append(Bucket(places, _up(places[-1][1], lcm(data, _END))))
    return found


def trainer_state(
    chunks: Sequence[Sequence[Parameter]], data: int, rank: int, dtype: str, fp8: Fp8Config, layers: int
) -> TrainerState:
    """The state of data-parallel rank `rank` of `data`.

    Args:
        chunks: `rank_parameters` of its pipeline stage.
        layers: of the whole model, for `fp8.bf16_layers`.
    """

    def in_fp8(parameter: Parameter) -> bool:
        edge = fp8.bf16_layers
        inner = parameter.layer is not None and edge <= parameter.layer < layers - edge
        return fp8.format != "none" and parameter.matrix and inner

    weights = copies = elements = owned = 0
    for chunk in chunks:
        narrow = [parameter for parameter in chunk if in_fp8(parameter)]
        copies += sum(parameter.size for parameter in narrow) * (1 if fp8.param_gather else 2)
        buffers = [(chunk, BYTES[dtype])]
        if fp8.param_gather:
            buffers = [([one for one in chunk if not in_fp8(one)], BYTES[dtype]), (narrow, 1)]
        for parameters, width in buffers:
            for bucket in buckets(parameters, data):
                weights += bucket.size * width
                elements += bucket.size
                owned += bucket.owned(rank, data)
    return TrainerState(
        weights=weights,
        fp8_copies=copies,
        gradients=4 * elements,
        main=0 if dtype == "float32" else 4 * owned,
        moments=8 * owned,
    )


def largest_state(
    chunks: Sequence[Sequence[Parameter]], data: int, dtype: str, fp8: Fp8Config, layers: int
) -> TrainerState:
    """The larger of the first and the last data-parallel rank's. Ranks differ by the padding in their parts only."""
    states = [trainer_state(chunks, data, rank, dtype, fp8, layers) for rank in sorted({0, data - 1})]
    return max(states, key=lambda state: state.total)


def saving(state: TrainerState, data: int) -> int:
    """Bytes of host memory that a save takes beside the state on the first of `data` data-parallel ranks, at most.

    For a checkpoint that any layout can load, Megatron's `get_parameter_state_dp_zero` copies each rank's parts of main
    parameters and moments to host memory, and gathers each of the three on the first rank: as parts, joined, and in the
    whole. The other ranks have their parts only, and the devices nothing.
    """
    whole = state.gradients  # as large as one float32 value per element, with the padding
    return 3 * whole + 3 * whole // data + 2 * whole


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
