"""`da3po doctor RUN --recompute STEP`: is what was trained what the config says? The oracle's numbers by the run's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from da3po_cli.config.schema import Config
from da3po_cli.errors import UsageError
from da3po_cli.runs.checkpoints import checkpoint_path
from da3po_cli.runs.directory import RunDir
from da3po_cli.runs.metrics import read_metrics
from da3po_cli.runs.rollouts import read_rollouts, rollouts_file

if TYPE_CHECKING:
    from torch import Tensor

    from da3po_cli.doctor.oracle import Oracle


@dataclass(frozen=True)
class Tolerance:
    """|recorded - recomputed| may be `relative` of the larger one, or `absolute`; `moved` of the weights' way."""

    relative: float
    absolute: float
    moved: float


# What two implementations differ by; in bfloat16 every product is rounded to 8 bits, and not in the same order. The
# absolute part is for means of differences of two log-probs, which cancel down to their rounding.
TOLERANCES = {"float32": Tolerance(1e-4, 1e-6, 1e-2), "bfloat16": Tolerance(5e-2, 5e-3, 0.3)}


@dataclass(frozen=True)
class Row:
    """One number twice."""

    name: str
    recorded: float
    recomputed: float
    ok: bool


def recompute(
    run: RunDir,
    config: Config,
    step: int,
    *,
    since: int | None = None,
    tolerance: Tolerance | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[int, list[Row]]]:
    """Compute the steps of a run up to `step` again, and compare each.

    Begins with the newest checkpoint before `step`, or with the source model, and goes over the saved rollouts of the
    steps between.

    Args:
        config: of the run.
        since: begin after this step instead; 0 is the source model.
        tolerance: by default that of the model's dtype.
        say: progress.

    Yields:
        (step, rows): the groups' verdicts, rewards and advantages, the metrics, and the weights where a checkpoint of
        that step is left.

    Raises:
        UsageError: the run did not leave what that takes; says what.
    """
    if config.fp8.format != "none":
        raise UsageError(
            f"fp8.format={config.fp8.format}: the step was trained in FP8, which transformers does not compute",
            where=str(run.config_file),
            hint="check a run of the same settings in bfloat16",
        )
    records = _records(run, step)
    begin = since if since is not None else max([one for one in run.saved_steps() if one < step], default=0)
    steps = {number: _groups(run, number) for number in range(begin + 1, step + 1)}
    from da3po_cli.launching.models import local_model

    source = local_model(config.model.path)
    say(f"from the weights {f'after step {begin}' if begin else f'of {source}'}")
    oracle = _oracle(run, config, begin, source, records)
    for number, groups in steps.items():
        say(f"step {number}")
        before = {name: weight.clone() for name, weight in oracle.main.items()}
        found = oracle.step(number, groups)
        allowed = tolerance or TOLERANCES[config.model.dtype]
        rows = [*_group_rows(groups, oracle.settings), *_metric_rows(records[number], found, allowed)]
        if number in run.saved_steps():
            after = _weights(run, number, source, "optimizer.state.param.")
            rows.append(_weights_row(before, oracle.main, after, allowed))
        yield number, rows


def _oracle(run: RunDir, config: Config, begin: int, source: Path, records: Mapping[int, dict[str, Any]]) -> Oracle:
    """The policy as it was after step `begin`, optimizer included."""
    import torch

    from da3po_cli.doctor.oracle import Oracle

    device = "cuda" if torch.cuda.is_available() else "cpu"
    reference = _model(source, config, {}).to(device) if config.algo.kl_coef else None
    model = _model(source, config, _weights(run, begin, source, "")).to(device)
    if begin == 0:
        return Oracle(asdict(config), model, reference=reference)
    main, first, second = (
        _weights(run, begin, source, f"optimizer.state.{part}.") for part in ("param", "exp_avg", "exp_avg_sq")
    )
    earlier = [record for number, record in records.items() if number <= begin]
    updates = sum(record.get("train/updates", 0) - record.get("train/skipped", 0) for record in earlier)
    return Oracle(asdict(config), model, reference=reference, main=main, moments=(first, second), updates=updates)


