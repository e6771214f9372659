"""`da3po plan`: what a config takes, before anything is started; from config.json alone."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from da3po_cli.commands.completion import complete_run
from da3po_cli.commands.options import Json, Quiet, config_option, overrides_argument
from da3po_cli.config.presets import default_files, preset_names
from da3po_cli.errors import ConfigErrors, UsageError
from da3po_cli.output import Out

if TYPE_CHECKING:
    from da3po_cli.config.models import ModelFacts
    from da3po_cli.config.schema import Config
    from da3po_cli.planning.batch import Measured
    from da3po_cli.planning.estimate import Estimate, Machine
    from da3po_cli.planning.layouts import Candidate
    from da3po_cli.planning.shape import Shape

_EPILOG = """\b
Examples:
  da3po plan -c demo                                  memory of the CPU demo
  da3po plan -c qwen3-8b --gpus 8                     layouts of 8 GPUs that fit, ranked
  da3po plan -c qwen3-4b --gpus 16 --gpu-memory 40 train.recompute=true --json"""
_LAYOUT_KEYS = ("parallel.", "rollout.tensor=", "rollout.gpu_memory=")  # what a suggested layout sets
_PLANNED = ("rollout", "train", "parallel", "algo", "fp8", "model")  # sections that a plan depends on


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("plan", epilog=_EPILOG)(plan)


def plan(
    overrides: Annotated[list[str] | None, overrides_argument("train.recompute=true")] = None,
    config: Annotated[
        list[str] | None,
        config_option(f"Preset ({', '.join(preset_names())}) or YAML file; repeatable, later ones win."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="PATH", help="Hugging Face directory, hub id, or demo.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", min=1, help="Plan for N GPUs and rank the layouts of them.")
    ] = None,
    gpu_memory: Annotated[
        float | None,
        typer.Option(
            "--gpu-memory", metavar="GIB", min=1, help="Memory of a GPU; by default what is here, with --gpus 80."
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Take lengths and the kept share from this run, in place of assumptions.",
            autocompletion=complete_run,
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print what a run takes: batch arithmetic, memory by part, bytes moved, disk, and layouts that fit."""
    from da3po_cli.config.devices import cuda_devices
    from da3po_cli.config.load import resolve
    from da3po_cli.planning.machine import machine

    out = Out.choose(json=json, quiet=quiet)
    devices = cuda_devices()
    place = machine(devices.cuda, gpus, gpu_memory)
    files = config or []
    if not files:
        files, which = default_files(place.gpus, devices.why if gpus is None else f"--gpus {gpus}")
        out.say(f"no --config: using {which}")
    loaded = resolve(files, overrides or [], {"model.path": model}, os.environ)
    if loaded.problems:
        raise ConfigErrors(list(loaded.problems))
    typed = [*(f"-c {shlex.quote(name)}" for name in files), *([f"--model {shlex.quote(model)}"] if model else [])]
    typed += [shlex.quote(token) for token in overrides or [] if not token.startswith(_LAYOUT_KEYS)]
    _print(out, _make(loaded.config, place, _measured(run), search=gpus is not None), " ".join(typed))


@dataclass(frozen=True)
class _Plan:
    """What is printed. `own` is None where the config's own layout is refused."""

    config: Config
    facts: ModelFacts
    shape: Shape
    source: str
    refused: list[UsageError]
    own: Estimate | None
    candidates: list[Candidate]

    @property
    def best(self) -> Candidate | None:
        """The first layout that fits."""
        return next((one for one in self.candidates if one.fits), None)

    @property
    def chosen(self) -> Estimate:
        """The config's own layout, if nothing better is known."""
        if self.own is not None and (self.own.fits or self.best is None):
            return self.own
        return (self.best or self.candidates[0]).found


def _make(config: Config, machine: Machine, measured: Measured | None, *, search: bool) -> _Plan:
    """The plan of the config's own layout, and with `search` of all others of the machine.

    Raises:
        ConfigErrors: nothing can be planned, with all that is wrong.
        UsageError: nothing is known of the model.
    """
    from da3po_cli.planning.estimate import estimate
    from da3po_cli.planning.known import planned_facts
    from da3po_cli.planning.layouts import rank_layouts
    from da3po_cli.planning.shape import shape_of

    path = config.model.path
    facts, source = planned_facts(path)
    if facts is None:
        raise UsageError(
            f"the config.json of {path} is not on this machine",
            where="model.path",
            hint=f"--model DIR, or download it into the Hugging Face cache: hf download {path} config.json",
        )
    shape = shape_of(facts)
    refused = _refusals(config, machine, facts, search=search)
    candidates = rank_layouts(config, shape, facts, machine, measured) if search else []
    own = None if refused else estimate(config, shape, machine, measured)
    if own is None and not candidates:
        raise ConfigErrors(refused)
    return _Plan(config, facts, shape, source, refused, own, candidates)


