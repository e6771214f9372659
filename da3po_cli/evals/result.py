"""The result of an evaluation as JSON: the numbers, the counts per problem they come from, and how to repeat it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from da3po_cli.errors import UsageError
from da3po_cli.evals.metrics import Sample, Scores, Tally, average, by_problem, score, tally
from da3po_cli.evals.tasks import Job, Task

FORMAT = "da3po-eval/1"
Result = dict[str, Any]


def make_result(job: Job, records: Iterable[Mapping[str, Any]], facts: Mapping[str, Any]) -> Result:
    """The result of one model.

    Args:
        records: all samples.
        facts: about the evaluation itself: when, how long, with which command and engines.
    """
    found = by_problem(records)
    benches: dict[str, Any] = {}
    for task in job.tasks:
        tallies = [
            tally(problem.id, problem.index, [_sample(one) for one in found[task.name, problem.index]])
            for problem in task.problems
        ]
        benches[task.name] = _bench_record(task, tallies)
    result: Result = {
        "model": asdict(job.model),
        "fingerprint": job.fingerprint,
        **facts,
        "engine": job.engine,
        "benches": benches,
    }
    scores = [scores_of(bench) for bench in benches.values()]
    result["average"] = {name: asdict(average(scores, name)) for name in ("avg", "pass", "maj")}
    return _finite(result)


def _sample(record: Mapping[str, Any]) -> Sample:
    return Sample(record["verdict"], record["extracted"], record["finish_reason"], record["tokens"])


def _bench_record(task: Task, tallies: Sequence[Tally]) -> dict[str, Any]:
    scores = score(tallies)
    warnings = list(task.warnings)
    if scores.failed:
        warnings.append(f"{scores.failed:.2%} of the responses failed in the engine and count as not correct")
    if scores.unknown:
        warnings.append(f"{scores.unknown:.2%} of the answers could not be judged and count as not correct")
    fields = asdict(replace(task, problems=()))
    del fields["problems"]
    return {
        **fields,
        "warnings": warnings,
        "problems": len(tallies),
        "k": scores.k,
        "scores": scores.record(),
        "per_problem": [asdict(one) for one in tallies],
    }


def scores_of(bench: Mapping[str, Any]) -> Scores:
    """The scores of one benchmark of a result, from its counts per problem."""
    return score(tallies_of(bench))


def tallies_of(bench: Mapping[str, Any]) -> list[Tally]:
    return [Tally(**one) for one in bench["per_problem"]]


def warnings_of(results: Iterable[Result]) -> list[str]:
    """All warnings, each once, with the benchmark it is about."""
    return list(
        dict.fromkeys(
            f"{bench['title']}: {warning}"
            for result in results
            for bench in result["benches"].values()
            for warning in bench["warnings"]
        )
    )


def write_results(results: Sequence[Result], file: Path) -> None:
    """Write a result file; a reader never sees half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.tmp")
    content = {"format": FORMAT, "results": list(results)}
    fresh.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    fresh.replace(file)


def read_results(file: Path) -> list[Result]:
    """The results in a file, one per model.

    Raises:
        UsageError: not a file that `da3po eval` wrote.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, not {FORMAT!r}")
        return content["results"]
    except FileNotFoundError as error:
        raise UsageError(
            f"no such file: {file}", where="eval compare", hint="da3po eval --out FILE writes one"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{file} is no result of da3po eval: {error}", where="eval compare", hint="da3po eval --out FILE writes one"
        ) from error


def _finite(value: Any) -> Any:
    """The same with null for what JSON has no number for: the standard error of a single problem."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
