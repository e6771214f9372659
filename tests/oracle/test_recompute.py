"""`da3po doctor RUN --recompute STEP`: it agrees with a sound run, and finds one that did something else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import synthetic
from oracle_runs import train

from da3po_cli import main
from da3po_cli.doctor import oracle
from da3po_cli.runs.directory import RunDir
from da3po_cli.runs.files import write_lines
from da3po_cli.runs.rollouts import read_rollouts

STEPS = 3


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DA3PO_RUNS with `run`: three steps, with its rollouts as a live run has them."""
    root = tmp_path_factory.mktemp("runs")
    saved = synthetic.write(root / "saved", steps=STEPS)
    run = train(root, "run", "algo.kl_coef=0.01", replay=saved, steps=STEPS)
    run.rollouts.mkdir()
    algo = {"daa_lambda": 2.0, "daa_tau": 0.5, "daa_schedule": "constant", "std_power": 1.0, "std_ddof": 1}
    for step in range(1, STEPS + 1):
        change(saved / "rollouts" / f"step_{step}.jsonl", lambda group: value(group, algo), run.rollouts)
    return root


def value(group: dict[str, Any], algo: dict[str, Any]) -> None:
    """Note the advantages of a group that was trained on."""
    for one, (advantage, factor) in zip(group["responses"], oracle.advantages(group, algo), strict=True):
        if group["drop_reason"] is None:
            one["advantage"], one["daa_weight"] = advantage, factor


def change(file: Path, what: Callable[[dict[str, Any]], None], directory: Path) -> None:
    """Write the groups of `file` to `directory`, each changed."""
    groups = [group for _, group in read_rollouts(file)]
    for group in groups:
        what(group)
    write_lines(directory / file.name, map(json.dumps, groups))


