"""`da3po grade`: verdicts for a file of responses and gold answers, and how other graders judge the same lines."""

from __future__ import annotations

import json as json_module
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from da3po_cli.commands.completion import complete_reward
from da3po_cli.commands.options import Quiet
from da3po_cli.errors import UsageError
from da3po_cli.output import Out

if TYPE_CHECKING:
    from da3po_cli.rewards import Grade, Item

_EPILOG = """\b
Examples:
  da3po grade answers.jsonl --out graded.jsonl          lines of {"gold": ..., "response": ...}
  da3po grade answers.jsonl --bare --compare            short answers; beside math-verify and DAPO's string rule
  da3po grade minerva.jsonl --rel-tol 0.01              numbers within one percent, as Minerva is graded"""
_OTHERS = {"math_verify": "da3po_cli.rewards.reference:grade_math_verify", "dapo": "dapo"}
_SHOWN = 160  # characters of an answer in the list of disagreements


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("grade", epilog=_EPILOG)(grade)


def grade(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.jsonl", help="Lines of {gold, response}, or rollouts/step_N.jsonl.")
    ],
    out_file: Annotated[
        Path | None, typer.Option("--out", metavar="OUT.jsonl", help="Graded lines go here; to stdout by default.")
    ] = None,
    reward: Annotated[
        str,
        typer.Option("--reward", help="math, dapo, arith, or package.module:function.", autocompletion=complete_reward),
    ] = "math",
    bare: Annotated[
        bool, typer.Option("--bare", help="A response without box and answer line is an answer, as if it were boxed.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also grade with math-verify and DAPO's string rule.")
    ] = False,
    rel_tol: Annotated[
        float, typer.Option("--rel-tol", help="Numbers this close to gold are correct; 0 is exact.")
    ] = 0.0,
    deadline: Annotated[float, typer.Option("--deadline", help="CPU seconds per answer.")] = 3.0,
    workers: Annotated[int | None, typer.Option("--workers", help="Grading processes; one per core.")] = None,
    json: Annotated[bool, typer.Option("--json", help="NDJSON events on stdout.")] = False,
    quiet: Quiet = False,
) -> None:
    """Grade answers against gold answers and count correct, wrong and unknown."""
    from da3po_cli.rewards import MathOptions
    from da3po_cli.rewards.reading.extract import is_bare
    from da3po_cli.rewards.registry import stated

    out = Out.choose(json=json, quiet=quiet)
    lines = _read(file)
    items = [_item(line) for line in lines]
    options = MathOptions(fallback="bare" if bare else "none", rel_tol=rel_tol) if reward == "math" else None
    grades = _graded(reward, items, options, workers, deadline)
    others: dict[str, list[Grade]] = {}
    for name, other in _OTHERS.items() if compare else ():
        form = "math" if name == "math_verify" else name
        stated_items = [
            (
                stated(form, response) if bare and is_bare(response) and not _marked(response, name) else response,
                finish,
                gold,
            )
            for response, finish, gold in items
        ]
        others[name] = _graded(other, stated_items, None, workers, deadline)
    graded = [
        line
        | {"verdict": own.verdict, "rule": own.rule, "extracted": own.extracted, "seconds": round(own.seconds, 6)}
        | {name: found[number].verdict for name, found in others.items()}
        for number, (line, own) in enumerate(zip(lines, grades, strict=True))
    ]
    _write(out, out_file, graded)
    _report(out, out_file, graded, ["verdict", *others])


