"""`da3po ablate`: a matrix of arms and seeds, run as ordinary training runs, and the table that compares them."""

from __future__ import annotations

import shlex
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from da3po_cli.commands.completion import complete_algos, complete_setting
from da3po_cli.commands.options import Quiet, as_share, config_option, overrides_argument
from da3po_cli.config.presets import default_files, preset_names
from da3po_cli.errors import GateError, RankFailed, Terminated, UsageError
from da3po_cli.output import Out

if TYPE_CHECKING:
    from da3po_cli.ablations.directory import Ablation, AblationDir
    from da3po_cli.ablations.plan import Planned

_EPILOG = """\b
Examples:
  da3po ablate -c demo --param lambda=1.0,1.5,2.0,2.5 --seeds 3
  da3po ablate -c demo --algos grpo,dapo,gspo,da3po --seeds 3 --reference dapo
  da3po ablate -c demo --param algo.daa_schedule=constant,inverse_gamma,linear --param algo.daa_tau=0.25,0.5
  da3po ablate -c demo --param lambda=1.0,2.0 --gate 'lambda=2.0 > lambda=1.0'
  da3po ablate --resume                        go on with the newest one

\b
Exit codes: 0 all runs finished and the gate is met; 4 the gate is not met, or some runs failed or diverged (the table
is made of the others); where no run finished, the code of the first failure, such as 5 for diverged."""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("ablate", epilog=_EPILOG)(ablate)


