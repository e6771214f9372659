"""Evaluation statistics and the closed forms of the theory behind DAA; plain Python floats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased pass@k from n samples of which c are correct: 1 - C(n-c, k) / C(n, k) (arXiv 2107.03374)."""
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"need 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def avg_at_k(acc: Sequence[Sequence[int]]) -> float:
    """Mean accuracy over prompts, each the mean over its k samples: a multiple of 1 / (prompts * k)."""
    return mean_interval(acc).mean


@dataclass(frozen=True)
class Interval:
    """A mean with its standard error and 95 % confidence interval; infinite with a single cluster."""

    mean: float
    stderr: float
    low: float
    high: float


def mean_interval(clusters: Sequence[Sequence[float]], level: float = 0.95) -> Interval:
    """Mean over clusters of the mean within, with the cluster (not the sample) as the independent unit.

    The k samples of a prompt share its difficulty, so that their spread says nothing about other prompts:
    stderr = sd(cluster means, ddof 1) / sqrt(clusters), and the interval is Student's t with clusters - 1 degrees.
    """
    if not clusters or not all(clusters):
        raise ValueError("need at least one cluster, none of them empty")
    means = [math.fsum(values) / len(values) for values in clusters]
    count = len(means)
    mean = math.fsum(means) / count
    if count == 1:
        return Interval(mean, math.inf, -math.inf, math.inf)
    variance = math.fsum((value - mean) ** 2 for value in means) / (count - 1)
    stderr = math.sqrt(variance / count)
    reach = t_quantile((1 + level) / 2, count - 1) * stderr
    return Interval(mean, stderr, mean - reach, mean + reach)


def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t: exact for 1 and 2 degrees of freedom, else Abramowitz and Stegun 26.7.5.

    The series is good to 0.02 at 3 degrees and to 0.001 from 6 on (probability 0.975).
    """
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        side = 2 * probability - 1
        return side * math.sqrt(2 / (1 - side * side))
    z, v = NormalDist().inv_cdf(probability), degrees
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )


def alpha_plus(p: float, group_size: int) -> float:
    """E[A | correct, group kept] / E[A | correct] = 1 / (1 - p^(G-1)): what the filter does to a correct response.

    The three forms are exact for k ~ Binomial(G, p) whenever a unanimous group has advantage 0: then
    E[A | correct] = P(kept | correct) E[A | correct, kept], and a correct response's group is kept unless the other
    G - 1 are correct too.
    """
    return 1 / (1 - p ** (group_size - 1))


def alpha_minus(p: float, group_size: int) -> float:
    """E[A | wrong, group kept] / E[A | wrong] = 1 / (1 - (1-p)^(G-1))."""
    return 1 / (1 - (1 - p) ** (group_size - 1))


def gamma(p: float, group_size: int) -> float:
    """alpha_plus / alpha_minus; below 1 exactly for p < 0.5, whatever the group size."""
    return alpha_plus(p, group_size) / alpha_minus(p, group_size)


def keep_probability(p: float, group_size: int) -> float:
    """P(0 < k < G) = 1 - p^G - (1-p)^G."""
    return 1 - p**group_size - (1 - p) ** group_size
