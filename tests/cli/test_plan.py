"""`da3po plan` and `train --dry-run`: what they print, and that they need neither torch nor the network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from da3po_cli.config import devices
from da3po_cli.config.load import load_config
from da3po_cli.main import execute
from da3po_cli.planning import machine as machine_module

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("DA3PO_", "SLURM_")) or name in ("RANK", "WORLD_SIZE", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr(devices, "installed_gpus", lambda root: 0)


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = execute(list(arguments))
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert execute(list(arguments)) == 2
    return capsys.readouterr().err


def event(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    (line,) = output(capsys, *arguments, "--json").splitlines()
    return json.loads(line)


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--config", "qwen3-4b", "--gpus", "8"],
        ["plan", "--config", "demo"],
        ["plan", "-h"],
        ["train", "-c", "demo", "--dry-run"],
    ],
)
def test_no_torch_and_no_file(arguments: list[str], tmp_path: Path) -> None:
    script = (
        "import sys; from da3po_cli import main; "
        "assert main.execute(sys.argv[1:]) == 0; "
        "heavy = {'torch', 'vllm', 'megatron', 'transformers', 'numpy', 'pyarrow', 'rich.console'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not any(tmp_path.iterdir())


def test_the_4b_model_on_8_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "plan", "--config", "qwen3-4b", "--gpus", "8")
    assert "4,022,468,096 parameters" in out
    assert "512 prompts x 16 = 8192 responses" in out
    assert "16 per step, each 32 x 16 = 512 responses, 64 per data-parallel rank" in out
    assert "8.04 GB per sync" in out  # 4,022,468,096 x 2 bytes
    assert "56.31 GB per checkpoint" in out  # x 14
    assert "least tensor x pipeline first, then fewest bytes moved per GPU and update" in out
    last = out.strip().splitlines()[-1]
    assert last.startswith("best layout: da3po train -c qwen3-4b parallel.tensor=1 parallel.pipeline=1 parallel.data=8")


def test_what_is_suggested_fits(capsys: pytest.CaptureFixture[str]) -> None:
    first = event(capsys, "plan", "-c", "qwen3-8b", "--gpus", "8", "train.lr=2e-6")
    words = first["command"].split()
    assert words[:2] == ["da3po", "train"] and "train.lr=2e-6" in words
    second = event(capsys, "plan", *words[2:], "--gpus", "8")
    assert second["own"]["fits"] and second["refused"] == []
    assert second["own"] == second["chosen"]
    load_config(["qwen3-8b"], words[4:], env={})  # it is a command line that train takes


def test_the_parts_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    found = event(capsys, "plan", "-c", "qwen3-4b", "--gpus", "8", "parallel.pipeline=2", "parallel.data=4")
    for one in (found["own"], found["chosen"]):
        for stage in one["memory"]:
            for phase in stage["phases"].values():
                assert phase["total"] == sum(size for part, size in phase.items() if part != "total")
    assert [stage["stage"] for stage in found["own"]["memory"]] == [0, 1]
    fits = [one["fits"] for one in found["layouts"]]
    assert fits == sorted(fits, reverse=True)


def test_memory_limits_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    big, small = (
        sum(
            one["fits"]
            for one in event(capsys, "plan", "-c", "qwen3-4b", "--gpus", "8", "--gpu-memory", gib)["layouts"]
        )
        for gib in ("80", "32")
    )
    assert big > small
    out = output(capsys, "plan", "-c", "qwen3-8b", "--gpus", "1", "--gpu-memory", "24")
    assert "no layout fits" in out and "more GPUs" in out


def test_a_layout_that_the_model_refuses_does_not_stop_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "plan", "-c", "qwen3-4b", "--gpus", "8", "parallel.tensor=3")
    assert "the config's own layout is refused" in out
    assert "best layout: da3po train -c qwen3-4b parallel.tensor=1" in out
    assert "parallel.tensor=3" not in out.splitlines()[-1]


def test_responses_need_not_divide_over_the_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    """512 do not divide over 6 or 3 data-parallel ranks. Of tensor 1 and 2, all 6 GPUs are data x pipeline x tensor."""
    found = event(capsys, "plan", "-c", "qwen3-4b", "--gpus", "6")
    assert found["refused"] == []
    assert {one["layout"]["data"] for one in found["layouts"]} == {1, 2, 3, 6}
    assert "= 512 responses, 85.3 per data-parallel rank" in output(capsys, "plan", "-c", "qwen3-4b", "--gpus", "6")


def test_problems_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "a group of one" in failure(capsys, "plan", "-c", "qwen3-4b", "--gpus", "8", "rollout.group_size=1")
    assert "unknown config key" in failure(capsys, "plan", "-c", "qwen3-4b", "trian.lr=1")
    err = failure(capsys, "plan", "-c", "qwen3-4b", "--model", "somebody/unheard-of")
    assert "config.json of somebody/unheard-of is not on this machine" in err and "fix: " in err
    assert "parallel.tensor=0 must be at least 1" in failure(capsys, "plan", "-c", "qwen3-4b", "parallel.tensor=0")
    assert "parallel.tensor=3 does not divide" in failure(capsys, "plan", "-c", "qwen3-4b", "parallel.tensor=3")
    assert "--gpus N" in failure(capsys, "plan", "-c", "demo", "--gpu-memory", "40")
    assert "no run" in failure(capsys, "plan", "-c", "demo", "--run", "nowhere")


def test_data_need_not_be_here(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan is for another machine; train --dry-run is for this one."""
    assert "parameters" in output(capsys, "plan", "-c", "demo", "data.train=absent.jsonl")
    assert "absent.jsonl" in failure(capsys, "train", "-c", "demo", "data.train=absent.jsonl", "--dry-run")


