"""Golds that the grader does not accept as the answer to their own problem: no response could ever be right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from da3po_cli.config.schema import RewardConfig
from da3po_cli.data.formats import Row, Rows
from da3po_cli.rewards.pool.pool import GradingPool
from da3po_cli.rewards.registry import sources as rewards_by_source
from da3po_cli.rewards.types import Grade

Golds = Sequence[tuple[str, str]]
"""(data source, gold) of each row."""
Verify = Callable[[Golds], Sequence[Grade]]
"""Grades each gold as an answer to itself."""


def verifier(reward: RewardConfig, pool: Callable[[str], GradingPool]) -> Verify:
    """Grades golds by the reward of their data source; equal golds once.

    Args:
        pool: the grading pool of a reward; called once for each reward that is needed.
    """
    by_source = rewards_by_source(reward.by_source)

    def verify(golds: Golds) -> list[Grade]:
        wanted = [(by_source.get(source, reward.name), gold) for source, gold in golds]
        grades: dict[tuple[str, str], Grade] = {}
        for name in dict.fromkeys(name for name, _ in wanted):
            different = list(dict.fromkeys(gold for other, gold in wanted if other == name))
            for gold, grade in zip(different, pool(name).verify_golds(different), strict=True):
                grades[name, gold] = grade
        return [grades[key] for key in wanted]

    return verify


def drop_unverifiable(rows: Rows, verify: Verify) -> None:
    """Take out, and count, the rows whose gold is not graded correct against itself."""
    grades = verify([(row.source, row.answer) for row in rows.rows])
    kept: list[Row] = []
    for row, grade in zip(rows.rows, grades, strict=True):
        if grade.verdict == "correct":
            kept.append(row)
        else:
            example = f"{rows.place(row)}: gold {row.answer[:200]!r} is {grade.verdict} ({grade.rule})"
            rows.dropped.add("unverifiable", example)
    rows.rows = kept
