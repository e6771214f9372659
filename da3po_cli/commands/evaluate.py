"""`da3po eval`: avg@k and pass@k of models, runs and checkpoints on benchmarks, and `da3po eval compare` of results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from da3po_cli.commands.completion import complete_bench, complete_model, complete_template
from da3po_cli.commands.options import Json, Quiet, overrides_argument
from da3po_cli.errors import UsageError
from da3po_cli.output import Out

if TYPE_CHECKING:
    from da3po_cli.evals.result import Result

_EPILOG = """\b
Examples:
  da3po eval --bench arith                                    the newest run, its newest checkpoint
  da3po eval --bench all --bench-dir DIR --model Qwen/Qwen3-4B-Base --model RUN --out table.json
  da3po eval --bench aime24,math500 --model RUN@100 --limit 10 --max-tokens 4096
  da3po eval --bench problems.jsonl --model MODEL_DIR data.template=boxed
  da3po eval compare A.json B.json                            paired differences with intervals and p-values

\b
It samples on all local devices; an interrupted evaluation goes on when the same command is given again.
Environment: DA3PO_BENCH_DIR (default of --bench-dir), DA3PO_RUNS (evaluations are in its evals/)."""

_DEFAULT = "run"


class _Group(TyperGroup):
    """What does not begin with a subcommand is for the default one: `da3po eval --bench ...` is a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args.insert(0, _DEFAULT)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return "" if name == _DEFAULT else name, command, rest


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    group = typer.Typer(cls=_Group, help="Evaluate models, runs and checkpoints on benchmarks.")
    group.command(_DEFAULT, epilog=_EPILOG)(evaluate)
    group.command("compare")(compare)
    app.add_typer(group, name="eval")


