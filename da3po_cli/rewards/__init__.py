"""REWARDS: every grader is one entry. `grade_groups` applies one to the groups of a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from da3po_cli.algos.types import Group
from da3po_cli.rewards.arith import grade_arith
from da3po_cli.rewards.math import grade_math
from da3po_cli.rewards.shaping import Shaping, overlong
from da3po_cli.rewards.types import Grade, Reward

__all__ = ["REWARDS", "Grade", "Reward", "Shaping", "grade_groups", "overlong"]

REWARDS: dict[str, Reward] = {"math": grade_math, "arith": grade_arith}


def grade_groups(groups: Iterable[Group], reward: Reward, shaping: Shaping) -> dict[str, int]:
    """Fill `verdict`, `acc` and `reward` of every response.

    A failed response is not graded; it and an unknown one get reward 0 and take no part in the group's statistics.

    Returns:
        Counts by verdict: "correct", "wrong", "unknown" and "failed".
    """
    counts = Counter({"correct": 0, "wrong": 0, "unknown": 0, "failed": 0})
    for group in groups:
        for response in group.responses:
            if response.finish_reason == "failed":
                response.verdict, response.acc, response.reward = "unknown", 0, 0.0
                counts["failed"] += 1
                continue
            response.verdict = reward(response.text, response.finish_reason, group.prompt.answer).verdict
            response.acc = int(response.verdict == "correct")
            known = response.verdict != "unknown"
            response.reward = shaping.reward(response.acc, len(response.token_ids)) if known else 0.0
            counts[response.verdict] += 1
    return dict(counts)
