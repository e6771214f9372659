"""Builds the parts of a job from its config: the policy, and the rollout engine with what goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from da3po_cli.algos.types import Prompt
from da3po_cli.config.schema import Config
from da3po_cli.data.prompts import PromptStream, open_stream
from da3po_cli.data.spec import spec_label
from da3po_cli.data.templates import stop_token_ids
from da3po_cli.rewards import Shaping
from da3po_cli.rewards.registry import sources
from da3po_cli.runtime import Sampling
from da3po_cli.runtime.collect import Grader
from da3po_cli.runtime.evaluate import HeldOut, Validator

if TYPE_CHECKING:
    from da3po_cli.runtime.rollout import VllmGenerator
    from megatron_bridge.engine import MegatronPolicy
    from megatron_bridge.parallel import Parallel
    from megatron_bridge.sync import VllmSync

VALIDATION_SEED = 1  # one seed for every run, so that runs are compared on the same draws
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
    )


@dataclass(frozen=True)
class Engine:
    """The rollout engine, the way weights get into it, the prompts for it, and the grader of what comes out.

    Attributes:
        prompts: the training prompts.
        held_out: the validation prompts; None without validation.
    """

    config: Config
    generator: VllmGenerator
    grade: Grader
    prompts: PromptStream
    held_out: PromptStream | None

    @classmethod
    def start(cls, config: Config, hf_dir: Path, parallel: Parallel) -> Engine:
        """Read the data, then start vLLM with dummy weights.

        The data come first, because their errors should not cost the start of an engine. On CUDA vLLM comes before
        the policy: it measures the free memory.
        """
        from transformers import AutoTokenizer

        from da3po_cli.runtime.rollout import VllmGenerator

        shaping = Shaping(
            config.rollout.max_tokens,
            config.algo.overlong_cache,
            config.algo.overlong_factor,
            correct=config.reward.correct,
            wrong=config.reward.wrong,
            format_bonus=config.reward.format_bonus,
        )
        grader = Grader(config.reward, shaping, parallel)  # first, for a reward that is none fails here
        tokenizer = AutoTokenizer.from_pretrained(hf_dir)
        data, stops = config.data, stop_token_ids(tokenizer, hf_dir, config.data.stop_tokens)
        prompts, held_out = open_stream(data, tokenizer, "train", config.run.seed, grader.verify), None
        if data.validation is not None and config.validation.every:
            held_out = open_stream(data, tokenizer, "validation", seed=0)
        generator = VllmGenerator(
            hf_dir,
            rollout=config.rollout,
            dtype=config.model.dtype,
            seed=config.run.seed,
            max_prompt_tokens=data.max_prompt_tokens,
            stop_token_ids=stops,
            comm=parallel,
        )
        return cls(config, generator, grader, prompts, held_out)

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
        return found

    def connect(self, policy: MegatronPolicy, prompts: Sequence[Prompt]) -> VllmSync:
        """The way from `policy` to this engine, probed with the first few of `prompts`."""
        from megatron_bridge.sync import VllmSync

        probe = [list(prompt.token_ids) for prompt in prompts[:PROBE_PROMPTS]]
        return VllmSync(policy, self.generator, probe, self.config.rollout.max_logprob_gap)

    def validator(self) -> Validator | None:
        """Validation on `data.validation`; None without."""
        settings = self.config.validation
        if self.held_out is None:
            return None
        sampling = Sampling(
            n=settings.samples,
            max_tokens=self.config.rollout.max_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            seed=VALIDATION_SEED,
        )
        name = spec_label(self.config.data.validation or "")
        return Validator([HeldOut(name, self.held_out.all(settings.prompts), self.grade)], self.generator, sampling)
