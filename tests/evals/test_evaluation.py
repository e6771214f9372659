"""`da3po eval` with the real engine on the shipped demo model: restart, engines, transformers, validation in a run."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from da3po_cli.data.arithmetic import problems as arithmetic_problems
from da3po_cli.evals.result import read_results
from da3po_cli.rewards.arith import grade_arith
from da3po_cli.runs.metrics import read_metrics

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[2] / "da3po_cli" / "demo_model"
MAX_TOKENS = 96


def environment(root: Path) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**clean, "DA3PO_RUNS": str(root), "OMP_NUM_THREADS": "1"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "da3po_cli", *arguments]


def evaluate(root: Path, *arguments: str) -> dict[str, Any]:
    """The result of `da3po eval`, with its samples under `samples`."""
    out = root / "out.json"
    done = subprocess.run(
        command("eval", "--save-samples", f"--out={out}", *arguments),
        env=environment(root),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = read_results(out)
    (directory,) = root.glob(f"evals/*{result['fingerprint']}")
    lines = (directory / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    return {**result, "samples": [json.loads(line) for line in lines], "stdout": done.stdout}


def without_time(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in one.items() if key != "seconds"} for one in samples]


@pytest.fixture(scope="module")
def sampled(tmp_path_factory) -> dict[str, Any]:
    """64 problems x 4 at temperature 1, with two engines on a machine of two cores."""
    root = tmp_path_factory.mktemp("sampled")
    return evaluate(root, "--bench=arith", f"--model={DEMO}", "--limit=64", "--k=4")


def test_every_sample_is_there_in_order(sampled):
    assert [(one["index"], one["sample"]) for one in sampled["samples"]] == [
        (i, n) for i in range(64) for n in range(4)
    ]
    golds = [problem.answer for problem in arithmetic_problems("validation", 64)]
    assert [one["gold"] for one in sampled["samples"][::4]] == golds
    assert all(one["tokens"] > 0 and one["rule"] for one in sampled["samples"])


def test_the_result_follows_from_the_samples(sampled):
    scores = sampled["benches"]["arith"]["scores"]
    right = [one["verdict"] == "correct" for one in sampled["samples"]]
    assert scores["avg@4"]["mean"] == pytest.approx(sum(right) / 256)
    assert scores["pass"]["4"]["mean"] == pytest.approx(sum(any(right[at : at + 4]) for at in range(0, 256, 4)) / 64)
    for one in sampled["samples"]:  # graded again, here
        grade = grade_arith(one["response"], one["finish_reason"], one["gold"])
        assert (grade.verdict, grade.extracted) == (one["verdict"], one["extracted"])
    assert f"{100 * scores['avg@4']['mean']:.2f}" in sampled["stdout"]


def test_an_interrupted_evaluation_goes_on_and_one_engine_samples_what_two_do(sampled, tmp_path):
    """Ctrl-C in the middle, then the same command with another number of engines."""
    arguments = ("--bench=arith", f"--model={DEMO}", "--limit=64", "--k=4")
    first = subprocess.Popen(
        command("eval", "--save-samples", *arguments, "rollout.max_sequences=2", "parallel.data=1"),
        env={**environment(tmp_path), "DA3PO_DEBUG": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    before = wait_for_lines(tmp_path, first, 8)
    os.killpg(first.pid, signal.SIGINT)
    _, said = first.communicate(timeout=120)
    assert first.returncode == 130, said
    assert "the same command goes on from here" in said
    (partial,) = tmp_path.glob("evals/*/partial")
    kept = sum(file.read_bytes().count(b"\n") for file in partial.glob("*.jsonl"))
    assert before <= kept < 256
    second = evaluate(tmp_path, *arguments)
    assert second["samples_of_earlier_attempts"] == kept
    assert second["fingerprint"] == sampled["fingerprint"]
    assert without_time(second["samples"]) == without_time(sampled["samples"])
    assert second["benches"]["arith"]["scores"] == sampled["benches"]["arith"]["scores"]


def wait_for_lines(root: Path, process: subprocess.Popen[str], count: int) -> int:
    """Until this many samples are on disk."""
    for _ in range(6000):
        assert process.poll() is None, process.stderr and process.stderr.read()
        lines = sum(file.read_bytes().count(b"\n") for file in root.glob("evals/*/partial/*.jsonl"))
        if lines >= count:
            return lines
        time.sleep(0.05)
    raise AssertionError("no samples came")


def test_a_benchmark_has_the_same_samples_alone_and_beside_one_with_longer_prompts(tmp_path):
    """A prompt of 480 of the model's 512 tokens leaves 32; the others have their 96 whatever it leaves."""
    short, long = tmp_path / "short.jsonl", tmp_path / "long.jsonl"
    chains = arithmetic_problems("validation", 8)
    short.write_text("".join(json.dumps({"prompt": p.text, "answer": p.answer}) + "\n" for p in chains))
    long.write_text(json.dumps({"prompt": "1+" * 239 + "1=", "answer": "240"}) + "\n")
    how = (f"--model={DEMO}", "--template=none", "--k=2", f"--max-tokens={MAX_TOKENS}", "reward.name=arith")
    alone, beside = evaluate(tmp_path, f"--bench={short}", *how), evaluate(tmp_path, f"--bench={short},{long}", *how)
    of_short = [one for one in beside["samples"] if one["bench"] == "short"]
    assert max(one["tokens"] for one in of_short) > 32
    assert without_time(of_short) == without_time(alone["samples"])
    assert beside["ran"]["max_tokens"] == {"short": [MAX_TOKENS, MAX_TOKENS], "long": [32, 32]}
    assert alone["ran"]["context"] == max(len(p.text) for p in chains) + MAX_TOKENS
    assert beside["ran"]["context"] == 480 + 32
    assert all(one["tokens"] <= 32 for one in beside["samples"] if one["bench"] == "long")


