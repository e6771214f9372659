"""`--json`: what each command prints on stdout, key by key, and that no secret is printed or kept in a file.

A schema is a type, a tuple of types, `[schema]` for a list, `{key: schema}` for an object with exactly these keys, or
`Mapping(schema)` for an object with any keys. `None` in a tuple is null.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import typer.main

from da3po_cli import main
from da3po_cli.config import devices
from da3po_cli.config.schema import AlgoConfig
from da3po_cli.errors import EnvironmentProblem
from da3po_cli.launching.launch import note_error
from da3po_cli.output import Out
from da3po_cli.runs.directory import RunDir, command_line

REPOSITORY = Path(__file__).parents[2]
TOKEN, API_KEY, PASSWORD = "hf_" + "Secret0123456789secret", "0123456789abcdef0123456789", "passw0rd"
SECRETS = {
    "HF_TOKEN": TOKEN,
    "WANDB_API_KEY": API_KEY,
    "HF_ENDPOINT": f"http://somebody:{PASSWORD}@127.0.0.1:9",
    "HTTPS_PROXY": f"http://somebody:{PASSWORD}@127.0.0.1:9",
}


@dataclass(frozen=True)
class Mapping:
    """An object with any keys, and values of one schema."""

    of: Any


NUMBER, TEXT_OR_NULL = (int, float), (str, None)
ERROR = {"kind": str, "message": str, "hint": TEXT_OR_NULL, "where": TEXT_OR_NULL}
LAYOUT = dict.fromkeys(("world", "tensor", "pipeline", "data", "engines", "rollout_tensor"), int)
ROWS = dict.fromkeys(("algorithm", "model", "data", "layout", "step", "length", "updates", "overlong", "total"), str)
ALPHAS = dict.fromkeys(("p", "alpha_plus", "alpha_minus", "gamma", "keep"), NUMBER)
THEORY = {
    "event": str,
    "rows": [{**ALPHAS, "group_size": int}],
    "measured": (None,),
    "explanation": [str],
    "files": [str],
}
ESTIMATE = {
    "fits": bool,
    "layout": LAYOUT,
    "machine": Mapping(NUMBER),
    "batch": Mapping((int, float, str)),
    "engine": Mapping(NUMBER),
    "memory": [
        {"stage": int, "phases": Mapping(Mapping(int)), "at_most": Mapping(int), "state": Mapping(int)},
    ],
    **dict.fromkeys(("overlong_cache", "limit", "sync_bytes", "buffer_bytes", "checkpoint_bytes", "host_bytes"), int),
}
FILE = {
    "name": str,
    "rows": int,
    "columns": [{"name": str, "type": str, "missing": int, "example": str}],
    "prompt_from": Mapping(int),
    "answer_from": Mapping(int),
}
RUN = {
    "event": str,
    "name": str,
    "status": str,
    "step": int,
    "created": str,
    "val/arith/avg@8": float,
}
ABOUT = {
    "name": str,
    "created": str,
    "status": str,
    "config_hash": str,
    "versions": Mapping(str),
    "git": TEXT_OR_NULL,
    "attempts": [Mapping((str, [str], int))],
}
ANY = (int, float, str, bool, None)

QUICK: dict[str, list[Any]] = {
    "config show -c demo": [{"event": str, "config": Mapping(ANY), "sources": Mapping(str)}],
    "config diff demo qwen3-4b": [{"event": str, "changes": [{"key": str, "a": ANY, "b": ANY}]}],
    "algos": [
        {
            **dict.fromkeys(("event", "name", "title", "source", "summary", "formula"), str),
            "defaults": dict.fromkeys((field.name for field in fields(AlgoConfig)), ANY),
        }
    ]
    * 5,
    "runs ls": [RUN],
    "runs show saved": [{"event": str, "about": ABOUT, "checkpoints": [int], "metrics": Mapping((int, float, None))}],
    "theory --group 4": [THEORY],
    "train -c demo --dry-run": [
        {"event": str, "run": str, **ROWS, "config": Mapping(Mapping(ANY)), "estimate": ESTIMATE}
    ],
    "plan -c demo": [
        {
            "event": str,
            "model": Mapping((int, str, bool)),
            "refused": [str],
            "own": ESTIMATE,
            "chosen": ESTIMATE,
            "layouts": [Mapping(ANY)],
            "command": TEXT_OR_NULL,
        }
    ],
    "ablate -c demo --param lambda=1,2 --dry-run": [
        *[dict.fromkeys(("event", "run", "arm", "config_hash"), str) | {"seed": int}] * 2,
        {"event": str, "ablation": str, "runs": int, "steps": int, "seconds_per_step": (int, float, None)},
    ],
    "data check problems.jsonl": [
        {
            "event": str,
            "spec": str,
            "rows": int,
            "usable": int,
            "dropped": Mapping(int),
            "examples": Mapping([str]),
            "files": [FILE],
            "data_sources": Mapping(int),
            "rewards": Mapping(str),
            "unknown_sources": [str],
            "unused_sources": [str],
            "lengths": (None,),
        }
    ],
    "grade answers.jsonl": [
        {
            **dict.fromkeys(("event", "gold", "response", "verdict", "rule"), str),
            "extracted": TEXT_OR_NULL,
            "seconds": float,
        },
        {"event": str, "lines": int, "counts": Mapping(Mapping(int)), "unknown": Mapping(int), "disagreements": [int]},
    ],
    "report saved": [{"event": str, "name": str, "files": [str], "markdown": (str, None)}],
}


def wrong(value: Any, schema: Any, at: str = "") -> Iterator[str]:
    """What in `value` is not as `schema` says."""
    if isinstance(schema, tuple):
        if not (value is None and None in schema) and all(list(wrong(value, one)) for one in schema if one is not None):
            yield f"{at}: {value!r} is none of {schema}"
        return
    kind = {dict: dict, Mapping: dict, list: list}.get(type(schema), schema)
    if type(value) is not kind:  # a bool is no int here
        yield f"{at}: {value!r} is no {kind.__name__}"
        return
    if isinstance(schema, dict) and set(value) != set(schema):
        yield f"{at}: {sorted(value)} is not {sorted(schema)}"
        return
    for key, inner in enumerate(value) if kind is list else value.items() if kind is dict else ():
        of = schema[0] if kind is list else schema.of if isinstance(schema, Mapping) else schema[key]
        yield from wrong(inner, of, f"{at}.{key}")


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (True, int),
        (1, float),
        (None, str),
        ({"a": 1, "b": 2}, {"a": int}),
        ({"a": 1}, {"a": int, "b": int}),
        ({"a": [1, "x"]}, {"a": [int]}),
        ({"a": {"b": "x"}}, Mapping(Mapping(int))),
        ("x", (int, None)),
        ([], Mapping(int)),
    ],
)
def test_the_checker_sees_what_is_wrong(value: Any, schema: Any) -> None:
    assert len(list(wrong(value, schema))) == 1


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a run and two files of data; a machine without GPUs."""
    for name in list(os.environ):
        if name.startswith(("DA3PO_", "SLURM_")) or name in ("RANK", "WORLD_SIZE", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "installed_gpus", lambda root: 0)
    run = RunDir(tmp_path / "runs/saved")
    run.create("defaults: demo\n", "hash", ["da3po", "train"])
    records: list[dict[str, Any]] = [{"step": 0, "val/arith/avg@8": 0.1}, {"step": 1, "train/loss": None}]
    run.metrics_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "problems.jsonl").write_text('{"problem": "1+1=?", "answer": "2"}\n{"problem": "", "answer": "3"}\n')
    (tmp_path / "answers.jsonl").write_text(json.dumps({"gold": "2", "response": "\\boxed{2}"}) + "\n")
    return tmp_path