def _read(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        raise UsageError(f"file not found: {str(file)!r}", where="FILE.jsonl", hint="lines of {gold, response}")
    lines: list[dict[str, Any]] = []
    # only a line break ends a line: a text may hold other separators, such as U+2028
    for number, text in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
        if not text.strip():
            continue
        try:
            line = json_module.loads(text)
        except json_module.JSONDecodeError as error:
            raise UsageError(f"no JSON: {error}", where=f"{file}:{number}", hint="one JSON object per line") from error
        if isinstance(line, dict) and isinstance(line.get("responses"), list):
            lines += _of_group(line, f"{file}:{number}")
            continue
        missing = [key for key in ("gold", "response") if not isinstance(line, dict) or _field(line, key) is None]
        if missing:
            found = ", ".join(line) if isinstance(line, dict) else type(line).__name__
            raise UsageError(
                f"no {' and no '.join(missing)}; found {found}", where=f"{file}:{number}", hint="{gold, response}"
            )
        lines.append(line)
    if not lines:
        raise UsageError("there is nothing to grade", where=str(file), hint="lines of {gold, response}")
    return lines


def _of_group(group: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The responses of a group that a run saved (rollouts/step_N.jsonl)."""
    try:
        gold, uid = group["prompt"]["answer"], group["prompt"]["uid"]
        return [
            {"uid": uid, "gold": gold, "response": found["text"], "finish_reason": found["finish_reason"]}
            for found in group["responses"]
        ]
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"not a saved group: no {error}", where=where, hint="rollouts/step_N.jsonl of a run, or {gold, response}"
        ) from error


def _field(line: dict[str, Any], key: str) -> Any:
    return line["pred"] if key == "response" and line.get("response") is None and "pred" in line else line.get(key)


def _item(line: dict[str, Any]) -> Item:
    from da3po_cli.data.formats import unlisted

    gold = unlisted(line["gold"])  # as data sets write them, and training reads them
    gold = gold[0] if isinstance(gold, list) and len(gold) == 1 else line["gold"]
    return str(_field(line, "response")), str(line.get("finish_reason") or "stop"), str(gold)


def _marked(response: str, name: str) -> bool:
    """Whether a response already states its answer in the form that this grader looks for."""
    marks = ("answer:",) if name == "dapo" else (r"\boxed", r"\fbox", "$", r"\(", r"\[")
    return any(mark in response.lower() for mark in marks)


def _graded(reward: str, items: list[Item], options: Any, workers: int | None, deadline: float) -> list[Grade]:
    from da3po_cli.rewards import GradingPool

    with GradingPool(reward, options=options, workers=workers, deadline_s=deadline) as pool:
        return pool.grade(items)


def _write(out: Out, out_file: Path | None, graded: list[dict[str, Any]]) -> None:
    if out_file is not None:
        try:
            with out_file.open("w", encoding="utf-8") as target:
                target.writelines(json_module.dumps(line) + "\n" for line in graded)
        except OSError as error:
            raise UsageError(
                f"cannot write: {error.strerror}", where=f"--out {out_file}", hint="another path"
            ) from error
        return
    for line in graded:
        out.data(json_module.dumps(line))
        out.event("grade", **line)


def _report(out: Out, out_file: Path | None, graded: list[dict[str, Any]], columns: list[str]) -> None:
    """Counts on stdout when the lines went to a file, else on stderr; disagreements always on stderr."""
    counts = {name: Counter(line[name] for line in graded) for name in columns}
    expected = [line for line in graded if isinstance(line.get("expected"), bool)]
    as_expected = {name: sum((line[name] == "correct") == line["expected"] for line in expected) for name in columns}
    rows = [("lines", str(len(graded)))]
    for name in columns:
        label = "da3po" if name == "verdict" else name
        text = ", ".join(f"{counts[name][verdict]} {verdict}" for verdict in ("correct", "wrong", "unknown"))
        rows.append((label, text + (f"; {as_expected[name]} of {len(expected)} as expected" if expected else "")))
    reasons = Counter(line["rule"] for line in graded if line["verdict"] == "unknown")
    rows += [(f"unknown: {reason}", str(count)) for reason, count in reasons.most_common()]
    differing = [
        number
        for number, line in enumerate(graded, 1)
        if any((line[name] == "correct") != (line["verdict"] == "correct") for name in columns)
    ]
    for number in differing:
        line = graded[number - 1]
        verdicts = ", ".join(f"{'da3po' if name == 'verdict' else name} {line[name]}" for name in columns)
        out.say(
            f"{number}: {verdicts}; gold {line['gold']!r:.{_SHOWN}}, response {_field(line, 'response')!r:.{_SHOWN}}"
        )
    if out_file is not None:
        out.table(rows)
    else:
        out.say("\n".join(f"{label}: {text}" for label, text in rows))
    out.event(
        "summary",
        lines=len(graded),
        counts={name: dict(found) for name, found in counts.items()},
        unknown=dict(reasons),
        disagreements=differing,
        **({"expected": len(expected), "as_expected": as_expected} if expected else {}),
    )
