"""What the ranks of a spawned world do: `torchrun engines.py JOB MODELS RESULTS`; the tests look at RESULTS."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from da3po_cli.algos.batching import collate, denominators
from da3po_cli.algos.losses import policy_loss
from da3po_cli.algos.table import ALGORITHMS
from da3po_cli.algos.types import Group, MicroBatch, Prompt, Trajectory
from da3po_cli.config.schema import RolloutConfig, TrainConfig
from da3po_cli.errors import Da3poError
from da3po_cli.protocols import Sampling
from da3po_cli.rollouts.engine import VllmGenerator
from da3po_cli.rollouts.sync import VllmSync
from megatron_bridge.parallel import Parallel, initialize

EOS, MAX_TOKENS, MAX_PROMPT = 2, 24, 16
CONTEXT = 12  # of prompts with 5 to 9 tokens and their responses, where that is less than MAX_TOKENS
PROMPTS = [
    Prompt(uid=f"p{i}", token_ids=(1, *(3 + (5 * i + 3 * j) % 17 for j in range(4 + i % 5))), text="", answer="",
           source="test", index=i)
    for i in range(6)
]  # fmt: skip
PROBE = [list(prompt.token_ids) for prompt in PROMPTS]


class Plain:
    """A weight source that is a transformers model on one rank: an independent trainer."""

    def __init__(self, directory: Path, temperature: float = 1.0) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self.temperature = temperature

    def iter_hf_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.model.named_parameters()
        if self.model.config.tie_word_embeddings:
            yield "lm_head.weight", self.model.lm_head.weight

    def table(self, batch: MicroBatch, temperature: float | None = None) -> torch.Tensor:
        """Log-probs of all tokens at all positions, [B, S, V]."""
        with torch.no_grad():
            return (self.model(batch.tokens).logits / (temperature or self.temperature)).log_softmax(-1)

    def logprobs(self, batches: Sequence[MicroBatch], *, temperature: float | None = None) -> list[torch.Tensor]:
        return [
            torch.where(one.mask, self.table(one, temperature).gather(-1, one.targets[..., None])[..., 0], 0.0)
            for one in batches
        ]


ENGINES: list[VllmGenerator] = []  # an engine that is collected takes vLLM's process groups down for all


# two thirds of it fill a block of the KV cache, 128 tokens on a CPU
LONG = Prompt("long", (1, *(3 + (5 * j) % 17 for j in range(199))), text="", answer="", source="test", index=9)
LONG_PROMPT = 256  # from here on prefixes are cached on a CPU


def engine(directory: Path, comm: Parallel, max_prompt: int = MAX_PROMPT, **rollout: Any) -> VllmGenerator:
    one = VllmGenerator(
        directory,
        rollout=RolloutConfig(**{"max_tokens": MAX_TOKENS, "max_sequences": 16, **rollout}),
        dtype="float32",
        seed=0,
        max_prompt_tokens=max_prompt,
        stop_token_ids=[EOS],
        comm=comm,
    )
    ENGINES.append(one)
    return one


def raised(call: Any) -> tuple[str, str, str | None]:
    """(class, message, hint) of the error that `call` must raise."""
    try:
        call()
    except Da3poError as error:
        return type(error).__name__, error.message, error.hint
    raise AssertionError("no error")


def verdict(sync: VllmSync, trainer: Plain, groups: Sequence[Group]) -> tuple[str, str, str | None] | None:
    """What the check of an update on these rollouts says: nothing, or (class, message, hint) of its error."""
    trajectories = [
        Trajectory(group.prompt.token_ids, one.token_ids, one.logprobs, 0.0)
        for group in groups
        for one in group.responses
    ]
    batch = collate(trajectories, range(len(trajectories)))
    table = trainer.table(batch)
    (logp,) = trainer.logprobs([batch])
    entropy = -(table.exp() * table).sum(-1)
    counts = denominators(trajectories, MAX_TOKENS)
    _, sums = policy_loss(logp, batch, ALGORITHMS["dapo"].defaults, counts, tis=False, entropy=entropy)
    try:
        sync.check({name: value.item() for name, value in sums.items()}, [batch], "step 1, update 1")
    except Da3poError as error:
        return type(error).__name__, error.message, error.hint
    return None


def swapped(trainer: Plain) -> Plain:
    """The same with the MLPs of its two layers exchanged: every tensor has arrived, and under a wrong name."""
    one, two = (layer.mlp.down_proj.weight for layer in trainer.model.model.layers)
    with torch.no_grad():
        kept = one.clone()
        one.copy_(two)
        two.copy_(kept)
    return trainer


def scale(parameters: Any, seed: int) -> None:
    """Change every weight by a few percent."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for param in parameters:
            param.mul_(1 + 0.1 * torch.rand(()))


