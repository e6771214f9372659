"""Which layouts are found, which fit, and in what order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from da3po_cli.checks.layout import model_rules
from da3po_cli.checks.rules import check
from da3po_cli.config.load import load_config
from da3po_cli.config.plan import layout
from da3po_cli.config.schema import Config
from da3po_cli.planning.estimate import GIB, Machine, estimate, largest_share, with_share
from da3po_cli.planning.known import planned_facts
from da3po_cli.planning.layouts import Candidate, rank_layouts
from da3po_cli.planning.shape import Shape, shape_of

VIRTUAL = ("parallel.pipeline=2", "parallel.virtual_pipeline=2")


def preset(name: str, *overrides: str) -> Config:
    return load_config([name], list(overrides), env={}).config


def ranked(config: Config, gpus: int, gib: int) -> list[Candidate]:
    facts, _ = planned_facts(config.model.path)
    assert facts is not None
    return rank_layouts(config, shape_of(facts), facts, Machine(gpus, gib * GIB))


def shape(config: Config) -> Shape:
    facts, _ = planned_facts(config.model.path)
    assert facts is not None
    return shape_of(facts)


def test_all_that_divide_and_pass_the_checks() -> None:
    found = {(one.found.where.tensor, one.found.where.pipeline) for one in ranked(preset("qwen3-4b"), 8, 80)}
    # 32 heads, 8 key-value heads, 9728 columns, 36 layers: all powers of two up to 8 divide
    assert found == {(t, p) for t in (1, 2, 4, 8) for p in (1, 2, 4, 8) if t * p <= 8}
    # 14 heads and 2 key-value heads: neither 4 nor 8 divides 14
    small = {one.found.where.tensor for one in ranked(preset("qwen3-4b", "model.path=Qwen/Qwen2.5-0.5B"), 8, 80)}
    assert small == {1, 2}


@pytest.mark.parametrize("cut", [(), ("parallel.pipeline=2", "parallel.pipeline_layers=17,19"), VIRTUAL])
@pytest.mark.parametrize("gpus", [1, 2, 6, 8, 16])
def test_every_candidate_is_a_config_that_the_checks_take(gpus: int, cut: tuple[str, ...]) -> None:
    config = preset("qwen3-8b", *cut)
    facts, _ = planned_facts(config.model.path)
    assert facts is not None
    candidates = ranked(config, gpus, 80)
    assert candidates
    for one in candidates:
        typed = preset("qwen3-8b", *cut, *one.overrides)
        assert typed == one.found.config
        where = layout(typed, devices=gpus)
        assert where.world == gpus
        assert check(typed, devices=gpus) == []
        assert list(model_rules(facts, where, typed)) == []


def test_the_order_is_the_rule() -> None:
    candidates = ranked(preset("qwen3-8b"), 8, 80)
    fitting = [one for one in candidates if one.fits]
    assert candidates[: len(fitting)] == fitting and fitting
    keys = [(one.found.where.tensor * one.found.where.pipeline, one.moved) for one in fitting]
    assert keys == sorted(keys)
    for one in fitting:
        assert one.found.stage.most_peak <= 0.97 * 80 * GIB
        assert one.found.engine.sequences >= 1


def test_a_bigger_model_needs_more_model_parallelism() -> None:
    least = [
        min(one.found.where.tensor * one.found.where.pipeline for one in ranked(config, 8, 80) if one.fits)
        for config in (preset("qwen3-4b"), preset("qwen3-8b"), preset("qwen3-8b", "model.path=Qwen/Qwen3-14B"))
    ]
    assert least == sorted(least) and least[0] == 1 and least[-1] > 1
    assert not any(one.fits for one in ranked(preset("qwen3-8b", "model.path=Qwen/Qwen3-32B"), 2, 80))


def test_the_share_of_the_engine_that_fits() -> None:
    config = preset("qwen3-4b", "parallel.data=8")
    machine = Machine(8, 80 * GIB)
    found = estimate(config, shape(config), machine)
    share = largest_share(found)
    best = estimate(with_share(config, share), shape(config), machine)
    over = estimate(with_share(config, share + 0.01), shape(config), machine)
    assert best.fits and not over.fits
    phases = {phase.name: phase for phase in best.stage.phases}
    rollout = phases["rollout"]
    # the engine's share and the trainer's state are all that there is: vLLM fills its share to the brim
    assert rollout.total == pytest.approx(share * 80 * GIB + best.stage.state.total, abs=4)


def test_recompute_and_sequence_parallelism_save_activations() -> None:
    config = preset("qwen3-4b", "parallel.data=4", "parallel.tensor=2")
    machine = Machine(8, 80 * GIB)
    kept = estimate(config, shape(config), machine).stage.most.kept
    split = replace(config, parallel=replace(config.parallel, sequence=True))
    whole = replace(config, train=replace(config.train, recompute=False))
    assert estimate(split, shape(config), machine).stage.most.kept == pytest.approx(kept / 2, rel=1e-3)
    assert estimate(whole, shape(config), machine).stage.most.kept > 10 * kept


def test_stages_and_parts_add_up() -> None:
    config = preset("qwen3-4b", "parallel.data=2", "parallel.pipeline=4")
    found = estimate(config, shape(config), Machine(8, 80 * GIB))
    assert [stage.number for stage in found.stages] == [0, 1, 2, 3]
    # 36 layers in 4 stages, the embedding on the first and, tied, on the last: those in between hold less
    sizes = [stage.state.weights for stage in found.stages]
    assert sizes[1] == sizes[2] < min(sizes[0], sizes[3])
    for stage in found.stages:
        for phase in stage.phases:
            assert phase.total == sum(phase.parts.values())
    assert found.sync_bytes == 4_022_468_096 * 2
    assert found.checkpoint_bytes == 4_022_468_096 * 14  # bf16, float32 main and two moments
