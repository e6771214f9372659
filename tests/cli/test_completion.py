"""What TAB offers, through the protocol that the shells use, and without importing anything heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from da3po_cli.algos.table import ALGORITHMS
from da3po_cli.config.load import load_config
from da3po_cli.config.presets import preset_names
from da3po_cli.runs.directory import RunDir

REPOSITORY = Path(__file__).parents[2]
SECTIONS = [f"{section}." for section in vars(load_config([], env={}).config)]

# As `da3po` does it; at the end, when the shell has its words, the process looks at what it has imported.
SCRIPT = """
import atexit, sys
heavy = {'torch', 'vllm', 'megatron', 'transformers', 'numpy', 'pyarrow', 'matplotlib', 'sympy'}
atexit.register(lambda: sys.stderr.write(','.join(sorted(heavy & set(sys.modules)))))
from da3po_cli import main
sys.exit(main.execute(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two runs, one with checkpoints; an ablation; a broken run."""
    root = tmp_path_factory.mktemp("place")
    for name in ("first", "second"):
        run = RunDir(root / "runs" / name)
        run.create("defaults: demo\n", "hash", ["da3po", "train"])
        run.update(created=f"2026-01-0{len(name) - 4}")
    for step in (20, 100):
        (root / f"runs/second/checkpoints/step_{step}").mkdir(parents=True)
        (root / f"runs/second/checkpoints/step_{step}/state.json").write_text(f'{{"step": {step}}}')
    (root / "runs/sweep").mkdir()
    (root / "runs/sweep/ablation.json").write_text("{}")
    return root


def ask(place: Path, env: Mapping[str, str]) -> str:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "DA3PO_RUNS": "runs", **env},
        cwd=place,
        capture_output=True,
        text=True,
    )
    assert run.stderr == "", "heavy imports, or talk in the user's prompt"
    return run.stdout


def bash(place: Path, line: str) -> list[str]:
    """The offers for the last word of a line; bash also breaks words at `=`."""
    words = line.replace("=", " = ").split()
    at = len(words) if line.endswith(" ") else len(words) - 1
    env = {"_DA3PO_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(at)}
    return ask(place, env).split()


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("da3po tra", ["train"]),
        ("da3po train --algo ", list(ALGORITHMS)),
        ("da3po train --algo g", ["grpo", "gspo"]),
        ("da3po train -c ", preset_names()),
        ("da3po train -c demo --config qwen3-4", ["qwen3-4b"]),
        ("da3po train --name fi", ["first"]),
        ("da3po train --resume ", ["latest", "100", "20"]),
        ("da3po train ", SECTIONS),
        ("da3po train train.l", ["train.lr="]),
        ("da3po train run.tensorboard=", ["true", "false"]),
        ("da3po train -c demo algo.name=g", ["grpo", "gspo"]),
        ("da3po train -c demo fp8.recipe=b", ["blockwise"]),
        ("da3po train train.lr=1e-6 algo.t", ["algo.tis=", "algo.tis_cap="]),
        ("da3po ablate --algos da3po,d", ["da3po,dapo", "da3po,dr_grpo"]),
        ("da3po ablate --param algo.daa_t", ["algo.daa_tau="]),
        ("da3po export se", ["second"]),
        ("da3po export second@", ["second@100", "second@20"]),
        ("da3po eval --model ", ["second", "first", "latest", "demo"]),
        ("da3po eval --bench aime2", ["aime24", "aime25", "aime26"]),
        ("da3po eval --bench aime24,ar", ["aime24,arith"]),
        ("da3po eval --template b", ["boxed"]),
        ("da3po report s", ["second", "sweep"]),
        ("da3po runs show f", ["first"]),
        ("da3po config diff demo runs/f", ["runs/first/config.yaml"]),
        ("da3po config show -c d", ["demo"]),
        ("da3po grade --reward d", ["dapo"]),
        ("da3po theory --run l", ["latest"]),
        ("da3po doctor -c qwen3-8", ["qwen3-8b"]),
    ],
)
def test_bash(place: Path, line: str, offers: list[str]) -> None:
    assert bash(place, line) == offers


def test_zsh_shows_what_each_is(place: Path) -> None:
    shown = ask(place, {"_DA3PO_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "da3po train --algo da"})
    assert '"da3po":"' in shown and '"dapo":"' in shown and "grpo" not in shown
    assert '"train.lr="' in ask(
        place, {"_DA3PO_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "da3po train train.lr"}
    )
    shown = ask(place, {"_DA3PO_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "da3po train algo.name=gs"})
    assert '"algo.name=gspo"' in shown  # zsh keeps the word whole


def test_fish(place: Path) -> None:
    env = {
        "_DA3PO_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": "da3po export second@",
    }
    assert [line.split("\t")[0] for line in ask(place, env).splitlines()] == ["second@100", "second@20"]


def test_a_broken_run_costs_its_offers_only(place: Path, tmp_path: Path) -> None:
    (tmp_path / "runs/broken").mkdir(parents=True)
    (tmp_path / "runs/broken/run.json").write_text("{")
    assert bash(tmp_path, "da3po runs show ") == []
    assert bash(tmp_path, "da3po train -c d") == ["demo"]


@pytest.mark.parametrize(("shell", "file"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", ".config/fish")])
def test_installing(tmp_path: Path, shell: str, file: str) -> None:
    """`da3po --install-completion SHELL` writes below HOME; the shell itself need not be here for it."""
    run = subprocess.run(
        [sys.executable, "-m", "da3po_cli", "--install-completion", shell],
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "HOME": str(tmp_path),
            "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert f"{shell} completion installed" in run.stdout
    assert (tmp_path / file).exists()
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert f"_DA3PO_COMPLETE=complete_{shell}" in written


def test_in_a_real_bash(place: Path) -> None:
    """The script that is installed, with the words as bash itself breaks them."""
    script = subprocess.run(
        [sys.executable, "-m", "da3po_cli", "--show-completion", "bash"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
    ).stdout
    assert "_DA3PO_COMPLETE=complete_bash" in script
    (place / "bin").mkdir(exist_ok=True)
    command = place / "bin/da3po"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m da3po_cli "$@"\n')
    command.chmod(0o755)
    typed = f"""
        set -e
        {script}
        COMP_WORDS=(da3po train --algo g); COMP_CWORD=3; COMP_LINE="da3po train --algo g"; COMP_POINT=20
        _da3po_completion da3po; echo "${{COMPREPLY[@]}}"
        COMP_WORDS=(da3po train algo.name = d); COMP_CWORD=4
        _da3po_completion da3po; echo "${{COMPREPLY[@]}}"
    """
    env = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(["bash", "-c", typed], env=env, cwd=place, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["grpo gspo", "da3po dapo dr_grpo"], done.stderr
