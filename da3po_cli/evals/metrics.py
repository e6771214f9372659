"""What an evaluation measures, from the graded samples of each problem. An unknown answer counts as not correct."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, TypeVar

from da3po_cli.algos.stats import Interval, mean_interval, mean_of_means, pass_at_k, share_interval
from da3po_cli.rewards.reading.normalise import normalise

# a problem is hard when the model before training solves it with a rate strictly below 0.5, and easy from 0.75 on
HARD, EASY = 0.5, 0.75
Problem = TypeVar("Problem", bound=Hashable)
_FRACTION = re.compile(r"(-?)\\frac(?:\{(\d{1,30})\}\{(\d{1,30})\}|(\d)(\d))|(-?\d{1,30})/(\d{1,30})")
_DECIMAL = re.compile(r"[-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})")


@dataclass(frozen=True)
class Sample:
    """What the metrics need to know of one response."""

    verdict: str
    extracted: str | None
    finish_reason: str
    tokens: int


@dataclass(frozen=True)
class Tally:
    """The samples of one problem, counted."""

    id: str
    index: int
    n: int
    correct: int
    unknown: int
    truncated: int
    failed: int
    tokens: int  # of all samples
    majority: float  # whether the most frequent answer is correct; of several, the share that is

    @property
    def acc(self) -> float:
        return self.correct / self.n


def tally(id: str, index: int, samples: Sequence[Sample]) -> Tally:
    """Count the samples of one problem."""
    return Tally(
        id=id,
        index=index,
        n=len(samples),
        correct=sum(sample.verdict == "correct" for sample in samples),
        unknown=sum(sample.verdict == "unknown" and sample.finish_reason != "failed" for sample in samples),
        truncated=sum(sample.finish_reason == "length" for sample in samples),
        failed=sum(sample.finish_reason == "failed" for sample in samples),
        tokens=sum(sample.tokens for sample in samples),
        majority=majority(samples),
    )


def majority(samples: Iterable[Sample]) -> float:
    """maj@n of one problem: 1 where the most frequent answer is the correct one, 1/m where it is one of m such answers.

    The latter is the chance to pick it at random. Samples without an answer do not vote. All correct answers are one,
    however they are written; the others are told apart by `answer_key`.
    """
    votes = Counter(
        "" if sample.verdict == "correct" else answer_key(sample.extracted)
        for sample in samples
        if sample.verdict == "correct" or sample.extracted is not None
    )
    most = max(votes.values(), default=0)
    first = [answer for answer, count in votes.items() if count == most]
    return 1 / len(first) if "" in first else 0.0


def answer_key(extracted: str | None) -> str:
    """One text for the ways to write an answer: rational numbers in lowest terms, anything else normalised."""
    text = normalise(extracted or "").replace(" ", "")
    fraction = _FRACTION.fullmatch(text)
    if fraction:
        sign, *parts = fraction.groups()
        over, under = (int(part) for part in parts if part)
        if under:
            return str(Fraction(-over if sign else over, under))
    if _DECIMAL.fullmatch(text):
        return str(Fraction(text))
    return text or "(empty)"


@dataclass(frozen=True)
class Scores:
    """The metrics of one benchmark."""

    problems: int
    k: int
    """Samples of each problem."""
    avg: Interval
    passes: Mapping[int, Interval]
    """Unbiased pass@k for every k up to the number of samples."""
    maj: Interval
    length: Interval
    truncated: float
    unknown: float
    failed: float

    def metric(self, name: str) -> Interval:
        """`avg`, `pass` or `maj`, with all samples."""
        return {"avg": self.avg, "pass": self.passes[self.k], "maj": self.maj}[name]

    def record(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            f"avg@{self.k}": asdict(self.avg),
            "pass": {str(k): asdict(interval) for k, interval in self.passes.items()},
            f"maj@{self.k}": asdict(self.maj),
            "length": asdict(self.length),
            "truncated": self.truncated,
            "unknown": self.unknown,
            "failed": self.failed,
        }


def score(tallies: Sequence[Tally]) -> Scores:
    """The metrics of a benchmark, with the problem as the independent unit.

    Raises:
        ValueError: no problem, or problems with different numbers of samples.
    """
    sizes = {one.n for one in tallies}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"need problems with one number of samples, got {sorted(sizes)}")
    (k,) = sizes
    total = k * len(tallies)
    return Scores(
        problems=len(tallies),
        k=k,
        avg=share_interval([one.acc for one in tallies], k),
        passes={
            size: share_interval([pass_at_k(k, one.correct, size) for one in tallies], k / size)
            for size in range(1, k + 1)
        },
        maj=share_interval([one.majority for one in tallies]),
        length=mean_interval([[one.tokens / k] for one in tallies]),
        truncated=sum(one.truncated for one in tallies) / total,
        unknown=sum(one.unknown for one in tallies) / total,
        failed=sum(one.failed for one in tallies) / total,
    )


def difficulty(base: float) -> str:
    """The level of a problem, by the pass rate of the model before training."""
    return "hard" if base < HARD else "medium" if base < EASY else "easy"


def by_difficulty(
    start: Mapping[Problem, float], now: Mapping[Problem, float], level: Callable[[float], str] = difficulty
) -> dict[str, float]:
    """Accuracy on the problems of each level.

    Args:
        start: problem -> share of correct samples before training.
        now: the same at a later step; problems that are not in `start` are left out.

    Returns:
        Level -> mean share now, of the levels that have a problem. The levels are fixed by `start`, so a curve of one
        is over the same problems throughout.
    """
    shares: dict[str, list[float]] = {level(base): [] for base in (0.0, HARD, EASY)}
    for problem, share in now.items():
        if problem in start:
            shares[level(start[problem])].append(share)
    return {one: sum(found) / len(found) for one, found in shares.items() if found}


def average(scores: Sequence[Scores], metric: str) -> Interval:
    """The paper's AVG: the plain mean over benchmarks, whatever their sizes."""
    return mean_of_means([one.metric(metric) for one in scores])


def by_problem(records: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], list[Mapping[str, Any]]]:
    """Sample records by (benchmark, row), in the order of the samples."""
    found: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        found[record["bench"], record["index"]].append(record)
    return {key: sorted(samples, key=lambda sample: sample["sample"]) for key, samples in found.items()}