def transformers_responses(prompts: list[str], k: int, *, greedy: bool) -> list[list[tuple[str, str]]]:
    """(text, finish reason) of k responses to each prompt by the plain loop: all logits, pick a token, go on."""
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
    model: Any = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(11)
    found = []
    for prompt in prompts:
        ids = torch.tensor([tokenizer(prompt)["input_ids"]] * k)
        done = torch.zeros(k, dtype=torch.bool)
        start = ids.shape[1]
        lengths = torch.full((k,), MAX_TOKENS)
        for step in range(MAX_TOKENS):
            with torch.no_grad():
                logits = model(ids).logits[:, -1].float()
            chances = torch.softmax(logits, -1)
            picked = logits.argmax(-1, True) if greedy else torch.multinomial(chances, 1, generator=generator)
            ids = torch.cat([ids, picked], 1)
            ending = (picked[:, 0] == tokenizer.eos_token_id) & ~done
            lengths[ending] = step + 1
            done |= ending
            if done.all():
                break
        texts = [
            tokenizer.decode(row[start : start + int(length)], skip_special_tokens=True)
            for row, length in zip(ids, lengths, strict=True)
        ]
        found.append([(text, "stop" if end else "length") for text, end in zip(texts, done.tolist(), strict=True)])
    return found


def test_greedy_responses_are_those_of_transformers(tmp_path):
    """Token for token, for the demo's tokens are characters; and so the same grades."""
    result = evaluate(
        tmp_path, "--bench=arith", f"--model={DEMO}", "--limit=32", "--k=1", "--temperature=0", "parallel.data=1"
    )
    chains = arithmetic_problems("validation", 32)
    expected = transformers_responses([problem.text for problem in chains], 1, greedy=True)
    assert [(one["response"], one["finish_reason"]) for one in result["samples"]] == [one[0] for one in expected]
    right = [grade_arith(*one[0], problem.answer).verdict for one, problem in zip(expected, chains, strict=True)]
    assert [one["verdict"] for one in result["samples"]] == right
    assert 0 < right.count("correct") < 32


def test_sampled_accuracy_is_that_of_transformers(sampled):
    """Both draw from the same distribution: the difference of 256 + 256 samples is below 4 standard errors."""
    chains = arithmetic_problems("validation", 64)
    responses = transformers_responses([problem.text for problem in chains], 4, greedy=False)
    variance = difference = 0.0
    for index, (problem, group) in enumerate(zip(chains, responses, strict=True)):
        theirs = sum(grade_arith(*one, problem.answer).verdict == "correct" for one in group)
        ours = sum(one["verdict"] == "correct" for one in sampled["samples"][4 * index : 4 * index + 4])
        difference += (ours - theirs) / 4 / 64
        p = (ours + theirs + 1) / 10  # with a prior, so that 0 of 8 is not certain
        variance += 2 * p * (1 - p) / 4 / 64**2
    assert abs(difference) < 4 * math.sqrt(variance)


SMALL = [
    "--config=demo",
    "--algo=dapo",
    "--steps=1",
    "rollout.prompts=8",
    "rollout.group_size=4",
    "train.mini_batch_prompts=8",
    "parallel.data=1",
    "checkpoint.every=1",
]


@pytest.mark.long
def test_validation_on_benchmarks_leaves_training_alone_and_eval_repeats_it(tmp_path):
    """A run that validates on two benchmarks trains exactly as one that does not validate at all."""
    held_out = tmp_path / "mine.jsonl"
    chains = arithmetic_problems("validation", 12)
    held_out.write_text("".join(json.dumps({"prompt": p.text, "answer": p.answer}) + "\n" for p in chains))
    for name, more in (
        ("plain", ["validation.every=0"]),
        (
            "watched",
            ["validation.every=1", "validation.prompts=8", "validation.samples=2", f"validation.benches={held_out}"],
        ),
    ):
        done = subprocess.run(
            command("train", *SMALL, f"--name={name}", *more),
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    plain, watched = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("plain", "watched"))
    for key in ("train/loss", "train/grad_norm", "train/acc", "rollout/length"):
        assert watched[-1][key] == plain[-1][key], key
    assert watched[-1]["timing/validate"] > 0
    scores = {key: value for key, value in watched[-1].items() if key.startswith("val/")}
    # the same eight problems under two names, drawn with seeds of their own
    assert {"val/arith/avg@2", "val/mine/avg@2", "val/mine/pass@2", "val/mine/length"} <= set(scores)
    result = evaluate(tmp_path, f"--bench=arith,{held_out}", "--model=watched")
    for name in ("arith", "mine"):
        assert result["benches"][name]["problems"] == 8
        assert result["benches"][name]["scores"]["avg@2"]["mean"] == scores[f"val/{name}/avg@2"]