def strict(text: str) -> list[Any]:
    """The lines of NDJSON; NaN and Infinity are no JSON."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


@pytest.mark.parametrize("command", QUICK)
def test_schema(command: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.execute([*command.split(), "--json"]) == 0
    events = strict(capsys.readouterr().out)
    assert len(events) == len(QUICK[command])
    assert [fault for event, schema in zip(events, QUICK[command], strict=True) for fault in wrong(event, schema)] == []


@pytest.mark.parametrize("command", QUICK)
def test_quiet_is_silent_on_stderr(command: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.execute([*command.split(), "--quiet"]) == 0
    stdout, stderr = capsys.readouterr()
    assert stdout and all(line.startswith("warning: ") for line in stderr.splitlines())


@pytest.mark.parametrize("command", QUICK)
def test_no_color_and_pipes_have_no_escapes(
    command: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main.execute(command.split()) == 0
    assert "\033" not in "".join(capsys.readouterr())


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """(command, its options) of the whole app."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            options = {option for parameter in command.params for option in getattr(parameter, "opts", ())}
            yield " ".join((*path, name)), options


def test_every_command_has_json_and_quiet() -> None:
    found = dict(commands(typer.main.get_command(main.make_app())))
    assert len(found) >= 16
    lacking = {name: {"--json", "--quiet"} - options for name, options in found.items()}
    assert {name: options for name, options in lacking.items() if options} == {}