def _print(out: Out, made: _Plan, typed: str) -> None:
    from dataclasses import asdict

    from da3po_cli.planning import show

    config, shape, own, chosen = made.config, made.shape, made.own, made.chosen
    command = f"da3po train {typed} {' '.join(made.best.overrides)}" if made.best else None
    out.event(
        "plan",
        model={"path": config.model.path, "parameters": shape.parameters, "source": made.source, **asdict(shape)},
        refused=[problem.message for problem in made.refused],
        own=None if own is None else show.values(own),
        chosen=show.values(chosen),
        layouts=[show.candidate_values(candidate) for candidate in made.candidates],
        command=command,
    )
    model = f"{config.model.path} ({show.model_text(made.facts, shape, made.source)}), {config.model.dtype}"
    out.table([("model", model), *_layout_rows(chosen, own), *show.rows(chosen)])
    out.data("\n" + "\n".join(show.memory_lines(chosen)))
    out.data(show.verdict(chosen))
    if own is not None and chosen is not own:
        out.data(f"the config's own layout {_layout(own)}: {show.verdict(own)}")
    for problem in made.refused:
        out.data(f"the config's own layout is refused: {problem.message}")
    if made.candidates:
        out.data("\n" + "\n".join(show.layout_lines(made.candidates)))
        out.data(_advice(made.candidates, command))


def _advice(candidates: list[Candidate], command: str | None) -> str:
    from da3po_cli.planning import show

    if command is not None:
        return f"\nbest layout: {command}"
    return f"\nno layout fits; the nearest one {show.verdict(candidates[0].found)}"


def _layout(found: Estimate) -> str:
    where = found.where
    return f"tensor {where.tensor} x pipeline {where.pipeline} x data {where.data}"


def _layout_rows(found: Estimate, own: Estimate | None) -> list[tuple[str, str]]:
    from da3po_cli.config.plan import overlong_text
    from da3po_cli.planning.estimate import GIB

    where, config, batch, gpus = found.where, found.config, found.batch, found.machine.gpus
    place = f"{gpus} GPU(s) of {found.machine.memory / GIB:g} GiB" if gpus else "a CPU"
    whose = "" if found is own else " (best)"
    layers = "TransformerEngine's layers" if found.fused else "Megatron's own layers"
    return [
        (
            "layout",
            f"{where.world} rank(s) = {_layout(found)}{whose} on {place}; {where.engines} rollout engine(s) of "
            f"{where.rollout_tensor}; {layers}",
        ),
        ("step", f"{batch.prompts} prompts x {config.rollout.group_size} = {batch.responses} responses"),
        (
            "updates",
            f"{batch.updates} per step, each {config.train.mini_batch_prompts} x {config.rollout.group_size} = "
            f"{batch.mini_responses} responses, {round(batch.mini_responses / where.data, 1):g} per data-parallel rank",
        ),
        ("overlong", overlong_text(config)),
    ]


def _refusals(config: Config, machine: Machine, facts: ModelFacts, *, search: bool) -> list[UsageError]:
    """What is wrong with the config's own layout, to be told; only with `search`, since without it there is no other.

    Raises:
        ConfigErrors: everything else that is wrong in the sections that a plan depends on.
    """
    from da3po_cli.checks.layout import layout_rules, model_rules, parallel_rules
    from da3po_cli.checks.rules import check
    from da3po_cli.config.plan import layout

    found = [one for one in check(config, devices=machine.gpus) if (one.where or "").partition(".")[0] in _PLANNED]
    parallel, data = config.parallel, 1 if config.parallel.data is None else config.parallel.data
    if min(parallel.tensor, parallel.pipeline, parallel.virtual_pipeline, data, config.rollout.tensor) < 1:
        raise ConfigErrors(found)  # no layout follows from these
    where = layout(config, devices=machine.gpus)
    own = [
        *parallel_rules(parallel, config.rollout, config.algo),
        *layout_rules(where, machine.gpus, None),
        *model_rules(facts, where, config),  # which `check` knows only of a model that is on this machine
    ]
    messages = {problem.message for problem in own}
    serious = [problem for problem in found if problem.message not in messages]
    if serious or (own and not search):
        raise ConfigErrors([*serious, *own])
    return own


def _measured(run: str | None) -> Measured | None:
    """The mean kept share and sequence length of a run.

    Raises:
        UsageError: there is no such run, or it has no step yet.
    """
    if run is None:
        return None
    from da3po_cli.planning.measured import measured_in
    from da3po_cli.runs.directory import find_run

    return measured_in(find_run(run))
