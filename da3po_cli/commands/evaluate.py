"""`da3po eval`: avg@k and pass@k of a model or of a run's checkpoint on held-out problems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from da3po_cli.errors import UsageError
from da3po_cli.output import Out

_EPILOG = """\b
Examples:
  da3po eval --bench arith                              the newest run, its newest checkpoint
  da3po eval --bench arith --model demo@40 --k 32
  da3po eval --bench problems.jsonl --model MODEL_DIR data.template=chat rollout.max_tokens=1024"""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("eval", epilog=_EPILOG)(evaluate)


def evaluate(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Config keys, such as validation.top_p=0.7.")
    ] = None,
    bench: Annotated[
        str, typer.Option("--bench", help="Held-out problems: arith, or a .jsonl or .parquet file.")
    ] = "arith",
    model: Annotated[
        str | None,
        typer.Option("--model", help="RUN, RUN@STEP, or a Hugging Face directory; the newest run by default."),
    ] = None,
    k: Annotated[int | None, typer.Option("--k", help="Samples per problem.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Only the first this many problems.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Sample held-out problems and print avg@k and pass@k."""
    from da3po_cli.config.checks import check
    from da3po_cli.config.load import load_config
    from da3po_cli.errors import ConfigErrors
    from da3po_cli.runs import latest_run

    out = Out.choose(json=json)
    if model is None:
        newest = latest_run()
        if newest is None:
            raise UsageError("no --model and no run to take", where="--model", hint="--model RUN or a model directory")
        model = str(newest.path)
        out.say(f"no --model: the newest run, {model}")
    files, checkpoint, path = _source(model, bench)
    flags: dict[str, Any] = {
        "model.path": path,
        "data.validation": bench,
        "validation.samples": k,
        "validation.prompts": limit,
        "parallel.tensor": 1,
        "parallel.pipeline": 1,
        "parallel.data": 1,
        "rollout.tensor": 1,
    }
    config = load_config(files, overrides or [], flags).config
    problems = check(config, devices=0, world=1)
    if problems:
        raise ConfigErrors(list(problems))

    from da3po_cli.runtime.evaluation import evaluate as run

    scores = run(config, checkpoint, out.say)
    out.event("eval", model=model, checkpoint=None if checkpoint is None else str(checkpoint), **scores)
    out.table([(name.removeprefix("val/"), f"{value:.4f}") for name, value in scores.items()])


def _source(model: str, bench: str) -> tuple[list[str], Path | None, str | None]:
    """(config files, checkpoint, model path) of `--model`: a Hugging Face directory, else RUN or RUN@STEP."""
    from da3po_cli.runs import find_run
    from da3po_cli.runtime.checkpoint import checkpoint_path

    name, _, step = model.partition("@")
    if model != "demo" and (Path(model) / "config.json").is_file():
        return (["demo"] if bench == "arith" else []), None, model
    if step and not step.isdigit():
        raise UsageError(f"{step!r} is no step", where="--model", hint="--model RUN@STEP, such as demo@40")
    run_dir = find_run(name)
    _, checkpoint = checkpoint_path(run_dir.path / "checkpoints", int(step) if step else None)
    return [str(run_dir.config_file)], checkpoint, None
