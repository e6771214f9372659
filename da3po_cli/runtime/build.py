"""Builds the parts of a job from its config: the policy, and the rollout engine with what goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from da3po_cli.algos.types import Prompt
from da3po_cli.config.schema import Config
from da3po_cli.data.prompts import PromptStream, open_stream
from da3po_cli.data.templates import stop_token_ids
from da3po_cli.rewards import Shaping
from da3po_cli.runtime import Sampling
from da3po_cli.runtime.collect import Grader
from da3po_cli.runtime.evaluate import Validator

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
    """The rollout engine, the way weights get into it, and the grader of what comes out."""

    config: Config
    tokenizer: Any
    generator: VllmGenerator
    grade: Grader

    @classmethod
    def start(cls, config: Config, hf_dir: Path, parallel: Parallel) -> Engine:
        """Start vLLM with dummy weights. On CUDA it must come before the policy: vLLM measures the free memory."""
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
        generator = VllmGenerator(
            hf_dir,
            rollout=config.rollout,
            dtype=config.model.dtype,
            seed=config.run.seed,
            max_prompt_tokens=config.data.max_prompt_tokens,
            stop_token_ids=stop_token_ids(tokenizer, hf_dir),
            comm=parallel,
        )
        return cls(config, tokenizer, generator, grader)

    def prompts(self) -> PromptStream:
        """The training prompts."""
        return open_stream(self.config.data, self.tokenizer, "train", self.config.run.seed)

    def connect(self, policy: MegatronPolicy, prompts: Sequence[Prompt]) -> VllmSync:
        """The way from `policy` to this engine, probed with the first few of `prompts`."""
        from megatron_bridge.sync import VllmSync

        probe = [list(prompt.token_ids) for prompt in prompts[:PROBE_PROMPTS]]
        return VllmSync(policy, self.generator, probe, self.config.rollout.max_logprob_gap)

    def validator(self) -> Validator | None:
        """Validation on `data.validation`, None where that is not set."""
        data, settings = self.config.data, self.config.validation
        if data.validation is None:
            return None
        sampling = Sampling(
            n=settings.samples,
            max_tokens=self.config.rollout.max_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            seed=VALIDATION_SEED,
        )
        held_out = open_stream(data, self.tokenizer, "validation", seed=0).all(settings.prompts)
        return Validator(Path(data.validation).stem, held_out, self.generator, self.grade, sampling)