def one_rank(comm: Parallel, models: Path) -> dict[str, Any]:
    threads, environment, state = torch.get_num_threads(), dict(os.environ), torch.get_rng_state()
    generator = engine(models / "qwen3", comm)
    out: dict[str, Any] = {}
    rank_variables = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LD_PRELOAD", "OMP_NUM_THREADS")
    kept = {name: os.environ.get(name) for name in rank_variables}
    out["environment"] = (kept, {name: environment.get(name) for name in rank_variables})
    torch.set_num_threads(threads)

    plain = Plain(models / "qwen3")
    sync = VllmSync(plain, generator, PROBE, max_gap=1e-4)
    out["reports"] = [sync.push()]
    out["gaps"] = [sync.probe_gap()]
    out["groups"] = generator.generate(PROMPTS, Sampling(n=8, max_tokens=MAX_TOKENS, seed=5))
    out["again"] = generator.generate(PROMPTS, Sampling(n=8, max_tokens=MAX_TOKENS, seed=5))
    out["alone"] = generator.generate(PROMPTS[4:5], Sampling(n=8, max_tokens=MAX_TOKENS, seed=5))
    out["seed 6"] = generator.generate(PROMPTS, Sampling(n=8, max_tokens=MAX_TOKENS, seed=6))
    steps: list[tuple[int, int]] = []
    out["cool"] = generator.generate(
        PROMPTS, Sampling(n=8, max_tokens=MAX_TOKENS, temperature=0.7), progress=lambda *step: steps.append(step)
    )
    out["progress"] = steps
    out["first tokens"] = generator.generate(PROMPTS[:1], Sampling(n=2048, max_tokens=1, temperature=0.7))
    out["greedy"] = generator.generate(PROMPTS, Sampling(n=1, max_tokens=MAX_TOKENS, temperature=0.0))
    sequences = [list(group.prompt.token_ids) + group.responses[0].token_ids for group in out["groups"]]
    out["scores"] = generator.score(sequences)
    cool = Plain(models / "qwen3", temperature=0.7)
    out["verdicts"] = {
        "sound": verdict(sync, plain, out["groups"]),
        "sound at 0.7": verdict(_pushed(cool, generator), cool, out["cool"]),
        "sampled at 0.7, scored at 1": verdict(sync, plain, out["cool"]),
        "sampled at 1, scored at 0.7": verdict(_pushed(cool, generator), cool, out["groups"]),
        "swapped": verdict(_pushed(other := Plain(models / "qwen3"), generator), swapped(other), out["groups"]),
    }
    out["random state"] = (state, torch.get_rng_state())

    narrow = Sampling(n=8, max_tokens=MAX_TOKENS, seed=5, context=CONTEXT)
    out["narrow"] = generator.generate(PROMPTS, narrow)
    asked = [(prompt, number, narrow) for prompt in PROMPTS for number in range(8)]
    out["narrow, streamed"] = dict(pair for pairs in generator.stream(asked) for pair in pairs)
    # longer than the prompts that the engine was built for, in the room of the responses
    long = Prompt("long", tuple(3 + place % 17 for place in range(MAX_PROMPT + MAX_TOKENS - 3)), "", "", "", 0)
    out["long"] = generator.generate([long], Sampling(n=8, max_tokens=3))
    wide = MAX_PROMPT + MAX_TOKENS - max(map(len, PROBE)) + 1
    out["errors"] = {
        "prompt": raised(lambda: generator.generate([long], Sampling(n=1, max_tokens=4))),
        "response": raised(lambda: generator.generate(PROMPTS, Sampling(n=1, max_tokens=wide))),
        "streamed": raised(lambda: list(generator.stream([(long, 0, Sampling(n=1, max_tokens=4))]))),
        "engines": raised(lambda: engine(models / "qwen3", comm, tensor=3)),
        "context": raised(lambda: engine(models / "qwen3", comm, max_tokens=4096)),
        "probe": raised(lambda: VllmSync(plain, generator, [[1]], max_gap=1.0)),
        # a trainer whose weights are not those it sends
        "gap": raised(VllmSync(_Liar(models / "qwen3"), generator, PROBE, max_gap=0.005).push),
    }
    scale(plain.model.parameters(), seed=1)
    plain.temperature = 0.7
    out["verdicts"]["stale"] = verdict(sync, plain, out["cool"])
    out["reports"].append(sync.push())
    out["gaps"].append(sync.probe_gap())
    out["changed"] = generator.generate(PROMPTS, Sampling(n=8, max_tokens=MAX_TOKENS, temperature=0.7, seed=5))
    out["changed weights"] = {name: weight.clone() for name, weight in plain.model.state_dict().items()}
    with torch.no_grad():
        plain.model.model.norm.weight.fill_(float("nan"))
    out["errors"]["nan"] = raised(VllmSync(plain, generator, PROBE, max_gap=1e-4).push)
    out["nan"] = generator.generate(PROMPTS[:1], Sampling(n=2, max_tokens=4))
    for name in ("qwen3-tied", "qwen2-tied", "llama"):
        other = Plain(models / name, temperature=0.7 if name == "llama" else 1.0)
        target = VllmSync(other, engine(models / name, comm), PROBE, max_gap=1e-4)
        target.push()
        before = target.probe_gap()
        scale(other.model.parameters(), seed=2)
        report = target.push()
        out[name] = [before, target.probe_gap(), report, sum(param.nbytes for param in other.model.parameters())]
    out["prefixes"] = prefixes(comm, models)
    return out