def test_errors_of_every_kind_are_objects(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("runs show nosuch", "trian", "train --steps x", "grade"):
        assert main.execute([*command.split(), "--json"]) == 2
        (event,) = strict(capsys.readouterr().out)
        assert list(wrong(event, {"error": ERROR})) == []
    assert main.execute(["train", "-c", "demo", "--steps", "0", "train.lrr=1", "--json"]) == 2
    (event,) = strict(capsys.readouterr().out)
    assert list(wrong(event, {"error": {**ERROR, "problems": [ERROR]}})) == []
    assert len(event["error"]["problems"]) == 2


def test_numbers_that_are_not_finite_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    Out("json").event("x", a=float("nan"), b=[float("inf"), 1.5], c={"d": (1, float("-inf"))})
    assert strict(capsys.readouterr().out) == [{"event": "x", "a": None, "b": [None, 1.5], "c": {"d": [1, None]}}]


# ------------------------------------------------------------------------------------------------------------- secrets


def test_tracebacks_are_redacted(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError(f"GET {SECRETS['HF_ENDPOINT']}/api")

    monkeypatch.setattr(main, "make_app", broken)
    assert main.execute(["train"]) == 1
    stderr = capsys.readouterr().err
    assert "Traceback" in stderr and "GET http://***@127.0.0.1:9/api" in stderr and PASSWORD not in stderr


def test_errors_and_command_lines_are_redacted(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    assert main.execute(["train", "-c", "demo", f"HF_TOKEN={TOKEN}", "--json"]) == 2
    printed = "".join(capsys.readouterr())
    assert "unknown config key 'HF_TOKEN'" in printed and TOKEN not in printed
    monkeypatch.setattr(sys, "argv", ["da3po", "train", f"token={TOKEN}", SECRETS["HF_ENDPOINT"]])
    assert command_line() == ["da3po", "train", "token=***", "http://***@127.0.0.1:9"]
    try:
        raise EnvironmentProblem(f"401 for {SECRETS['HF_ENDPOINT']}/api with {API_KEY}")
    except EnvironmentProblem as error:
        note_error(error, place / "logs", 1)
    written = (place / "logs/rank_1.error.json").read_text()
    assert json.loads(written)["message"] == "401 for http://***@127.0.0.1:9/api with ***"
    assert PASSWORD not in written and API_KEY not in written


# ------------------------------------------------------------------------------ a run, and what is made of it, for real


def da3po(place: Path, *arguments: str) -> list[Any]:
    """The events of a command that runs with secrets in its environment; none of them is printed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DA3PO_")}
    env = {**clean, **SECRETS, "PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "da3po_cli", *arguments, "--json"]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr + done.stdout
    for secret in (TOKEN, API_KEY, PASSWORD):
        assert secret not in done.stdout + done.stderr
    return strict(done.stdout)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A run of one step, and its events."""
    place = tmp_path_factory.mktemp("trained")
    small = ["rollout.prompts=4", "rollout.group_size=4", "train.mini_batch_prompts=4", "rollout.max_tokens=48"]
    small += ["validation.prompts=4", "validation.samples=2", "parallel.data=1"]
    return place, da3po(place, "train", "-c", "demo", "--algo", "grpo", "--steps", "1", "--name", "one", *small)


@pytest.mark.slow
def test_events_of_a_training_run(trained: tuple[Path, list[Any]]) -> None:
    _, events = trained
    assert [event["event"] for event in events] == ["launch", "step", "step", "done"]
    launch, before, step, done = events
    assert list(wrong(launch, {"event": str, "attempt": int, "run": str, **ROWS})) == []
    assert list(wrong(step, Mapping((str, int, float, None)))) == []
    assert (before["step"], step["step"]) == (0, 1)
    assert "val/arith/avg@2" in before and {"train/loss", "sample/kept", "timing/step"} <= set(step)
    schema = {
        "event": str,
        "status": str,
        "run": str,
        "steps": int,
        "seconds": float,
        "validation": Mapping([float]),
        "next": [str],
    }
    assert list(wrong(done, schema)) == []
    assert (done["status"], done["steps"]) == ("done", 1)


@pytest.mark.slow
def test_events_of_what_follows(trained: tuple[Path, list[Any]]) -> None:
    place, _ = trained
    (export,) = da3po(place, "export", "one", "hf")
    schema = {
        **dict.fromkeys(("event", "run", "out", "dtype"), str),
        **dict.fromkeys(("step", "tensors", "parameters", "nbytes"), int),
        "files": [str],
        "seconds": float,
        "verification": (None,),
    }
    assert list(wrong(export, schema)) == []
    (result,) = da3po(
        place, "eval", "--bench", "arith", "--model", "one", "--k", "2", "--limit", "2", "--out", "r.json"
    )
    assert result["event"] == "eval" and isinstance(result["val/arith/avg@2"], float)
    about = ["model", "fingerprint", "created", "seconds", "samples_of_earlier_attempts", "command", "commits", "ran"]
    assert {*result} == {"event", *about, "engine", "average", "benches", "val/arith/avg@2", "val/arith/pass@2"}
    (compared,) = da3po(place, "eval", "compare", "r.json", "r.json")
    assert {key: type(value) for key, value in compared.items()} == {
        **dict.fromkeys(("event", "a", "b", "metric"), str),
        "differences": list,
    }


@pytest.mark.slow
def test_no_secret_is_kept(trained: tuple[Path, list[Any]]) -> None:
    place, _ = trained
    files = [file for file in place.rglob("*") if file.is_file()]
    assert {"run.json", "config.yaml", "metrics.jsonl", "report.html"} <= {file.name for file in files}
    for file in files:
        content = file.read_bytes()
        for secret in (TOKEN, API_KEY, PASSWORD):
            assert secret.encode() not in content, file