def evaluate(
    overrides: Annotated[list[str] | None, overrides_argument("rollout.tensor=2")] = None,
    bench: Annotated[
        str,
        typer.Option(
            "--bench",
            metavar="NAMES",
            help="Benchmarks with commas between, all, or data files.",
            autocompletion=complete_bench,
        ),
    ] = "",
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Hugging Face directory or hub id, RUN or RUN@STEP; repeatable; the newest run by default.",
            autocompletion=complete_model,
        ),
    ] = None,
    k: Annotated[int | None, typer.Option("--k", metavar="K", help="Samples per problem.")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", metavar="T", help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", metavar="P", help="Nucleus sampling; 1 is off.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", metavar="N", help="Longest response.")] = None,
    template: Annotated[
        str | None,
        typer.Option(
            "--template",
            metavar="NAME|FILE",
            help="chat, dapo, boxed, none or a .jinja file.",
            autocompletion=complete_template,
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="Only the first N problems of each.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the samples.")] = 1,
    bench_dir: Annotated[
        Path | None,
        typer.Option("--bench-dir", metavar="DIR", help="Benchmark files; DA3PO_BENCH_DIR, else the hub, by default."),
    ] = None,
    bench_file: Annotated[
        list[Path] | None, typer.Option("--bench-file", metavar="FILE", help="YAML with more benchmarks; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the result as JSON.")] = None,
    save_samples: Annotated[
        bool, typer.Option("--save-samples", help="Keep every response and its grade, as samples.jsonl.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not use what an earlier evaluation left.")] = False,
    md: Annotated[bool, typer.Option("--md", help="Tables in Markdown.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="All numbers as CSV.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per model on stdout.")] = False,
    quiet: Quiet = False,
) -> None:
    """Sample benchmark problems, grade the answers, and print avg@k and pass@k like the paper's tables."""
    from da3po_cli.checks.rules import COLDEST
    from da3po_cli.evals.problems import load_problems
    from da3po_cli.evals.registry import choose, load_registry
    from da3po_cli.evals.result import warnings_of, write_results
    from da3po_cli.evals.targets import find_target, make_job, newest, run
    from da3po_cli.evals.tasks import Asked

    talk = Out.choose(json=json, quiet=quiet)
    _check_counts({"--k": k, "--max-tokens": max_tokens, "--limit": limit})
    if temperature is not None and 0 < temperature < COLDEST:
        raise UsageError(
            f"--temperature {temperature:g}: vLLM samples at {COLDEST} below that",
            where="--temperature",
            hint=f"0, which is greedy, or {COLDEST} or more",
        )
    benches = choose(bench, load_registry(bench_file or []))
    asked = Asked(k, temperature, top_p, max_tokens, template, limit, seed)
    for one in benches:
        load_problems(one, bench_dir)  # what is missing shows before the first engine starts
    results: list[Result] = []
    for name in model or [newest(talk)]:
        target = find_target(name, benches, overrides or [])
        job = make_job(target, benches, asked, overrides or [], bench_dir)
        result = run(talk, job, target.config, keep=save_samples, fresh=fresh)
        if result is not None:
            results.append(result)
    if not results:  # a rank above 0
        return
    for warning in warnings_of(results):
        talk.warn(warning)
    _show(talk, results, md=md, csv=csv)
    if out is not None:
        write_results(results, out)
        talk.say(f"wrote {out}")


def compare(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="A result of da3po eval --out.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="Another one; B minus A is shown.")],
    metric: Annotated[str, typer.Option("--metric", metavar="avg|pass", help="What is compared.")] = "avg",
    md: Annotated[bool, typer.Option("--md", help="A table in Markdown.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare the models of two results problem by problem.

    Shown are the difference with its 95 % interval, and the p-value of no difference, by flipping signs.
    """
    from dataclasses import asdict

    from da3po_cli.evals import compare as comparing
    from da3po_cli.evals.result import read_results
    from da3po_cli.evals.tables import markdown, text

    talk = Out.choose(json=json, quiet=quiet)
    if metric not in comparing.METRICS:
        raise UsageError(f"no metric {metric!r}", where="--metric", hint=" or ".join(comparing.METRICS))
    left, right = read_results(a), read_results(b)
    if len(left) > 1 or len(right) > 1:
        raise UsageError(
            f"{a} has {len(left)} models and {b} has {len(right)}; one each is compared",
            where="eval compare",
            hint="write a file for each: da3po eval --model MODEL --out FILE",
        )
    differences = comparing.compare(left[0], right[0], metric)
    table = comparing.difference_table(left[0], right[0], differences)
    talk.data(markdown(table) if md else text(table))
    talk.event(
        "compare",
        a=left[0]["model"]["name"],
        b=right[0]["model"]["name"],
        metric=metric,
        differences=[asdict(one) for one in differences],
    )


# ---------------------------------------------------------------------------------------------------------- show


def _show(talk: Out, results: list[Result], *, md: bool, csv: bool) -> None:
    from da3po_cli.evals.tables import csv_text, detail_table, markdown, score_tables, settings_lines, text

    for result in results:
        flat = {
            f"val/{name}/{metric}@{bench['k']}": value
            for name, bench in result["benches"].items()
            for metric, value in (
                ("avg", bench["scores"][f"avg@{bench['k']}"]["mean"]),
                ("pass", bench["scores"]["pass"][str(bench["k"])]["mean"]),
            )
        }
        details = {
            name: {key: value for key, value in bench.items() if key != "per_problem"}
            for name, bench in result["benches"].items()
        }
        talk.event("eval", **{key: result[key] for key in result if key != "benches"}, **flat, benches=details)
    if csv:
        talk.data(csv_text(results).rstrip("\n"))
        return
    render = markdown if md else text
    tables = [render(table) for table in [*score_tables(results), detail_table(results)]]
    talk.data("\n\n".join([*tables, "\n".join(settings_lines(results))]))


def _check_counts(counts: dict[str, int | None]) -> None:
    for flag, value in counts.items():
        if value is not None and value < 1:
            raise UsageError(f"{flag} {value} must be at least 1", where=flag, hint=f"{flag} 1 or more")