def prefixes(comm: Parallel, models: Path) -> list[tuple[dict[str, torch.Tensor], Any]]:
    """Weights and a group with them, before and after a change: the samples of a prompt share its first block."""
    plain, generator, out = Plain(models / "qwen3"), engine(models / "qwen3", comm, LONG_PROMPT), []
    sync = VllmSync(plain, generator, PROBE, max_gap=1e-4)
    for seed in (1, 2):
        sync.push()
        weights = {name: weight.clone() for name, weight in plain.model.state_dict().items()}
        out.append((weights, generator.generate([LONG], Sampling(n=4, max_tokens=MAX_TOKENS, seed=seed))))
        scale(plain.model.parameters(), seed=3)
    return out


# prompts that fill most of a block of the KV cache, 128 tokens on a CPU: their responses need a second one
CROWD = [
    Prompt(f"c{i}", (1, *(3 + (7 * i + 5 * j) % 17 for j in range(107 + i % 9))), "", "", "test", i) for i in range(24)
]
UNUSUAL: dict[str, dict[str, int]] = {
    "usual": {},
    "prompts in pieces": {"max_num_batched_tokens": 64},
    "too little memory": {"kv_cache_memory_bytes": 8 * 128 * 2 * 2 * 2 * 32 * 4},  # blocks, tokens, layers, heads, K/V
}


def crowded(comm: Parallel, models: Path) -> dict[str, Any]:
    """Responses of the same samples by engines that schedule them in other ways, and how often one made room."""
    import vllm
    from vllm.v1.core.sched.scheduler import Scheduler

    made_room: list[str] = []
    usual, preempt = vllm.LLM, Scheduler._preempt_request

    def counted(*given: Any, **named: Any) -> Any:
        made_room.append("once more")
        return preempt(*given, **named)

    Scheduler._preempt_request = counted
    plain, out = Plain(models / "qwen3"), {}
    for name, options in UNUSUAL.items():
        vllm.LLM = lambda options=options, **given: usual(**(given | options))
        made_room.clear()
        generator = engine(models / "qwen3", comm, 200)
        VllmSync(plain, generator, PROBE, max_gap=1e-4).push()
        for temperature, top_p in ((1.0, 1.0), (0.9, 0.8)):
            how = Sampling(n=2, max_tokens=MAX_TOKENS, seed=5, temperature=temperature, top_p=top_p)
            out[name, temperature] = generator.generate(CROWD, how)
            reverse = generator.generate(CROWD[::-1], how)[::-1]
            out[name, temperature, "reversed"] = reverse
        out[name] = len(made_room)
    return out


def _pushed(trainer: Plain, generator: VllmGenerator) -> VllmSync:
    """A sync whose probe found what rounding is."""
    sync = VllmSync(trainer, generator, PROBE, max_gap=1e-4)
    sync.push()
    return sync


class _Liar(Plain):
    """Sends weights that it does not use."""

    def iter_hf_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in super().iter_hf_weights():
            yield name, tensor * 1.5 if "o_proj" in name else tensor


def two_ranks(models: Path, training: int, rollout: int) -> dict[str, Any]:
    """A Megatron policy with tensor-parallel size `training`, engines of size `rollout`."""
    from megatron_bridge import build_policy

    comm = initialize(training, 1, seed=1)
    out: dict[str, Any] = {}
    for name in ("qwen3", "qwen3-tied"):
        policy = build_policy(
            models / name, dtype="float32", parallel=comm, train=TrainConfig(), temperature=1.0, seed=1
        )
        generator = engine(models / name, comm, tensor=rollout)
        sync = VllmSync(policy, generator, PROBE, max_gap=1e-4)
        sync.push()
        gaps = [sync.probe_gap()]
        groups = generator.generate(PROMPTS, Sampling(n=8, max_tokens=MAX_TOKENS, seed=5))
        odd = generator.generate(PROMPTS[:1], Sampling(n=1, max_tokens=MAX_TOKENS, seed=5))
        scale(policy.chunks[0].parameters(), seed=1)
        sync.push()
        gaps.append(sync.probe_gap())
        changed = generator.generate(PROMPTS, Sampling(n=8, max_tokens=MAX_TOKENS, seed=5))
        weights = {key: tensor.clone() for key, tensor in policy.iter_hf_weights()}
        seen = comm.gather([gaps, groups, odd, changed])
        assert all(one == seen[0] for one in seen), f"{name}: ranks differ"
        out[name] = dict(gaps=gaps, groups=groups, odd=odd, changed=changed, weights=weights)
    return out


def main() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    job, models, results = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if job == "one":
        out = one_rank(initialize(1, 1, seed=1), models)
    elif job == "crowded":
        out = crowded(initialize(1, 1, seed=1), models)
    else:
        out = two_ranks(models, *(int(size) for size in job.split("x")))
    if dist.get_rank() == 0:
        torch.save(out, results)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # vLLM's and torch's destructors run in an order that can end in an abort


if __name__ == "__main__":
    main()
