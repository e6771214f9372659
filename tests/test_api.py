"""The API as a script uses it: the examples of docs/api.md, errors, and a process that is left as it was."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import da3po_cli
from da3po_cli import Config, evaluate, load_config, train
from da3po_cli.config.load import load_config as resolve_files
from da3po_cli.errors import ConfigErrors, Da3poError, UsageError

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of its own, no settings, and no launcher around."""
    for name in list(os.environ):
        if name.startswith(("DA3PO_", "SLURM_", "TORCHELASTIC_")) or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examples() -> str:
    """The blocks of Python in docs/api.md, one after the other."""
    text = (REPOSITORY / "docs" / "api.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert len(blocks) >= 4
    return "\n".join(blocks)


@pytest.mark.slow
def test_the_examples_of_the_docs(place: Path) -> None:
    """As a script: trains, evaluates, goes on; its ranks do not run it, and it is left as it was."""
    before = (
        "import signal\n"
        "handler = signal.getsignal(signal.SIGINT)\n"  # a shell's background job ignores it
        '__import__("pathlib").Path("started").open("a").write("x")\n'
    )
    after = (
        "import os, sys\n"
        'assert not {"RANK", "WORLD_SIZE", "MASTER_PORT", "VLLM_ENABLE_V1_MULTIPROCESSING"} & set(os.environ)\n'
        "assert signal.getsignal(signal.SIGINT) is handler\n"
        'assert not {"megatron_bridge", "da3po_cli.training.worker"} & set(sys.modules)\n'
        "assert longer.history()[-1] == longer.metrics\n"
        "assert longer.history()[1] == run.metrics\n"
        'print("steps", longer.step, longer.name, longer.status)\n'
    )
    (place / "script.py").write_text(before + examples() + after)
    done = subprocess.run(
        [sys.executable, "script.py"],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (place / "started").read_text() == "x"
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"finished 2 -?[\d.e-]+", lines[0])
    assert len(eval(lines[1])) == 2
    assert 0 <= float(lines[2]) <= 1
    assert any("parallel.tensor=3" in line or "tensor 3" in line for line in lines[3:]), lines
    assert lines[-1] == "steps 3 first finished"
    assert (place / "runs/first/run.json").is_file()


def test_the_same_config_as_on_the_command_line() -> None:
    overrides = ["train.lr=1e-4", "parallel.data=2"]
    assert load_config("demo", overrides=overrides) == resolve_files(["demo"], overrides, env={}).config
    assert load_config("demo", env={"DA3PO_RUN__SEED": "9"}).run.seed == 9
    assert isinstance(load_config("demo"), Config)


def test_all_problems_are_raised_and_nothing_is_written(place: Path) -> None:
    config = load_config("demo", overrides=["parallel.data=1"])
    wrong = replace(config, train=replace(config.train, lr="fast"), run=replace(config.run, steps=2.5))  # type: ignore[arg-type]
    with pytest.raises(ConfigErrors) as caught:
        train(wrong, name="x")
    messages = [problem.message for problem in caught.value.problems]
    assert "run.steps=2.5: must be a whole number" in messages
    assert "train.lr=fast: must be a number" in messages
    with pytest.raises(ConfigErrors):
        load_config("demo", overrides=["train.lrr=1"])
    assert not (place / "runs").exists()


def test_errors_are_those_of_the_commands(place: Path) -> None:
    with pytest.raises(UsageError, match="no run to resume"):
        train(resume=True)
    with pytest.raises(UsageError, match="no model"):
        evaluate("arith", "nobody")
    with pytest.raises(UsageError, match="limit=0 must be at least 1"):
        evaluate("arith", "demo", limit=0)
    (place / "runs/used").mkdir(parents=True)
    (place / "runs/used/file").touch()
    with pytest.raises(Da3poError, match="is in use") as caught:
        train(load_config("demo"), name="used")
    assert caught.value.exit_code == 2


def test_importing_the_package_reads_nothing_else() -> None:
    script = "import sys, da3po_cli; print(sorted(name for name in sys.modules if name.startswith('da3po_cli')))"
    script += "; import da3po_cli.api; print({'torch', 'vllm', 'megatron', 'transformers', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["['da3po_cli']", "set()"], done.stderr


def test_a_name_that_the_package_lacks() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        da3po_cli.trian  # type: ignore[attr-defined]  # noqa: B018


def test_signals_are_taken_over_for_the_launch_only(place: Path) -> None:
    from da3po_cli.launching.launch import _Relay

    before = signal.getsignal(signal.SIGTERM)
    relay = _Relay(place / "rank_0.pid")
    with relay.installed():
        assert signal.getsignal(signal.SIGTERM) is relay
    assert signal.getsignal(signal.SIGTERM) is before
    failures: list[BaseException] = []

    def elsewhere() -> None:
        try:
            with relay.installed():
                assert signal.getsignal(signal.SIGTERM) is before
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert failures == []
