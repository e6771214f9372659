"""Builds the parts of a job from its config: the policy, and the rollout engine with what goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from da3po_cli.algos.types import Prompt
from da3po_cli.config.models import model_facts
from da3po_cli.config.plan import logprob_gap_limit, overlong_cache
from da3po_cli.config.schema import Config
from da3po_cli.data.prompts import PromptStream, open_stream
from da3po_cli.data.spec import spec_label
from da3po_cli.data.templates import stop_token_ids
from da3po_cli.errors import UsageError
from da3po_cli.evals.asking import limit_note
from da3po_cli.evals.held_out import Graders, HeldOut, Validator, benchmark
from da3po_cli.evals.problems import load_problems
from da3po_cli.evals.registry import choose, load_registry
from da3po_cli.evals.tasks import SEED, Asked, resolve
from da3po_cli.launching.watchdog import collective_timeout
from da3po_cli.protocols import Comm, Sampling
from da3po_cli.rewards import Shaping
from da3po_cli.rewards.registry import sources
from da3po_cli.runs.heartbeat import tick
from da3po_cli.runs.validations import Correct
from da3po_cli.training.collect import Grader

if TYPE_CHECKING:
    from da3po_cli.rollouts.engine import VllmGenerator
    from da3po_cli.rollouts.sync import VllmSync
    from megatron_bridge.engine import MegatronPolicy
    from megatron_bridge.parallel import Parallel

PROBE_PROMPTS = 8


def make_policy(config: Config, hf_dir: Path, parallel: Parallel) -> MegatronPolicy:
    """The policy with the weights of `hf_dir`."""
    from megatron_bridge import build_policy

    return build_policy(
        hf_dir,
        dtype=config.model.dtype,
        parallel=parallel,
        train=config.train,
        temperature=config.rollout.temperature,
        seed=config.run.seed,
        layout=config.parallel,
        fp8=config.fp8,
        with_reference=config.algo.kl_coef > 0,
        on_forward=tick,
    )


@dataclass(frozen=True)
class Engine:
    """The rollout engine, the way weights get into it, the prompts for it, and the grader of what comes out.

    Attributes:
        prompts: the training prompts.
        held_out: the prompts of data.validation; None without.
        benches: all that validation samples: `held_out` and the benchmarks of validation.benches.
        limits: what a user should know of the length of their responses.
    """

    config: Config
    generator: VllmGenerator
    grade: Grader
    prompts: PromptStream
    held_out: PromptStream | None
    benches: Sequence[HeldOut]
    limits: Sequence[str]

    @classmethod
    def start(cls, config: Config, hf_dir: Path, parallel: Parallel) -> Engine:
        """Read the data, then start vLLM with dummy weights.

        The data come first, because their errors should not cost the start of an engine. On CUDA vLLM comes before
        the policy: it measures the free memory.
        """
        from transformers import AutoTokenizer

        from da3po_cli.rollouts.engine import VllmGenerator

        shaping = Shaping(
            config.rollout.max_tokens,
            overlong_cache(config),
            config.algo.overlong_factor,
            correct=config.reward.correct,
            wrong=config.reward.wrong,
            format_bonus=config.reward.format_bonus,
        )
        grader = Grader(config.reward, shaping, parallel)  # first, for a reward that is none fails here
        tokenizer = AutoTokenizer.from_pretrained(hf_dir)
        data, stops = config.data, stop_token_ids(tokenizer, hf_dir, config.data.stop_tokens)
        facts = model_facts(str(hf_dir))
        vocabulary = facts.vocab if facts is not None else None
        prompts, held_out = open_stream(data, tokenizer, "train", config.run.seed, grader.verify, vocabulary), None
        if data.validation is not None and config.validation.every:
            held_out = open_stream(data, tokenizer, "validation", seed=0, vocabulary=vocabulary)
        benches = _benches(config, tokenizer, held_out, grader, parallel) if config.validation.every else []
        limits = _limits(config, benches)
        generator = VllmGenerator(
            hf_dir,
            rollout=config.rollout,
            dtype=config.model.dtype,
            seed=config.run.seed,
            max_prompt_tokens=data.max_prompt_tokens,
            stop_token_ids=stops,
            comm=parallel,
            timeout=collective_timeout(config.health.stall_timeout),
        )
        return cls(config, generator, grader, prompts, held_out, benches, limits)

    def notes(self) -> list[str]:
        """What a user should know about the data: how many rows were left out and why, and golds that are no use."""
        found: list[str] = []
        for stream, spec in ((self.prompts, self.config.data.train), (self.held_out, self.config.data.validation)):
            if stream is not None and stream.dropped.counts:
                found.append(f"data {spec}: {len(stream):,} prompts; left out: {stream.dropped}")
                found += [f"  {example}" for example in stream.dropped.examples.get("unverifiable", [])]
        known = self.prompts.sources() | (self.held_out.sources() if self.held_out else set())
        unused = set(sources(self.config.reward.by_source)) - known
        if unused:
            found.append(f"warning: reward.by_source names {', '.join(sorted(unused))}, which no prompt comes from")
        return [*found, *self.limits]

    def connect(self, policy: MegatronPolicy, prompts: Sequence[Prompt]) -> VllmSync:
        """The way from `policy` to this engine, probed with the first few of `prompts`."""
        from da3po_cli.rollouts.sync import VllmSync

        probe = [list(prompt.token_ids) for prompt in prompts[:PROBE_PROMPTS]]
        return VllmSync(policy, self.generator, probe, logprob_gap_limit(self.config))

    def validator(self, start: Correct | None) -> Validator | None:
        """Validation on `data.validation` and `validation.benches`; None without.

        Args:
            start: the counts of the validation before training; empty where this run begins.
        """
        if not self.benches:
            return None
        return Validator(self.benches, self.generator, _sampling(self.config), start)


def _sampling(config: Config) -> Sampling:
    """Of validation. A prompt of a benchmark may be longer than those of training; its responses are then shorter."""
    return Sampling(
        n=config.validation.samples,
        max_tokens=config.rollout.max_tokens,
        temperature=config.validation.temperature,
        top_p=config.validation.top_p,
        seed=SEED,
        context=config.data.max_prompt_tokens + config.rollout.max_tokens,
    )


def _limits(config: Config, benches: Sequence[HeldOut]) -> list[str]:
    """A note for each benchmark with prompts that leave less than rollout.max_tokens.

    Raises:
        UsageError: a prompt leaves no room for a response.
    """
    hint = "raise it to that, or leave the benchmark out of validation.benches"
    where = f"data.max_prompt_tokens={config.data.max_prompt_tokens}"
    found = [limit_note(f"validation on {one.name}", one.prompts, _sampling(config), where, hint) for one in benches]
    return [note for note in found if note]


def _benches(
    config: Config, tokenizer: Any, held_out: PromptStream | None, grader: Grader, comm: Comm
) -> list[HeldOut]:
    """What is validated on: data.validation with the run's own grader, and benchmarks with theirs."""
    settings = config.validation
    found: list[HeldOut] = []
    if held_out is not None:
        found.append(HeldOut(spec_label(config.data.validation or ""), held_out.all(settings.prompts), grader))
    if settings.benches:
        asked = Asked(settings.samples, settings.temperature, settings.top_p, config.rollout.max_tokens)
        graders = Graders(config.reward.workers, config.reward.deadline_s)
        directory = None if settings.bench_dir is None else Path(settings.bench_dir)
        for bench in choose(settings.benches, load_registry()):
            problems = load_problems(bench, directory, settings.prompts)
            found.append(benchmark(resolve(bench, problems, config, asked, is_run=True), tokenizer, graders, comm))
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"both data.validation and validation.benches have {name!r}, and val/{name}/ can be one only",
                where="validation.benches",
                hint=f"leave {name} out of one of them",
            )
    return found