@pytest.fixture
def run(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A copy of the sound run, to be changed."""
    shutil.copytree(sound / "run", tmp_path / "runs" / "run")
    monkeypatch.setenv("DA3PO_RUNS", str(tmp_path / "runs"))
    return RunDir(tmp_path / "runs" / "run")


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and rows of `da3po doctor run --recompute ...`."""
    code = main.execute(main.normalise(["doctor", "run", "--recompute", *words, "--json"]))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return code, lines[0].get("rows", lines)


def wrong(rows: list[dict[str, Any]]) -> set[str]:
    return {row["name"] for row in rows if not row["ok"]}


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_a_sound_run_agrees_from_the_checkpoint_before(run: RunDir, capsys: pytest.CaptureFixture[str], step: int):
    """The optimizer's moments and its count of updates are those of the checkpoint."""
    code, rows = asked(capsys, str(step))
    assert (code, wrong(rows)) == (0, set())
    assert {"train/loss", "train/ref_kl", "train/grad_norm", "daa/amplified"} <= {row["name"] for row in rows}
    assert any(row["name"].startswith("weights") for row in rows)


def test_over_a_step_without_a_checkpoint(run: RunDir, capsys: pytest.CaptureFixture[str]):
    shutil.rmtree(run.checkpoints / "step_2")
    assert asked(capsys, "3")[0] == 0
    assert run.saved_steps() == [1, 3]


def edit(run: RunDir, old: str, new: str) -> None:
    text = run.config_file.read_text()
    assert text.count(old) == 1
    run.config_file.write_text(text.replace(old, new))


# what the config says and the run did not do -> numbers that tell
LIES = {
    "daa_lambda: 2.0 -> 1.0": {"advantage, largest difference", "daa_weight, largest difference", "daa/amplified"},
    "std_ddof: 1 -> 0": {"advantage, largest difference", "train/loss"},
    "clip_high: 0.28 -> 0.05": {"train/clip_high"},
    "aggregate: token-mean -> seq-mean-token-mean": {"train/loss", "train/grad_norm"},
    "tis: auto -> 'on'": {"train/tis", "train/loss"},
    "temperature: 1.0\n  tensor -> 0.9\n  tensor": {"train/logp", "train/entropy", "train/rollout_gap"},
    "mini_batch_prompts: 4 -> 8": {"train/updates", "train/ratio", "train/kl"},
    "kl_coef: 0.01 -> 0.0": {"train/ref_kl", "train/loss"},
    "lr: 0.0004 -> 0.0008": {"train/lr", "train/kl"},
    "warmup_steps: 4 -> 0": {"train/lr", "weights, of their way"},
    "grad_clip: 0.2 -> 1.0e-06": {"weights, of their way"},
    "weight_decay: 0.1 -> 10.0": {"weights, of their way"},
    "adam_beta1: 0.9 -> 0.5": {"weights, of their way"},
    "overlong_share: 0.17 -> 0.95": {"reward, largest difference"},
    "dynamic_sampling: true -> false": {"groups misjudged"},
}


@pytest.mark.parametrize(("lie", "tells"), LIES.items(), ids=[lie.partition(":")[0] for lie in LIES])
def test_a_config_that_was_not_trained_is_found(
    run: RunDir, capsys: pytest.CaptureFixture[str], lie: str, tells: set[str]
):
    key, _, values = lie.partition(": ")
    old, _, new = values.partition(" -> ")
    edit(run, f"  {key}: {old}", f"  {key}: {new}")
    code, rows = asked(capsys, "2")
    assert code == 4
    assert tells <= wrong(rows)


def test_weights_of_another_step_are_found(run: RunDir, capsys: pytest.CaptureFixture[str]):
    shutil.rmtree(run.checkpoints / "step_2/policy")
    shutil.copytree(run.checkpoints / "step_1/policy", run.checkpoints / "step_2/policy")
    table = {"files": {}, "step": 2}
    (run.checkpoints / "step_2/state.json").write_text(json.dumps(table))
    code, rows = asked(capsys, "3")
    assert code == 4
    assert {"train/loss", "train/logp", "weights, of their way"} <= wrong(rows)


def test_as_text(run: RunDir, capsys: pytest.CaptureFixture[str]):
    """A line a number; the end says what it comes to."""
    assert main.execute(["doctor", "run", "--recompute", "1"]) == 0
    out, err = capsys.readouterr()
    assert all(line.startswith("ok  ") for line in out.splitlines()[1:])
    assert "step 1 is what its config says" in err
    edit(run, "  lr: 0.0004", "  lr: 0.0001")
    assert main.execute(["doctor", "run", "--recompute", "1", "--quiet"]) == 4
    out, err = capsys.readouterr()
    assert [line.split()[:2] for line in out.splitlines()[1:2]] == [["FAIL", "train/ratio"]]
    assert err.startswith("error: step 1 is not what its config says: ")


MISTAKES: dict[str, tuple[list[str], str, str]] = {
    "no run": (["--recompute", "1"], "--recompute takes one run, with the config that it has, and not nothing", "RUN"),
    "an override": (["run", "train.lr=1", "--recompute", "1"], "and not run train.lr=1", "da3po doctor RUN"),
    "another run": (["walk", "--recompute", "1"], "no run called 'walk'", "run"),
    "another step": (["run", "--recompute", "9"], "the run has no step 9: it has done steps 1 to 3", "another step"),
}


@pytest.mark.parametrize(("words", "told", "fix"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(run: RunDir, capsys: pytest.CaptureFixture[str], words: list[str], told: str, fix: str):
    assert main.execute(["doctor", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err and fix in err


def test_what_a_run_did_not_leave(run: RunDir, capsys: pytest.CaptureFixture[str]):
    (run.rollouts / "step_2.jsonl").unlink()
    assert main.execute(["doctor", "run", "--recompute", "2"]) == 2
    assert "the run has no saved rollouts of step 2" in capsys.readouterr().err
    records = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    records[0]["train/skipped"] = 1
    write_lines(run.metrics_file, map(json.dumps, records))
    assert main.execute(["doctor", "run", "--recompute", "1"]) == 2
    assert "1 update(s) of step 1 were skipped, because not finite" in capsys.readouterr().err
