"""Saved rollouts that no engine made: every case of the loss in a few small groups."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from da3po_cli.algos.types import Group, Prompt, Response
from da3po_cli.config.models import DEMO_MODEL
from da3po_cli.runs.rollouts import write_rollouts

GROUPS, SIZE, VOCABULARY = 10, 4, 35


def write(directory: Path, *, steps: int = 2, noise: float = 0.3, older: bool = False, size: int = SIZE) -> Path:
    """rollouts/step_N.jsonl of `steps` steps, as a run leaves them. Returns the run's directory.

    Verdicts, lengths and tokens are drawn at random, from a fixed seed: mixed groups with easy and hard prompts among
    them, an answer that could not be judged, groups of one verdict that were dropped, and a log-prob of the engine that
    is off by `noise` (standard deviation, nats).

    Args:
        older: one group of step 2 was sampled in step 1.
    """
    draw, noisy = random.Random(0), torch.Generator().manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(DEMO_MODEL).eval()
    (directory / "rollouts").mkdir(parents=True)
    for step in range(1, steps + 1):
        groups = [_group(model, draw, noisy, step, number, noise, size) for number in range(GROUPS)]
        if older and step > 1:
            groups[-1].step = step - 1
        write_rollouts(directory / "rollouts", step, groups)
    return directory


def _group(model, draw, noisy, step, number, noise, size) -> Group:
    prompt = Prompt(
        f"{step}-{number}", tuple(draw.choices(range(2, VOCABULARY), k=draw.randint(3, 9))), "", "", "x", number
    )
    correct = {0: 0, 1: size}.get(number, draw.randint(1, size - 1))  # the first two carry no signal
    verdicts = draw.sample(["correct"] * correct + ["wrong"] * (size - correct), size)
    if number == 2 and size > 2:
        verdicts = ["unknown", "correct", *["wrong"] * (size - 2)]
    responses = [_response(model, draw, noisy, prompt, verdict, noise) for verdict in verdicts]
    group = Group(prompt, responses, step=step)
    group.drop_reason = {0: "too_hard", 1: "too_easy"}.get(number)
    return group


def _response(model, draw, noisy, prompt, verdict, noise) -> Response:
    tokens = draw.choices(range(2, VOCABULARY), k=draw.randint(1, 24))
    ids = torch.tensor([[*prompt.token_ids, *tokens]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt.token_ids) - 1 : -1]
    exact = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt.token_ids) :, None])[:, 0]
    seen = (exact + noise * torch.randn(exact.shape, generator=noisy)).tolist()
    acc = int(verdict == "correct")
    return Response(tokens, seen, "", "stop", verdict, acc, float(2 * acc - 1))
