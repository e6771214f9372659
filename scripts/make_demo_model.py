"""Rebuild da3po_cli/demo_model: a character tokenizer and a tiny Qwen3 pretrained on noisy worked solutions.

    OMP_NUM_THREADS=1 python scripts/make_demo_model.py --seed 0

Measured on one x86_64 core: 823 seconds for 2,000 steps of 64 examples (8,200 tokens/s); sampled accuracy on 256
held-out problems at temperature 1: 0.32. Deterministic by seed on one machine with one thread.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from da3po_cli.data.arithmetic import MAX_STEPS, Problem, draw, held_out, problems
from da3po_cli.rewards.arith import final_result

OUT = Path(__file__).resolve().parents[1] / "da3po_cli" / "demo_model"
PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
BUCKET = 8  # batches sorted by length together, so that little of a batch is padding
CLEAN_SHARE = 0.6  # of the steps on solutions without errors: sums are learnt much faster from those
IGNORED = -100


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character: three special tokens, newline, tab and printable ASCII; 100 in all."""
    characters = ["\n", "\t", *(chr(code) for code in range(32, 127))]
    vocab = {token: index for index, token in enumerate([PAD, EOS, UNK, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """0.8 M parameters; heads, KV heads, layers and vocabulary divide by two, for tensor and pipeline parallel runs."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def training_problem(rng: random.Random) -> Problem:
    """A problem that is not held out, of any length."""
    while True:
        problem = draw(rng, rng.randint(1, MAX_STEPS))
        if not held_out(problem.text):
            return problem


def batches(
    tokenizer: PreTrainedTokenizerFast, size: int, clean: int, rng: random.Random
) -> Iterator[dict[str, torch.Tensor]]:
    """Endless padded batches, of solutions without errors for the first `clean` batches, then with.

    The loss is on the response and its end token only. Tensors are int64 [size, length].
    """
    vocab = tokenizer.get_vocab()
    for round_number in itertools.count():
        rows: list[tuple[list[int], int]] = []
        for _ in range(size * BUCKET):
            problem = training_problem(rng)
            text = problem.text + (problem.solution if round_number * BUCKET < clean else problem.noisy_solution(rng))
            rows.append(([*(vocab[character] for character in text), tokenizer.eos_token_id], len(problem.text)))
        rows.sort(key=lambda row: len(row[0]))
        groups = [rows[start : start + size] for start in range(0, len(rows), size)]
        rng.shuffle(groups)
        for group in groups:
            length = max(len(ids) for ids, _ in group)
            tokens = torch.full((size, length), tokenizer.pad_token_id)
            labels = torch.full((size, length), IGNORED)
            for row, (ids, prompt) in enumerate(group):
                tokens[row, : len(ids)] = torch.tensor(ids)
                labels[row, prompt : len(ids)] = torch.tensor(ids[prompt:])
            yield {"input_ids": tokens, "attention_mask": (tokens != tokenizer.pad_token_id).long(), "labels": labels}


def pretrain(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, args: argparse.Namespace) -> None:
    """AdamW, linear warm-up over 5 % of the steps, then a cosine to 2 % of the peak rate."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01)
    warmup = max(1, args.steps // 20)

    def rate(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, args.steps - warmup)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    stream = batches(tokenizer, args.batch, int(args.steps * CLEAN_SHARE), random.Random(f"pretrain-{args.seed}"))
    started, tokens = time.perf_counter(), 0
    for step in range(args.steps):
        batch = next(stream)
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        tokens += batch["input_ids"].numel()
        if step % 50 == 0 or step == args.steps - 1:
            seconds = time.perf_counter() - started
            print(
                f"step {step} loss {loss.item():.4f} tokens/s {tokens / seconds:.0f} seconds {seconds:.0f}", flush=True
            )


@torch.inference_mode()
def accuracy(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, chains: list[Problem], samples: int
) -> list[float]:
    """Share of right answers among `samples` at temperature 1, per problem."""
    model.eval()
    tokenizer.padding_side = "left"
    inputs = tokenizer([chain.text for chain in chains], return_tensors="pt", padding=True)
    output = model.generate(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        do_sample=True,
        top_k=0,
        max_new_tokens=72,
        num_return_sequences=samples,
    )
    texts = tokenizer.batch_decode(output[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    right = [final_result(text) == chains[row // samples].answer for row, text in enumerate(texts)]
    return [sum(right[row : row + samples]) / samples for row in range(0, len(right), samples)]


def report(chains: list[Problem], rates: list[float]) -> None:
    """Print the spread of pass rates over the held-out problems."""
    by_length: dict[int, list[float]] = {}
    for chain, rate in zip(chains, rates, strict=True):
        by_length.setdefault(len(chain.terms), []).append(rate)
    deciles = [sum(int(rate * 10) == decile for rate in rates) for decile in range(11)]
    print(f"held-out accuracy at temperature 1: {sum(rates) / len(rates):.3f}")
    print("by length:", " ".join(f"{length}:{sum(some) / len(some):.2f}" for length, some in sorted(by_length.items())))
    print("problems per decile of pass rate, 0.0 to 1.0:", *deciles)


def main() -> None:
    parser = argparse.ArgumentParser(description="Pretrain the demo model and write it as a Hugging Face directory.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=64, help="examples per step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    print(f"{sum(parameter.numel() for parameter in model.parameters())} parameters")
    pretrain(model, tokenizer, args)

    model.to(torch.bfloat16).save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id).save_pretrained(args.out)
    for file in args.out.iterdir():
        file.chmod(0o644)  # safetensors writes files that only their owner can read
    shipped = Qwen3ForCausalLM.from_pretrained(args.out, dtype=torch.float32)
    chains = problems("validation", 200)
    report(chains, accuracy(shipped, tokenizer, chains, 32))


if __name__ == "__main__":
    main()
