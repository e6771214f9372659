"""What the numbers of a run say about its health. Decisions only: the loop acts on them, and no file is touched here.

All ranks see the same numbers, so all of them decide the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from da3po_cli.config.schema import HealthConfig
from da3po_cli.errors import DivergedError
from da3po_cli.protocols import Update

MAX_KEPT = 10  # batches of skipped updates that one start of a run keeps: a disk is not for them


def not_finite(update: Update) -> str:
    """What of an update is not finite, such as "loss nan, log-probs nan, gradient norm inf"; empty where all is."""
    found = [] if math.isfinite(update.loss) else [f"loss {update.loss}"]
    bad = {name: value for name, value in update.sums.items() if not math.isfinite(value)}
    if "logp_sum" in bad:  # all other sums follow from the log-probs
        found.append(f"log-probs {bad['logp_sum']}")
    else:
        found += [f"{name} {value}" for name, value in bad.items()]
    if not math.isfinite(update.grad_norm):
        found.append(f"gradient norm {update.grad_norm}")
    return ", ".join(found)


class Health:
    """Counts skipped updates and steps beyond the limits of `health`, in a row; a resumed run begins at 0.

    Args:
        max_tokens: the longest response, tokens.

    Attributes:
        skipped: updates skipped since this start of the run.
    """

    def __init__(self, config: HealthConfig, max_tokens: int) -> None:
        self._config, self._max_tokens = config, max_tokens
        self._skipped_in_row = 0
        self._beyond: dict[str, int] = {}
        self.skipped = 0

    @property
    def keeps_batch(self) -> bool:
        """Whether the batch of the update just skipped is to be kept."""
        return self.skipped <= MAX_KEPT

    def count(self, update: Update) -> None:
        """Take note of an update."""
        self.skipped += update.skipped
        self._skipped_in_row = self._skipped_in_row + 1 if update.skipped else 0

    def check_updates(self, step: int, number: int, update: Update) -> None:
        """Stop a run whose updates are skipped one after the other. `number` is that of the last one in its step.

        Raises:
            DivergedError: health.max_skipped updates in a row were skipped.
        """
        if self._skipped_in_row < self._config.max_skipped:
            return
        raise DivergedError(
            f"{self._skipped_in_row} updates in a row were skipped, because numbers were not finite: "
            f"{not_finite(update)}",
            where=f"step {step}, update {number}",
            hint="lower train.lr or raise train.warmup_steps, and go on from a checkpoint before it with --resume=STEP",
        )

    def check_step(self, record: Mapping[str, Any]) -> list[str]:
        """Warnings about a step, each when a limit has been passed health.patience steps in a row, and as often again.

        Raises:
            DivergedError: the same, where health.on_... is `stop`.
        """
        warnings: list[str] = []
        for name, action, symptom, hint in self._symptoms(record):
            self._beyond[name] = self._beyond.get(name, 0) + 1 if symptom else 0
            if not symptom or action == "off" or self._beyond[name] % self._config.patience:
                continue
            text = f"{symptom}, for {self._beyond[name]} step(s) in a row"
            if action == "stop":
                raise DivergedError(text, where=f"step {record['step']}, health.on_{name}=stop", hint=hint)
            warnings.append(f"step {record['step']}: {text}; {hint}")
        return warnings

    def _symptoms(self, record: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
        """(name, action, what is beyond its limit or empty, what to do) of each watch."""
        config = self._config
        entropy = record.get("train/entropy", math.inf)  # without an update there is none
        yield (
            "entropy",
            config.on_entropy,
            f"train/entropy {entropy:.3g} is below health.min_entropy={config.min_entropy:g}: the policy has collapsed"
            if entropy < config.min_entropy
            else "",
            "a higher algo.clip_high or a lower train.lr keeps it exploring",
        )
        if "rollout/length" not in record:  # nothing was generated, which says nothing of the next two
            return
        yield (
            "length",
            config.on_length,
            self._too_long(record["rollout/truncated"], record["rollout/length"] / self._max_tokens),
            "raise rollout.max_tokens, or shape the reward with algo.overlong_cache",
        )
        acc = record.get("train/acc", math.nan)  # without a judged answer there is none
        uniform = record["sample/generated"] > 0 and acc in (0.0, 1.0)
        yield (
            "uniform",
            config.on_uniform,
            f"all answers are {'right' if acc else 'wrong'} (train/acc {acc:g}), so nothing is learnt"
            if uniform
            else "",
            f"give {'harder' if acc else 'easier'} prompts, and look at the answers with `da3po grade`",
        )

    def _too_long(self, truncated: float, share: float) -> str:
        config = self._config
        if truncated > config.max_truncated:
            return f"rollout/truncated {truncated:.2f} is above health.max_truncated={config.max_truncated:g}"
        if share > config.max_length:
            length = share * self._max_tokens
            return f"rollout/length {length:.0f} is above health.max_length={config.max_length:g} of rollout.max_tokens"
        return ""
