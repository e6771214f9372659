"""Accuracy on held-out prompts with the rollout engine: validation during a run, and `da3po eval` after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from da3po_cli.algos.stats import pass_at_k
from da3po_cli.algos.types import Group, Prompt
from da3po_cli.runtime import Generator, Sampling


@dataclass(frozen=True)
class Validator:
    """Samples every held-out prompt `sampling.n` times.

    The seeds of the samples come from `sampling.seed` and the prompts' uids alone, so validation draws the same
    random numbers whenever it runs and takes none from training.
    """

    bench: str
    prompts: Sequence[Prompt]
    generator: Generator
    grade: Callable[[Sequence[Group]], None]
    sampling: Sampling

    def __call__(self) -> dict[str, float]:
        """val/<bench>/avg@k, pass@k (unbiased), mean response length and truncated share."""
        groups = self.generator.generate(self.prompts, self.sampling)
        self.grade(groups)
        k = self.sampling.n
        responses = [response for group in groups for response in group.responses]
        name = f"val/{self.bench}"
        return {
            f"{name}/avg@{k}": sum(response.acc for response in responses) / len(responses),
            f"{name}/pass@{k}": sum(pass_at_k(k, group.correct, k) for group in groups) / len(groups),
            f"{name}/length": sum(len(response.token_ids) for response in responses) / len(responses),
            f"{name}/truncated": sum(response.finish_reason == "length" for response in responses) / len(responses),
        }
