"""Streams, modes, colour; and the optional value of --resume."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from da3po_cli.errors import ConfigErrors, EnvironmentProblem, UsageError
from da3po_cli.main import normalise
from da3po_cli.output import Out, error_lines, print_error, rank, redact, wants_colour

TOKEN, API_KEY, PASSWORD = "hf_" + "Secret0123456789secret", "0123456789abcdef0123456789", "passw0rd"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_data_and_talk_do_not_mix(capsys: pytest.CaptureFixture[str]) -> None:
    out = Out("plain")
    out.say("talk")
    out.data("data")
    out.event("step", value=1)
    assert capsys.readouterr() == ("data\n", "talk\n")


def test_json_puts_events_on_stdout_only(capsys: pytest.CaptureFixture[str]) -> None:
    out = Out("json")
    out.data("data")
    out.event("step", value=1)
    stdout, _ = capsys.readouterr()
    assert json.loads(stdout) == {"event": "step", "value": 1}


def test_quiet_keeps_data_and_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    out = Out("quiet")
    out.say("talk")
    out.warn("careful")
    out.table([("a", 1), ("long", "x")])
    assert capsys.readouterr() == ("a     1\nlong  x\n", "warning: careful\n")


def test_other_ranks_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("plain", "json", "quiet"):
        out = Out(mode, rank=1)  # type: ignore[arg-type]
        out.say("x")
        out.warn("x")
        out.data("x")
        out.event("x")
    assert capsys.readouterr() == ("", "")


def test_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert wants_colour(Terminal())
    assert not wants_colour(io.StringIO())
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_colour(Terminal())


def test_errors_have_two_to_four_lines() -> None:
    error = UsageError("what", where="place", hint="do this")
    assert error_lines(error) == ["error: what", "  at: place", "  fix: do this"]
    assert error_lines(ConfigErrors([error, UsageError("other")])) == [*error_lines(error), "error: other"]


def test_an_error_as_json_and_on_another_rank(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert rank() == 3
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("NO_COLOR", "1")
    error = EnvironmentProblem("no device", hint="get one")
    print_error(error, as_json=True)
    assert capsys.readouterr() == ("", "rank 3: error: no device\nrank 3:   fix: get one\n")  # stdout is rank 0's
    monkeypatch.setenv("RANK", "0")
    print_error(error, as_json=True)
    stdout, stderr = capsys.readouterr()
    assert json.loads(stdout)["error"]["kind"] == "environment"
    assert stderr == "error: no device\n  fix: get one\n"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--resume"], ["--resume=latest"]),
        (["--resume", "--name", "x"], ["--resume=latest", "--name", "x"]),
        (["--resume", "train.lr=1"], ["--resume=latest", "train.lr=1"]),
        (["--resume", "latest"], ["--resume", "latest"]),
        (["--resume", "20"], ["--resume", "20"]),
        (["--resume=20", "a=b"], ["--resume=20", "a=b"]),
    ],
)
def test_resume_may_stand_alone(given: list[str], meant: list[str]) -> None:
    assert normalise(given) == meant


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"Bearer {TOKEN}!", "Bearer ***!"),
        (f"key={API_KEY}", "key=***"),
        (f"GET http://somebody:{PASSWORD}@host:8/path?x=1", "GET http://***@host:8/path?x=1"),
        ("https://host/path, a@b.org, hf_hub, step@20", "https://host/path, a@b.org, hf_hub, step@20"),
        ("hf_" + "AnotherToken12345 typed by hand", "*** typed by hand"),
    ],
)
def test_redaction(text: str, shown: str) -> None:
    env = {"HF_TOKEN": TOKEN, "WANDB_API_KEY": API_KEY, "SHORT_TOKEN": "1", "TOKENIZERS_PARALLELISM": "false"}
    assert redact(text, env) == shown


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams_end_no_command(tmp_path: Path, closed: str) -> None:
    command = f'"{sys.executable}" -m da3po_cli runs ls {closed}'
    done = subprocess.run(["bash", "-c", command], env=environment(tmp_path), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == ("" if "2>&-" in closed else f"no run in {tmp_path}; DA3PO_RUNS names another place\n")


def test_no_encoding_of_a_terminal_ends_a_command(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"problem": "一加一?", "answer": "二"}\n{"problem": "一加二?", "answer": "3"}\n')
    done = subprocess.run(
        [sys.executable, "-m", "da3po_cli", "data", "check", str(file)],
        env=environment(tmp_path) | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr and done.returncode == 0, done.stderr
    assert "\\u4e8c" in done.stdout + done.stderr


def environment(runs: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DA3PO_")}
    return clean | {"DA3PO_RUNS": str(runs), "PYTHONPATH": str(Path(__file__).parents[2])}
