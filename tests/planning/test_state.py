"""Buffers and shards of the distributed optimizer in small cases, by hand; the real ones are in test_megatron."""

from __future__ import annotations

from da3po_cli.config.schema import Fp8Config, ParallelConfig
from da3po_cli.planning.known import planned_facts
from da3po_cli.planning.shape import Parameter, rank_parameters, shape_of
from da3po_cli.planning.state import buckets, saving, trainer_state

OFF = Fp8Config()


def test_parameters_lie_in_reverse_with_gaps() -> None:
    """Sizes 100, 10: the last comes first, at 0; the other starts at 64; 164 is filled up to 256 = 2 x 128."""
    (bucket,) = buckets([Parameter(100), Parameter(10)], data=2)
    assert bucket.places == ((0, 10), (64, 164))
    assert bucket.size == 256
    assert [bucket.owned(rank, 2) for rank in range(2)] == [10 + 64, 36]


def test_the_end_is_a_multiple_of_the_ranks_too() -> None:
    (bucket,) = buckets([Parameter(100)], data=3)
    assert bucket.size == 384  # lcm(3, 128)
    assert [bucket.owned(rank, 3) for rank in range(3)] == [100, 0, 0]


def test_a_shared_embedding_has_a_bucket_of_its_own() -> None:
    found = buckets([Parameter(70, shared=True), Parameter(10), Parameter(20)], data=1)
    assert [bucket.size for bucket in found] == [128, 128]
    assert [bucket.owned(0, 1) for bucket in found] == [30, 70]


def test_bytes_by_dtype() -> None:
    chunks = [[Parameter(128, matrix=True, layer=0)], [Parameter(128)]]
    half = trainer_state(chunks, 1, 0, "bfloat16", OFF, 2)
    assert (half.weights, half.gradients, half.main, half.moments) == (512, 1024, 1024, 2048)
    full = trainer_state(chunks, 1, 0, "float32", OFF, 2)
    assert (full.weights, full.gradients, full.main, full.moments) == (1024, 1024, 0, 2048)
    assert full.total == 4096


def test_fp8_weights() -> None:
    """A matrix of 128 and a norm of 128. Cast copies are kept in both orientations, or beside FP8 weights in one."""
    chunks = [[Parameter(128, layer=0), Parameter(128, matrix=True, layer=0)]]
    cast = trainer_state(chunks, 1, 0, "bfloat16", Fp8Config(format="hybrid"), 1)
    assert (cast.weights, cast.fp8_copies) == (512, 256)
    gathered = trainer_state(chunks, 1, 0, "bfloat16", Fp8Config(format="hybrid", param_gather=True), 1)
    assert (gathered.weights, gathered.fp8_copies) == (256 + 128, 128)
    assert (gathered.main, gathered.moments, gathered.gradients) == (cast.main, cast.moments, cast.gradients)
    edges = trainer_state(chunks, 1, 0, "bfloat16", Fp8Config(format="hybrid", param_gather=True, bf16_layers=1), 1)
    assert (edges.weights, edges.fp8_copies) == (512, 0)


def test_the_rule_of_thumb() -> None:
    """2 + 4 + 12 / data bytes per parameter in bfloat16 (Rajbhandari et al. 2020, ZeRO-1), but for the padding."""
    facts, _ = planned_facts("Qwen/Qwen3-8B")
    assert facts is not None
    shape = shape_of(facts)
    chunks = rank_parameters(shape, ParallelConfig(), 0, fused=True)
    for data in (1, 8, 64):
        state = trainer_state(chunks, data, 0, "bfloat16", OFF, shape.layers)
        assert abs(state.total / ((6 + 12 / data) * shape.parameters) - 1) < 1e-4


def test_what_a_save_gathers() -> None:
    """128 elements on each of 2 ranks, 1024 bytes of gradients in all: one float32 per element and the rank's half."""
    state = trainer_state([[Parameter(256)]], 2, 0, "bfloat16", OFF, 1)
    assert state.gradients == 1024
    assert saving(state, 2) == 3 * 1024 + 3 * 512 + 2 * 1024