def ablate(
    overrides: Annotated[list[str] | None, overrides_argument("rollout.prompts=64, for all arms")] = None,
    config: Annotated[
        list[str] | None,
        config_option(f"Preset ({', '.join(preset_names())}) or YAML file."),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="KEY=V1,V2",
            help="A key and its values; several make every combination.",
            autocompletion=complete_setting,
        ),
    ] = None,
    algos: Annotated[
        str | None,
        typer.Option("--algos", metavar="A,B", help="Algorithms, as arms.", autocompletion=complete_algos),
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", metavar="N", help="Seeds per arm, from run.seed on.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", help="Training steps of each run.")] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", metavar="ARM", help="Arm that the others are compared with: the first.")
    ] = None,
    gate: Annotated[
        str | None,
        typer.Option("--gate", metavar="EXPR", help="Exit with 4 unless it holds: 'A > B + 0.01 and A > 0.5'."),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option("--target", metavar="X", help="Score at which costs are compared: the reference arm's last."),
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", help="Runs at a time; they share the devices, or the cores.")
    ] = 1,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="A directory in DA3PO_RUNS.")] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="", help="Go on: finished runs stay, interrupted ones continue.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete an earlier ablation of this name.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, print the matrix.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per event on stdout.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train every arm with every seed, and compare them: means, intervals, paired differences, cost.

    All arms of a seed start from the same weights and take the same prompts in the same order.
    """
    from da3po_cli.ablations.gate import parse_gate
    from da3po_cli.ablations.plan import make_slots, plan_runs, ranks_of
    from da3po_cli.config.devices import cuda_devices
    from da3po_cli.launching.launch import outer_launcher

    out = Out.choose(json=json, quiet=quiet)
    if outer_launcher() is not None:
        raise UsageError(
            "da3po ablate starts its runs itself", where="da3po ablate", hint="start it once, without torchrun or srun"
        )
    if resume not in (None, "latest"):
        raise UsageError(f"--resume {resume}: an ablation goes on where it stopped", where="--resume", hint="--resume")
    found = cuda_devices()
    devices = found.cuda
    slots = make_slots(parallel, cuda=devices)
    asked = {"--config": config, "--param": param, "--algos": algos, "--seeds": seeds, "--steps": steps}
    if resume is not None:
        given = [flag for flag, value in asked.items() if value] + list(overrides or [])
        directory, ablation = _resumed(name, given, overwrite=overwrite)
    else:
        files = config or []
        if not files:
            files, which = default_files(devices, found.why)
            out.say(f"no --config: using {which}")
        own = [*(overrides or []), *([f"run.steps={steps}"] if steps is not None else [])]
        ablation = _new(files, own, algos, param or [], 1 if seeds is None else seeds, name, ranks_of(slots[0]))
        directory = _free_directory(ablation.name, overwrite=overwrite)
    labels = [arm.label for arm in ablation.arms]
    ablation.reference = _label(reference, labels) if reference is not None else ablation.reference
    ablation.gate = gate if gate is not None else ablation.gate
    ablation.target = as_share(target) if target is not None else ablation.target
    if ablation.gate is not None:
        parse_gate(ablation.gate, labels)
    planned = plan_runs(ablation, cuda=devices)
    _register_runs(ablation, planned)
    if dry_run:
        _show_plan(out, directory, ablation, planned, parallel)
        return
    _check_installed(planned[0])
    _run(out, directory, ablation, planned, slots, overwrite=overwrite)
    _finish(out, directory, ablation)


# ------------------------------------------------------------------------------------------------------- what to run


def _new(
    files: list[str],
    overrides: list[str],
    algos: str | None,
    params: list[str],
    seeds: int,
    name: str | None,
    ranks: int,
) -> Ablation:
    from da3po_cli.ablations.directory import Ablation
    from da3po_cli.ablations.matrix import make_arms
    from da3po_cli.ablations.plan import first_config
    from da3po_cli.runs.directory import command_line, git_commit, versions

    arms = make_arms(algos, params)
    if seeds < 1:
        raise UsageError(f"--seeds {seeds} must be at least 1", where="--seeds", hint="--seeds 3")
    if any(token.startswith("run.name=") for token in overrides):
        raise UsageError("run.name is that of a run", where="run.name", hint="--name NAME of the ablation")
    first = first_config(files, overrides, arms[0]).run.seed
    what = "-".join([*(["algos"] if algos else []), *(param.partition("=")[0].rpartition(".")[2] for param in params)])
    preset = "+".join(Path(file).stem for file in files)
    return Ablation(
        name=name or f"{what}-{preset}-{time.strftime('%Y%m%d-%H%M%S')}",
        files=[
            str(Path(file).absolute()) if Path(file).is_file() and file not in preset_names() else file
            for file in files
        ],
        overrides=overrides,
        ranks=ranks,
        arms=arms,
        seeds=list(range(first, first + seeds)),
        reference=arms[0].label,
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        argv=command_line(),
        versions=versions(),
        git=git_commit(),
    )


def _free_directory(name: str, *, overwrite: bool) -> AblationDir:
    from da3po_cli.ablations.directory import AblationDir
    from da3po_cli.runs.directory import runs_root

    if Path(name).name != name or name in ("latest", ".", ".."):
        raise UsageError(f"{name!r} cannot name an ablation", where="--name", hint="letters, digits and . _ + - only")
    directory = AblationDir(runs_root() / name)
    if directory.used and not overwrite:
        raise UsageError(
            f"the directory {directory.path} is in use",
            where="--name",
            hint=f"--resume --name {name} to go on with it, --overwrite to start it anew, or another --name",
        )
    if directory.used and not directory.file.is_file():
        raise UsageError(
            f"{directory.path} is no ablation and will not be overwritten", where="--overwrite", hint="another --name"
        )
    return directory


def _resumed(name: str | None, given: list[str], *, overwrite: bool) -> tuple[AblationDir, Ablation]:
    from da3po_cli.ablations.directory import find_ablation, newest_ablation
    from da3po_cli.runs.directory import runs_root

    if overwrite:
        raise UsageError("--resume and --overwrite exclude each other", where="command line", hint="give one")
    if given:
        raise UsageError(
            f"--resume goes on with the matrix of the ablation, and {given[0]} would change it",
            where="--resume",
            hint="leave out all but --resume, --name, --parallel, --gate, --target and --reference",
        )
    directory = find_ablation(name) if name is not None else newest_ablation()
    if directory is None:
        what = f"no ablation called {name!r}" if name is not None else f"no ablation to resume in {runs_root()}"
        raise UsageError(what, where="--resume", hint="--name of an ablation; DA3PO_RUNS names the directory of runs")
    return directory, directory.read()


def _label(text: str, labels: list[str]) -> str:
    if text not in labels:
        raise UsageError(f"no arm called {text!r}", where="--reference", hint=f"one of {', '.join(labels)}")
    return text


def _register_runs(ablation: Ablation, planned: list[Planned]) -> None:
    """Add runs that are new, and see that the others are still what they were.

    Raises:
        UsageError: a config file, preset, environment variable or default has changed since.
    """
    from da3po_cli.ablations.directory import RunState

    for one in planned:
        state = ablation.state(one.name)
        if state is None:
            ablation.runs.append(RunState(one.name, one.arm.label, one.seed, one.hash))
        elif state.config_hash != one.hash and state.status != "finished":
            raise UsageError(
                f"the config of {one.name} is not what it was when the ablation began",
                where=", ".join(ablation.files),
                hint="undo the change of the config file or of the DA3PO_* variables, or start anew with --overwrite",
            )


def _check_installed(planned: Planned) -> None:
    """What `da3po train` would find missing, before the first run."""
    from importlib.util import find_spec

    from da3po_cli.errors import EnvironmentProblem

    missing = [name for name in ("torch", "megatron", "transformers", "vllm") if find_spec(name) is None]
    if missing:
        raise EnvironmentProblem(
            f"not installed: {', '.join(missing)}",
            where=planned.name,
            hint="the README has the tested versions for CPU and GPU",
        )


def _show_plan(out: Out, directory: AblationDir, ablation: Ablation, planned: list[Planned], parallel: int) -> None:
    from da3po_cli.ablations.plan import seconds_per_step
    from da3po_cli.ablations.runner import DONE
    from da3po_cli.runs.directory import runs_root

    config = planned[0].config
    states = {run.name: run.status for run in ablation.runs}
    todo = [one for one in planned if states[one.name] not in DONE]
    steps = sum(one.config.run.steps - max(directory.run(one.name).saved_steps(), default=0) for one in todo)
    lengths = sorted({one.config.run.steps for one in planned})
    responses = config.rollout.prompts * config.rollout.group_size
    each = seconds_per_step(config, runs_root())
    at_a_time = max(1, min(parallel, len(todo)))
    took = (
        f"about {_hours(steps * each / at_a_time)}, at {each:.1f} s per step as in earlier runs here"
        if each
        else "not known: no earlier run of this size in the directory of runs"
    )
    done = f" ({len(planned) - len(todo)} done)" if len(todo) < len(planned) else ""
    out.table(
        [
            ("ablation", directory.path),
            ("arms", len(ablation.arms)),
            *((f"  {arm.label}", " ".join(arm.overrides)) for arm in ablation.arms),
            ("reference", ablation.reference),
            ("seeds", ", ".join(map(str, ablation.seeds))),
            (
                "runs",
                f"{len(planned)}{done}, {at_a_time} at a time, each on {config.parallel.data} data-parallel rank(s)",
            ),
            (
                "steps",
                f"{' or '.join(map(str, lengths))} per run, {steps} {'left' if done else 'in all'}; "
                f"{responses} responses trained on per step",
            ),
            ("time", took),
        ]
    )
    for one in planned:
        out.event("planned", run=one.name, arm=one.arm.label, seed=one.seed, config_hash=one.hash)
    out.event("plan", ablation=str(directory.path), runs=len(planned), steps=steps, seconds_per_step=each)
    out.say(f"\nnothing was written; a run is: da3po train {shlex.join(planned[0].arguments)}")


def _hours(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{max(1, minutes)} min"


# ------------------------------------------------------------------------------------------------------ run and report


def _run(
    out: Out, directory: AblationDir, ablation: Ablation, planned: list[Planned], slots: list, *, overwrite: bool
) -> None:
    from da3po_cli.ablations.overview import make_overview
    from da3po_cli.ablations.runner import Runner
    from da3po_cli.reports.build import report_after

    if overwrite and directory.used:
        with directory.claim():  # nobody works on what is deleted
            shutil.rmtree(directory.path)
    with directory.claim():
        directory.write(ablation)
        out.say(f"{len(planned)} runs in {directory.path}, {len(slots)} at a time")
        out.event("launch", ablation=str(directory.path), arms=[arm.label for arm in ablation.arms], runs=len(planned))
        overview = make_overview(out.mode, directory.path, {one.name: one.config.run.steps for one in planned})
        try:
            Runner(directory, ablation, slots, overview).run(planned)
        except (KeyboardInterrupt, Terminated):
            overview.close()
            out.say(f"\ninterrupted; go on with: da3po ablate --resume --name {directory.path.name}")
            raise
        finally:
            overview.close()
    report_after(out, directory)


def _finish(out: Out, directory: AblationDir, ablation: Ablation) -> None:
    """The tables on stdout; then the error that the exit code stands for, if any."""
    from da3po_cli.ablations.gate import parse_gate
    from da3po_cli.reports import arms as stats
    from da3po_cli.reports.ablation_tables import cost_table, result_tables

    data = stats.read_ablation(directory)
    target = ablation.target if ablation.target is not None else stats.default_target(data)
    tables = [*result_tables(data), cost_table(data, target)] if data.runs else []
    if tables:
        out.data("\n\n".join(table.text() for table in tables))
    means = stats.mean_scores(data)
    failed = [run for run in ablation.runs if run.status != "finished"]
    stopped = [run for run in failed if run.status in ("pending", "interrupted")]
    out.event(
        "done",
        ablation=str(directory.path),
        means=means,
        finished=len(data.runs),
        failed=[
            {"run": run.name, "status": run.status, "exit_code": run.exit_code, "error": run.error} for run in failed
        ],
        tables=[{"title": table.title, "heading": table.heading, "rows": list(table.rows)} for table in tables],
    )
    if stats.same_start(data) is False:
        out.warn("the runs did not score the same before training: they did not start from the same weights")
    for run in failed:
        if run.status != "pending":
            out.warn(f"{run.name} {run.status}: {run.error or f'exit code {run.exit_code}'}; {directory.log(run.name)}")
    if failed and not data.runs and not stopped:
        code = failed[0].exit_code or 1
        raise RankFailed(f"no run finished; {failed[0].name} {failed[0].status}: {failed[0].error}", exit_code=code)
    problems = [f"{len(failed)} of {len(ablation.runs)} runs did not finish"] if failed else []
    if ablation.gate is not None:
        problems += parse_gate(ablation.gate, [arm.label for arm in ablation.arms]).failures(means)
    if problems:
        raise GateError(
            "; ".join(problems),
            where=str(directory.path),
            hint=f"da3po ablate --resume --name {directory.path.name} goes on"
            if stopped
            else "the tables are of the runs that finished; --resume runs failed ones again, but not diverged ones",
        )
    out.say(f"next: da3po report {directory.path} --md")
