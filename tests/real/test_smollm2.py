"""SmolLM2-135M-Instruct (a Llama: 9 heads, 3 key/value heads, tied), end to end on a CPU: load, train, export, reload.

The expected values are those of transformers on the same files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.slow]

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
BOUND = 2e-3  # nats: 30 layers in float32 that add in another order
PROMPTS = [
    "The capital of France is Paris, and the capital of Italy is Rome.",
    "2 + 3 = 5\n4 + 1 = 5\n7 + 2 = 9\n6 + 5 = 11\n12 + 7 = 19\n",
    "<|im_start|>user\nWhat is 17 + 25?<|im_end|>\n<|im_start|>assistant\nIt is 42.<|im_end|>\n",
    "Question: A farmer has 12 cows and buys 7 more. How many cows does he have now? Answer: 19",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 3))  # 5\n",
    "Once upon a time there was a small dragon who could not breathe fire.",
    "Water boils at 100 degrees Celsius at sea level and at a lower temperature in the mountains.",
    "Let $x^2 - 5x + 6 = 0$. Then $(x - 2)(x - 3) = 0$, so $x = 2$ or $x = 3$.",
    "El perro corre por el parque mientras los niños juegan al fútbol.",
    "Die Katze schläft auf dem Sofa, während es draußen regnet.",
    "SELECT name, COUNT(*) FROM orders WHERE price > 10 GROUP BY name ORDER BY 2 DESC;",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144",
    "The quick brown fox jumps over the lazy dog. " * 6,
    "A triangle with sides 3, 4 and 5 has a right angle; its area is 6.",
    '{"name": "Ada", "born": 1815, "languages": ["English", "French"], "alive": false}',
    "Dear Sir or Madam,\n\nI am writing to complain about the noise from the building site.\n\nYours faithfully",
    "Photosynthesis turns carbon dioxide and water into sugar and oxygen with the energy of light.",
    "If all cats are animals and some animals are black, it does not follow that some cats are black.",
    "😀 Emoji, ünïcödé, 漢字 and\ttabs\tare bytes too.",
    'He said: "I\'ll be back at 5:30 p.m.", but it was already 6:45.',
]


@pytest.fixture(scope="module")
def sequences(model: Path) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return [tokenizer.encode(text) for text in PROMPTS]


def transformers_logprobs(directory: Path, sequences: list[list[int]]) -> list[Any]:
    """Per sequence, log-probs [L - 1] of all tokens but the first, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    found = []
    for ids in sequences:
        with torch.no_grad():
            table = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1], dim=-1)
        found.append(table.gather(1, torch.tensor(ids[1:])[:, None])[:, 0])
    return found


def run(command: list[str], **environment: str) -> str:
    """Stdout of a command that must succeed."""
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    hidden = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    clean = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run(
        command, env={**clean, "PYTHONPATH": path, **environment}, capture_output=True, text=True, timeout=3000
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def policy_logprobs(sequences: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Any]]:
    """policy_logprobs(model, tensor, checkpoint=None): those of the policy on `tensor` ranks."""
    import torch

    scratch = tmp_path_factory.mktemp("policy")
    torch.save(sequences, scratch / "sequences.pt")

    def score(model: Path, tensor: int, checkpoint: Path | None = None) -> list[Any]:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={tensor}"]
        files = [str(model), str(scratch / "sequences.pt"), str(scratch / "result.pt")]
        files += [] if checkpoint is None else [str(checkpoint)]
        run([*torchrun, str(HERE / "world.py"), *files], OMP_NUM_THREADS="1")
        return torch.load(scratch / "result.pt")

    return score


def largest_gap(left: list[Any], right: list[Any]) -> float:
    assert len(left) == len(right) == len(PROMPTS)
    return max(float((one - other).abs().max()) for one, other in zip(left, right, strict=True))


@pytest.mark.parametrize("tensor", [1, 3])
def test_log_probs_equal_those_of_transformers(
    model: Path, sequences: list[list[int]], policy_logprobs: Any, tensor: int, figure: Any
) -> None:
    start = time.monotonic()
    gap = largest_gap(policy_logprobs(model, tensor), transformers_logprobs(model, sequences))
    tokens = sum(len(ids) - 1 for ids in sequences)
    seconds = time.monotonic() - start
    figure(f"log-probs of {tokens} tokens at TP {tensor}: largest gap {gap:.1e} nats, {seconds:.0f} s with the start")
    assert gap < BOUND


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory, figure: Any) -> Path:
    """The run of `da3po train -c smollm2-135m --steps 2`."""
    runs = tmp_path_factory.mktemp("runs")
    start = time.monotonic()
    arguments = ["train", "-c", "smollm2-135m", "--model", str(model), "--steps", "2", "--name", "two"]
    run([sys.executable, "-m", "da3po_cli", *arguments], DA3PO_RUNS=str(runs))
    figure(f"two training steps: {time.monotonic() - start:.0f} s with the start and two validations")
    return runs / "two"


def test_two_steps_train(trained: Path, figure: Any) -> None:
    records = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 1, 2]
    for record in records[1:]:
        assert record["sample/kept"] == 8  # groups with right and wrong answers: dynamic sampling found enough
        assert 0 < record["train/acc"] < 1
        assert record["train/rollout_gap"] < 1e-4
        assert 0 < record["train/grad_norm"] < 1e3
        shown = ("train/acc", "train/grad_norm", "sample/generated", "train/rollout_gap", "sync/seconds", "timing/step")
        figure(f"step {record['step']}: " + ", ".join(f"{name} {record[name]:.3g}" for name in shown))


def test_export_and_reload(
    trained: Path, model: Path, sequences: list[list[int]], policy_logprobs: Any, tmp_path: Path, figure: Any
) -> None:
    """Trainer, export read by the trainer, export read by transformers: one model, and not the one it began as."""
    import torch

    start = time.monotonic()
    arguments = ["export", str(trained), str(tmp_path / "hf"), "--dtype", "fp32", "--verify"]
    run([sys.executable, "-m", "da3po_cli", *arguments])
    seconds = time.monotonic() - start
    checkpoint = trained / "checkpoints" / "step_2" / "policy"
    trainer = policy_logprobs(model, 1, checkpoint)
    assert all(map(torch.equal, trainer, policy_logprobs(tmp_path / "hf", 1)))
    gap = largest_gap(trainer, transformers_logprobs(tmp_path / "hf", sequences))
    moved = largest_gap(trainer, transformers_logprobs(model, sequences))
    figure(f"export with --verify: {seconds:.0f} s; reloaded in transformers: largest gap {gap:.1e} nats")
    figure(f"two steps moved the log-probs by up to {moved:.1e} nats")
    assert gap < BOUND < moved
