"""The command line called in this process, and what it is called on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from da3po_cli import main
from da3po_cli.config.load import load_config
from da3po_cli.runs.directory import RunDir

MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 4096,
}


class Cli:
    """Calls the command line in a directory of its own."""

    def __init__(self, capsys: pytest.CaptureFixture[str], runs: Path) -> None:
        self.capsys = capsys
        self.runs = runs

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = main.execute(main.normalise(list(arguments)))
        captured = self.capsys.readouterr()
        return code, captured.out, captured.err


def saved_run(cli: Cli, name: str, *steps: int) -> RunDir:
    run = RunDir(cli.runs / name)
    config = load_config(["demo"], ["model.path=model", "parallel.data=1", "train.epochs=3"], None, {}).config
    from da3po_cli.config.load import dump

    run.create(dump(config), "hash", ["da3po", "train"])
    for step in steps:
        (run.checkpoints / f"step_{step}").mkdir(parents=True)
        (run.checkpoints / f"step_{step}" / "state.json").write_text(json.dumps({"step": step}))
    return run
