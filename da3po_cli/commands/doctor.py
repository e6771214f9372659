"""`da3po doctor`: is everything here that a run needs? And, of a run: was trained what its config says?"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from da3po_cli.commands.options import config_option, overrides_argument
from da3po_cli.config.presets import default_files, preset_names
from da3po_cli.errors import ConfigErrors, EnvironmentProblem, GateError, UsageError
from da3po_cli.output import Out, wants_colour

if TYPE_CHECKING:
    from da3po_cli.doctor.findings import Context, Finding

_EPILOG = """\b
Examples:
  da3po doctor                            for the config that `da3po train` takes here
  da3po doctor -c qwen3-4b fp8.format=hybrid fp8.recipe=blockwise
  da3po doctor --json
  da3po doctor demo --recompute 2         compute step 2 of the run `demo` again, with transformers, and compare

\b
Exit codes: 0 a run can start (there may be warnings), 3 something that this config needs is missing or broken;
of --recompute: 0 the step is what the config says, 4 it is not."""

NAME_WIDTH = 20
_COLOURS = {"ok": "32", "warn": "33", "fail": "1;31"}


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("doctor", epilog=_EPILOG)(doctor)


def doctor(
    overrides: Annotated[
        list[str] | None, overrides_argument("fp8.format=hybrid", also=("RUN", "the run of --recompute"))
    ] = None,
    recompute: Annotated[
        int | None,
        typer.Option(
            "--recompute",
            metavar="STEP",
            help="Compute this step of RUN again from its saved rollouts and weights, by torch and transformers alone.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        config_option(f"Preset ({', '.join(preset_names())}) or YAML file; what train takes by default."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only what is not ok.")] = False,
) -> None:
    """Check the machine, the packages, the GPUs and the hub for what a run of this config needs.

    Or, with --recompute, check a step of a run.
    """
    out = Out.choose(json=json, quiet=quiet)
    if recompute is not None:
        check_step(out, overrides or [], config or [], recompute)
        return
    from da3po_cli.doctor.table import run

    context = make_context(out, config or [], overrides or [])
    colour = wants_colour(sys.stdout)
    found: list[tuple[str, Finding]] = []
    for group, finding in run(context):
        found.append((group, finding))
        if finding.status != "ok" or not quiet:
            out.data("\n".join(lines(finding, colour=colour)))
    counts = Counter(finding.status for _, finding in found)
    lacking = [finding.name for _, finding in found if finding.status == "fail" and finding.needed]
    summary = {status: counts[status] for status in ("ok", "warn", "fail")}
    out.event(
        "doctor",
        ready=not lacking,
        config=context.chosen,
        summary=summary,
        checks=[record(group, finding) for group, finding in found],
    )
    if lacking:
        raise EnvironmentProblem(
            f"a run of this config cannot start here: {', '.join(dict.fromkeys(lacking))}",
            where=context.chosen,
            hint="the lines marked fail say how to mend each",
        )
    out.say(f"\na run of this config can start: {', '.join(f'{count} {status}' for status, count in summary.items())}")


def check_step(out: Out, arguments: list[str], files: list[str], step: int) -> None:
    """`--recompute`: the run's numbers beside the oracle's.

    Raises:
        UsageError: not one run is named, or it did not leave what this takes.
        GateError: they differ.
    """
    from da3po_cli.config.load import load_config
    from da3po_cli.runs.directory import find_run

    if len(arguments) != 1 or "=" in arguments[0] or files:
        given = " ".join([*(f"--config {file}" for file in files), *arguments]) or "nothing"
        raise UsageError(
            f"--recompute takes one run, with the config that it has, and not {given}",
            where="--recompute",
            hint=f"da3po doctor RUN --recompute {step}",
        )
    run = find_run(arguments[0])
    config = load_config([str(run.config_file)], env={}).config
    from da3po_cli.doctor.recompute import recompute

    *_, (_, rows) = recompute(run, config, step, say=out.say)
    wrong = [row for row in rows if not row.ok]
    width = max(len(row.name) for row in rows)
    if wrong or out.mode != "quiet":
        out.data(f"      {'':<{width}}  {'run':>13}  {'recomputed':>13}")
    for row in rows if out.mode != "quiet" else wrong:
        out.data(
            f"{'ok' if row.ok else 'FAIL':<4}  {row.name:<{width}}  {row.recorded:>13.6g}  {row.recomputed:>13.6g}"
        )
    out.event("recompute", run=str(run.path), step=step, equal=not wrong, rows=[asdict(row) for row in rows])
    if wrong:
        raise GateError(
            f"step {step} is not what its config says: {', '.join(row.name for row in wrong)}",
            where=str(run.path),
            hint="the lines marked FAIL; a config.yaml, rollouts or checkpoint that were changed later look the same",
        )
    out.say(f"step {step} is what its config says: {len(rows)} numbers agree")


def make_context(out: Out, files: list[str], overrides: list[str]) -> Context:
    """What the checks are about: the config that `train` would take, and this machine.

    Raises:
        ConfigErrors: the config cannot be read. What does not fit the machine is a finding.
    """
    from da3po_cli.checks.rules import check
    from da3po_cli.config.devices import compute_capability, cuda_devices
    from da3po_cli.config.load import resolve
    from da3po_cli.doctor.findings import Context
    from da3po_cli.doctor.probe import PROBES
    from da3po_cli.doctor.probing import Probes

    devices = cuda_devices()
    if files:
        chosen = f"--config {' --config '.join(files)}"
    else:
        files, chosen = default_files(devices.cuda, devices.why)
    loaded = resolve(files, overrides)
    if loaded.problems:
        raise ConfigErrors(list(loaded.problems))
    fp8 = loaded.config.fp8.format != "none" or loaded.config.rollout.quantization is not None
    capability = compute_capability() if fp8 and devices.cuda else None
    problems = check(loaded.config, devices=devices.cuda, capability=capability)
    return Context(loaded.config, devices, os.environ, Probes(list(PROBES), out.say), tuple(problems), chosen)


def lines(finding: Finding, *, colour: bool = False) -> list[str]:
    """A finding as text: one line, and one more for its fix."""
    status = f"{finding.status:<4}"
    if colour:
        status = f"\033[{_COLOURS[finding.status]}m{status}\033[0m"
    spare = " (this config does not need it)" if finding.status == "fail" and not finding.needed else ""
    first = f"{status}  {finding.name:<{NAME_WIDTH}}{finding.found}{spare}"
    return [first, f"      {'':<{NAME_WIDTH}}fix: {finding.fix}"] if finding.fix else [first]


def record(group: str, finding: Finding) -> dict[str, Any]:
    """A finding for --json: name, group, status, found, fix, needed, details."""
    return {"group": group, **asdict(finding)}
