"""What is shown: JSON lines on stdout, plain lines on stderr, a table whose cells come from the record."""

import io
import json

import pytest
from rich.console import Console

from da3po_cli.runs.display import JsonLines, LiveTable, PlainLines, Quiet, Silent, make_display, sparkline

RECORD = {
    "step": 3,
    "train/acc": 0.4375,
    "sample/kept": 32,
    "sample/generated": 48,
    "sample/hard_share": 0.625,
    "train/loss": -0.0123,
    "train/entropy": 0.31,
    "train/grad_norm": 1.75,
    "train/clip_high": 0.0005,
    "train/clip_low": 0.0,
    "rollout/length": 33.4,
    "rollout/tokens_per_s": 5123.4,
    "timing/rollout": 3.1,
    "timing/train": 1.2,
    "timing/logprob": 0.4,
    "timing/sync": 0.25,
    "timing/step": 5.0,
    "val/arith/avg@8": 0.5125,
    "val/arith/length": 31.0,
}
DONE = {"status": "done", "run": "runs/x", "steps": 3, "seconds": 75.0, "validation": {"arith/avg@8": (0.4, 0.65)}}


def test_json_lines_go_to_stdout(capsys):
    display = JsonLines()
    display.phase("rollout")
    display.step(RECORD)
    display.done(DONE, ["da3po eval"])
    captured = capsys.readouterr()
    events = [json.loads(line) for line in captured.out.splitlines()]
    assert [event["event"] for event in events] == ["step", "done"]
    assert events[0]["train/acc"] == 0.4375
    assert events[1]["next"] == ["da3po eval"]
    assert captured.err == ""


def test_plain_lines_are_one_line_per_step(capsys):
    display = PlainLines(steps=9)
    display.step(RECORD)
    display.done(DONE, ["da3po eval --model runs/x"])
    captured = capsys.readouterr()
    assert captured.out == ""
    step, validation, summary, change, command = captured.err.splitlines()
    assert step.startswith("step 3/9 acc=0.44 kept/gen=32/48 hard=0.62 loss=-0.0123")
    assert "rollout+train+sync_s=3.1+1.6+0.2" in step, "the log-prob pass is shown with training"
    assert validation == "validation at step 3: arith/avg@8 = 0.5125"
    assert summary == "done: 3 steps in 1:15, runs/x"
    assert change.strip() == "arith/avg@8: 0.4000 -> 0.6500 (+0.2500)"
    assert command == "next: da3po eval --model runs/x"


def test_a_metric_that_a_step_lacks_is_a_dash(capsys, monkeypatch):
    """A step may generate nothing (algo.carry_surplus), and then has no rates of what it generated."""
    gone = ("train/acc", "rollout/length", "rollout/tokens_per_s")
    record = {name: value for name, value in RECORD.items() if name not in gone}
    PlainLines(steps=9).step(record)
    line = capsys.readouterr().err.splitlines()[0]
    assert "acc=- kept/gen=32/48" in line and "length=- " in line and "tok/s=- " in line
    screen = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=screen, force_terminal=True, width=120))
    display = LiveTable(steps=9, title="a run")
    display.step(record)
    display._live.refresh()
    display.close()
    assert "32/48" in screen.getvalue() and "train accuracy" not in screen.getvalue()


def test_an_interrupted_run_says_why_and_how_to_go_on(capsys):
    record = {**DONE, "status": "interrupted", "why": "checkpoint.before=01:30"}
    PlainLines(steps=9).done(record, ["da3po train --resume --name x"])
    summary, _, command = capsys.readouterr().err.splitlines()
    assert summary == "interrupted (checkpoint.before=01:30): 3 steps in 1:15, runs/x"
    assert command == "next: da3po train --resume --name x"


@pytest.mark.parametrize("display", [PlainLines(steps=9), JsonLines()], ids=["plain", "json"])
def test_a_notice_is_a_line_on_stderr(display, capfd):
    display.notice("stopping after step 3")
    assert capfd.readouterr() == ("", "stopping after step 3\n")


def test_step_0_is_the_validation_before_training(capsys):
    PlainLines(steps=9).step({"step": 0, "val/arith/avg@8": 0.25, "timing/step": 1.0})
    assert capsys.readouterr().err == "validation at step 0: arith/avg@8 = 0.2500\n"


def test_the_live_table_shows_the_cells_and_the_phase(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=screen, force_terminal=True, width=120))
    display = LiveTable(steps=9, title="a run")
    display.step(RECORD)
    display.phase("rollout", "32 prompts x 8")
    display.notice("stopping after step 4")
    display._live.refresh()
    display.done(DONE, ["da3po eval"])
    text = screen.getvalue()
    for cell in (
        "a run",
        "32/48",
        "0.62",
        "5123",
        "step 3/9",
        "rollout 32 prompts x 8",
        "arith/avg@8",
        "step 4",
        "da3po eval",
    ):
        assert cell in text


@pytest.mark.parametrize(("rank", "json_", "quiet", "kind"), [(1, True, False, Silent), (0, True, False, JsonLines), (0, False, True, Quiet)])
def test_only_rank_0_speaks(rank, json_, quiet, kind):
    assert type(make_display(rank=rank, json=json_, quiet=quiet, steps=1, title="")) is kind


@pytest.mark.parametrize("display", [JsonLines(), Quiet(), PlainLines(1)])
def test_warnings_are_never_hidden(display, capsys):
    display.warn("the policy has collapsed")
    assert tuple(capsys.readouterr()) == ("", "warning: the policy has collapsed\n")


def test_sparkline_bins_long_curves():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.0] * 50 + [1.0] * 50, width=4) == "▁▁██"
