"""`da3po export --verify`: the files against the policy that the trainer would go on with.

The policy is the independent witness: Megatron loads the checkpoint by its own code, with the optimizer, on one rank.
Its stream of Hugging Face tensors (what a run pushes to vLLM) must equal the files bit for bit after the same rounding,
and its log-probs of fixed texts those of transformers on the files.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from da3po_cli.algos.types import MicroBatch
from da3po_cli.config.schema import Config
from da3po_cli.errors import GateError

EXACT_BOUND = 1e-5
"""Largest difference of a log-prob, for every four layers, when the trainer computes in float32 and the files hold all
its bits: rounding errors add up over the layers. Measured: 6e-6 with 4 layers, 3.4e-5 with 30 (SmolLM2-135M)."""
ROUNDED_BOUND = 0.05
"""Mean difference when either side is bfloat16 or float16: 8 bits of mantissa in every weight or activation. Measured:
0.013 (SmolLM2-135M)."""
_TEXTS = (
    "47+8-16=?47+8=55,55-16=39",
    "Natalia sold 48 clips in April and half as many in May. In total she sold 48 + 24 = 72 clips.",
    "Let $x^2 - 5x + 6 = 0$. Then $(x - 2)(x - 3) = 0$, so the answer is \\boxed{3}.",
)
_IDS = 48  # tokens of the row that needs no tokenizer


@dataclass(frozen=True)
class Verification:
    """Differences |a - b| / max(1, |b|) between log-probs of the trainer, a, and of transformers, b."""

    largest: float
    mean: float
    tokens: int
    bound: float  # of `largest` if exact, else of `mean`
    exact: bool

    @property
    def passed(self) -> bool:
        return (self.largest if self.exact else self.mean) <= self.bound

    def __str__(self) -> str:
        bound = f"largest may be {self.bound:.1e}" if self.exact else f"average may be {self.bound:g}: rounded weights"
        return f"{self.tokens} log-probs differ by {self.largest:.2e} at most, {self.mean:.2e} on average ({bound})"


def verify(config: Config, policy_dir: Path, source: Path, out: Path, say: Callable[[str], None]) -> Verification:
    """Compare the export `out` of the checkpoint in `policy_dir` with the trainer's policy.

    Raises:
        GateError: a tensor or the log-probs differ.
    """
    from transformers import AutoConfig

    facts = AutoConfig.from_pretrained(out)
    rows, layers = token_rows(out, facts.vocab_size), facts.num_hidden_layers
    say("verifying: loading the checkpoint into Megatron ...")
    trainer, lossless = _trainer(config, policy_dir, source, out, rows)
    gc.collect()  # one model in memory at a time
    say("verifying: loading the export into transformers ...")
    other = torch.cat(transformers_logprobs(out, rows)).double()
    gap = (trainer.double() - other).abs() / other.abs().clamp(min=1.0)
    exact = lossless and config.model.dtype == "float32"
    bound = EXACT_BOUND * max(1.0, layers / 4) if exact else ROUNDED_BOUND
    result = Verification(float(gap.max()), float(gap.mean()), gap.numel(), bound, exact)
    if not result.passed:
        raise GateError(f"verification failed: {result}", where=str(policy_dir), hint="report this as a bug")
    return result


def _trainer(config: Config, policy_dir: Path, source: Path, out: Path, rows: list[list[int]]) -> tuple[Tensor, bool]:
    """The log-probs of the trainer's policy, and whether the files hold every bit of its weights."""
    from megatron_bridge import build_policy
    from megatron_bridge.parallel import initialize

    parallel = initialize(1, 1, config.run.seed)
    try:
        policy = build_policy(
            source,
            dtype=config.model.dtype,
            parallel=parallel,
            train=config.train,
            temperature=1.0,
            seed=config.run.seed,
        )
        policy.load(policy_dir)
        lossless = _compare_tensors(policy.iter_hf_weights(include_tied_head=False), out)
        logprobs = policy.logprobs([_batch(row) for row in rows])
        return torch.cat([line[0, : len(row) - 1] for line, row in zip(logprobs, rows, strict=True)]), lossless
    finally:
        parallel.shutdown()


def _compare_tensors(weights: Iterable[tuple[str, Tensor]], out: Path) -> bool:
    """Whether the files hold every bit of the weights; in any case they must hold them rounded to their dtype.

    Raises:
        GateError: names the tensor that they do not.
    """
    lossless = True
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(str(file), framework="pt")) for file in out.glob("*.safetensors")]
        of_name = {name: file for file in files for name in file.keys()}  # noqa: SIM118  (not a dict)
        for name, tensor in weights:
            value = tensor.detach().cpu()
            written: Tensor = of_name[name].get_tensor(name)
            if not torch.equal(written, value.to(written.dtype)):
                raise GateError(
                    f"verification failed: {name} is not what the trainer holds", hint="report this as a bug"
                )
            lossless &= torch.equal(written.to(value.dtype), value)
    return lossless


def token_rows(out: Path, vocabulary: int) -> list[list[int]]:
    """Fixed texts as the model's tokenizer cuts them, if it has one, and a row of ids from all over the vocabulary."""
    from transformers import AutoTokenizer

    rows = [[(7919 * position + 1) % vocabulary for position in range(_IDS)]]
    if any(out.glob("tokenizer*")):
        tokenizer: Any = AutoTokenizer.from_pretrained(out)
        rows += [tokenizer(text)["input_ids"] for text in _TEXTS]
    return [row for row in rows if len(row) > 1]


def _batch(row: list[int]) -> MicroBatch:
    """One sequence of which every token but the first is scored."""
    tokens = torch.tensor([row])
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[0, -1] = False
    return MicroBatch(tokens, tokens.roll(-1, 1) * mask, mask, torch.zeros(1), torch.zeros(tokens.shape))


@torch.no_grad()
def transformers_logprobs(directory: Path, rows: list[list[int]]) -> list[Tensor]:
    """Log-prob of every token but the first of each row, computed in float32 on the CPU."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    found = []
    for row in rows:
        ids = torch.tensor(row)
        table = torch.log_softmax(model(ids[None]).logits[0, :-1].float(), dim=-1)
        found.append(table.gather(1, ids[1:, None])[:, 0])
    return found
