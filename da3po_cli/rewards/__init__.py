"""REWARDS: every grader is one entry. `grade_groups` applies graders to the groups of a round.

The heavy part is `pool`: grading in worker processes with deadlines. This module imports none of it, nor torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from da3po_cli.algos.types import Group
from da3po_cli.rewards.pool.pool import GradingPool, self_check
from da3po_cli.rewards.registry import REWARDS, make_reward
from da3po_cli.rewards.shaping import Shaping, overlong
from da3po_cli.rewards.types import Grade, Item, MathOptions, Reward

__all__ = [
    "REWARDS", "Grade", "GradeMany", "GradingPool", "Item", "MathOptions", "Reward", "Shaping", "grade_groups",
    "make_reward", "overlong", "self_check",
]  # fmt: skip

GradeMany = Callable[[Sequence[Item]], list[Grade]]
"""Grades items, one grade each, in order: `GradingPool.grade`."""


def grade_groups(groups: Sequence[Group], grade: Callable[[str], GradeMany], shaping: Shaping) -> dict[str, int]:
    """Fill `verdict`, `acc` and `reward` of every response; `grade(source)` grades the answers of a data source.

    An unknown response gets the reward of a wrong one, and so it counts in the reward's mean, but it takes no part in
    the statistics of its group (pass rate, mean, standard deviation) and gets advantage 0: a grader that fails says
    nothing about the answer, and must not colour what the others are compared with. A failed response is not graded
    and has reward 0.

    Returns:
        Counts by verdict: "correct", "wrong", "unknown" and "failed".
    """
    counts = Counter({"correct": 0, "wrong": 0, "unknown": 0, "failed": 0})
    by_source: dict[str, list[tuple[Group, int]]] = {}
    for group in groups:
        for number, response in enumerate(group.responses):
            if response.finish_reason == "failed":
                response.verdict, response.acc, response.reward = "unknown", 0, 0.0
                counts["failed"] += 1
            else:
                by_source.setdefault(group.prompt.source, []).append((group, number))
    for source, places in by_source.items():
        responses = [group.responses[number] for group, number in places]
        items = [(r.text, str(r.finish_reason), g.prompt.answer) for r, (g, _) in zip(responses, places, strict=True)]
        for response, result in zip(responses, grade(source)(items), strict=True):
            response.verdict = result.verdict
            response.acc = int(result.verdict == "correct")
            response.reward = shaping.reward(
                response.acc, len(response.token_ids), answered=result.extracted is not None
            )
            counts[result.verdict] += 1
    return dict(counts)
