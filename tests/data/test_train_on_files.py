"""The public training rows with the demo: every file as far as its stream, two of them through a training step."""

from __future__ import annotations

import string
from dataclasses import replace
from pathlib import Path

import here
import pytest
from transformers import AutoTokenizer

from da3po_cli.config.models import DEMO_MODEL
from da3po_cli.config.schema import DataConfig
from da3po_cli.data.formats import load_rows
from da3po_cli.data.prompts import open_stream
from da3po_cli.runs.metrics import read_metrics

SHARED = Path(__file__).resolve().parents[3] / "shared" / "train_data"
FILES = sorted(file for file in SHARED.glob("*") if file.suffix in (".parquet", ".jsonl"))
INSIDE = {"prompt_key": "row.prompt", "answer_key": "row.reward_model.ground_truth"}  # of raw_rows_as_stored.jsonl
LIMIT = 400  # tokens, which are characters here; the model has 512 positions
KNOWN = (set(string.printable) - set("\r\x0b\x0c")) | {"\n", "\t"}

pytestmark = pytest.mark.skipif(not FILES, reason="the public training rows are not beside this checkout")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_demo_can_draw_from_every_file(file: Path) -> None:
    keys = INSIDE if file.name.startswith("raw_rows") else {}
    data = replace(DataConfig(train=str(file), template="none", max_prompt_tokens=LIMIT), **keys)
    stream = open_stream(data, AutoTokenizer.from_pretrained(DEMO_MODEL), "train", 0)
    texts = [row.messages[-1]["content"] for row in load_rows(str(file), "train", **keys).rows]
    short = [text for text in texts if len(text) <= LIMIT]
    expected = [text for text in short if set(text) <= KNOWN]
    assert [prompt.text for prompt in stream.all()] == expected != []
    dropped = stream.dropped.counts
    assert dropped.get("overlong", 0) == len(texts) - len(short)
    assert dropped.get("unknown_token", 0) == len(short) - len(expected)
    drawn = stream.next(2 * len(stream))
    assert len({prompt.uid for prompt in drawn}) == 2 * len(stream)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["asdiv_400.jsonl", "gsm8k_verl_500.parquet"])
def test_a_step_of_the_demo_on_a_file(name: str, tmp_path: Path, kept_engine: None) -> None:
    """The model is far too small for these problems: every group fails, and dynamic sampling would drop it."""
    command = [
        *("--config=demo", f"--dataset={SHARED / name}", "--steps=1", "--name=run", "parallel.data=1"),
        *("reward.name=math", f"data.max_prompt_tokens={LIMIT}", "algo.dynamic_sampling=false", "validation.every=0"),
        *("rollout.prompts=4", "rollout.group_size=2", "train.mini_batch_prompts=4"),
    ]
    said = here.train(tmp_path, *command)
    (record,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert record["step"] == 1 and record["sample/generated"] == 4
    assert "overlong" in said, "what was left out is said"