def test_the_memory_of_the_gpus_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "installed_gpus", lambda root: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine_module, "installed_memory", lambda: 141.0)
    found = event(capsys, "plan", "-c", "qwen3-4b", "rollout.gpu_memory=0.5")
    assert found["own"]["machine"] == {"gpus": 4, "memory": 141 << 30}
    assert found["layouts"] == []
    planned = event(capsys, "plan", "-c", "qwen3-4b", "--gpus", "8")
    assert planned["own"]["machine"] == {"gpus": 8, "memory": 80 << 30}


def test_a_run_in_place_of_assumptions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = tmp_path / "runs" / "seen"
    (run / "rollouts").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    records = [{"step": 0}, {"step": 1, "sample/kept": 3, "sample/generated": 4}, {"step": 2, "sample/kept": 3}]
    records[2]["sample/generated"] = 8
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    prompt = {"token_ids": [1] * 10}
    groups = [
        {"prompt": prompt, "drop_reason": None, "responses": [{"token_ids": [1] * 20}, {"token_ids": [1] * 30}]},
        {"prompt": prompt, "drop_reason": "too_easy", "responses": [{"token_ids": [1] * 90}]},
    ]
    (run / "rollouts" / "step_2.jsonl").write_text("".join(json.dumps(group) + "\n" for group in groups))
    batch = event(capsys, "plan", "-c", "demo", "--run", "seen", "parallel.data=1")["own"]["batch"]
    assert batch["kept"] == 0.5  # 6 of 12
    assert batch["mean"] == 35  # 10 + 20 and 10 + 30; the dropped group was not trained on
    assert batch["tokens"] == 16 * 8 * 35


def test_the_dry_run_shows_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    planned = event(capsys, "plan", "-c", "demo", "parallel.data=1")["own"]
    dry = event(capsys, "train", "-c", "demo", "parallel.data=1", "--dry-run")
    assert dry["estimate"] == planned
    text = output(capsys, "train", "-c", "demo", "--dry-run")
    assert "memory per rank" in text and "Python and libraries" in text
    hub = output(capsys, "train", "-c", "demo", "--model", "somebody/unheard-of", "--dry-run")
    assert "unknown before the model is downloaded" in hub