def _records(run: RunDir, step: int) -> dict[int, dict[str, Any]]:
    """The run's metrics by step.

    Raises:
        UsageError: there are none of `step`, or an update of it was left out.
    """
    records = (
        {record["step"]: record for record in read_metrics(run.metrics_file)} if run.metrics_file.is_file() else {}
    )
    trained = [one for one in records if one > 0]
    if step not in trained:
        done = f"steps {min(trained)} to {max(trained)}" if trained else "no step"
        raise UsageError(
            f"the run has no step {step}: it has done {done}", where=str(run.metrics_file), hint="another step"
        )
    if records[step].get("train/skipped"):
        raise UsageError(
            f"{records[step]['train/skipped']} update(s) of step {step} were skipped, because not finite",
            where=str(run.metrics_file),
            hint="their batches are in the run's health/; take another step",
        )
    return records


def _groups(run: RunDir, step: int) -> list[dict[str, Any]]:
    file = rollouts_file(run.rollouts, step)
    if not file.is_file():
        raise UsageError(
            f"the run has no saved rollouts of step {step}",
            where=str(file),
            hint="run.save_rollouts=true saves them; a run that replayed another one's has them there",
        )
    return [group for _, group in read_rollouts(file)]


def _weights(run: RunDir, step: int, source: Path, prefix: str) -> dict[str, Any]:
    """Weights after `step`, or what the optimizer keeps of them (`prefix`), by Hugging Face name; none for step 0."""
    if step == 0:
        return {}
    from megatron_bridge.arch import read_arch
    from megatron_bridge.offline import iter_checkpoint_weights

    _, path = checkpoint_path(run.checkpoints, step)
    return dict(iter_checkpoint_weights(path / "policy", read_arch(source), prefix=prefix))


def _model(source: Path, config: Config, weights: Mapping[str, Any]) -> Any:
    """The source model in the run's dtype, with `weights` in place of its own."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, config.model.dtype))
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            parameters[name].copy_(weight)
    return model


def _group_rows(groups: Sequence[Mapping[str, Any]], settings: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """How far what the run noted of its groups is from the rules; 0 throughout where nothing is wrong."""
    from da3po_cli.doctor import oracle

    algo = settings["algo"]
    filled = algo["on_exhausted"] == "unfiltered"  # then groups without a signal may be kept
    plain = not settings["reward"]["format_bonus"]  # rollouts do not say which answers had the form
    misjudged, rewards, advantages, factors = 0, 0.0, 0.0, 0.0
    for group in groups:
        why, noted = oracle.drop_reason(group, algo), group["drop_reason"]
        allowed = {why, "surplus"} if why is None else {why, None} if filled and why != "failed" else {why}
        misjudged += noted not in allowed
        for one in group["responses"]:
            if plain and one["verdict"] != "unknown" and one["finish_reason"] != "failed":
                rewards = max(rewards, abs(one["reward"] - oracle.reward(one, settings)))
        if noted is None:
            for one, (advantage, factor) in zip(group["responses"], oracle.advantages(group, algo), strict=True):
                advantages = max(advantages, abs(one["advantage"] - advantage))
                factors = max(factors, abs(one["daa_weight"] - factor))
    yield Row("groups misjudged", 0.0, misjudged, misjudged == 0)
    for name, worst in (("reward", rewards), ("advantage", advantages), ("daa_weight", factors)):
        yield Row(f"{name}, largest difference", 0.0, worst, worst <= 1e-9)


def _weights_row(
    before: Mapping[str, Tensor], mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor], tolerance: Tolerance
) -> Row:
    """Distance of the two results, as a share of the way that the weights went in the step."""
    way = math.sqrt(sum((mine[name] - old).square().sum().item() for name, old in before.items()))
    off = math.sqrt(sum((mine[name].cpu() - new).square().sum().item() for name, new in theirs.items()))
    return Row("weights, of their way", 0.0, off / way if way else off, off <= tolerance.moved * way)


def _metric_rows(recorded: Mapping[str, Any], found: Mapping[str, float], tolerance: Tolerance) -> Iterator[Row]:
    for name, value in found.items():
        noted = recorded.get(name)
        noted = math.nan if noted is None else float(noted)
        near = math.isclose(noted, value, rel_tol=tolerance.relative, abs_tol=tolerance.absolute)
        yield Row(name, noted, value, near)
    for name in sorted({"train/tis", "train/ref_kl"} & recorded.keys() - found.keys()):  # of a term that is not there
        yield Row(name, float(recorded[name]), math.nan, False)
