"""Evaluation statistics and the closed forms of the theory behind DAA; plain Python floats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache


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
    mean, variance, count = _over_clusters(clusters)
    if count == 1:
        return Interval(mean, math.inf, -math.inf, math.inf)
    stderr = math.sqrt(variance / count)
    reach = t_quantile((1 + level) / 2, count - 1) * stderr
    return Interval(mean, stderr, mean - reach, mean + reach)


def share_interval(values: Sequence[float], most: float = 1.0, level: float = 0.95) -> Interval:
    """Mean of one share in [0, 1] per problem, with Wilson's interval: it stays in [0, 1] and holds near its ends.

    Wilson's formula takes the effective number of independent draws, p (1 - p) / stderr^2, and Student's t in place
    of z, as for clustered surveys (Dean and Pagano, J. Surv. Stat. Methodol. 2015). A problem is worth one draw at
    least, for no variance of a share is above p (1 - p), and as many as it has samples at most. So the interval has a
    width also where all values are alike and stderr is 0.

    Its coverage is 93 to 97 % for 30 or more problems of which a tenth or more is solved in the mean; below that the
    distribution is too skewed and it falls, to 90 % for 30 problems at 5 % (simulated: tests/algos/test_stats.py).

    Args:
        most: draws that a problem is worth at most: its samples for avg@k, samples / k for pass@k.
    """
    mean, variance, count = _over_clusters([[value] for value in values])
    if count == 1:
        return Interval(mean, math.inf, 0.0, 1.0)
    spread = max(0.0, mean * (1 - mean))  # rounding may take the mean of ones above 1
    stderr = math.sqrt(variance / count)
    draws = min(count * most, max(count, spread / stderr**2)) if stderr else count * (most if spread else 1)
    t = t_quantile((1 + level) / 2, count - 1)
    scale = 1 + t * t / draws
    middle = (mean + t * t / (2 * draws)) / scale
    reach = t / scale * math.sqrt(spread / draws + (t / (2 * draws)) ** 2)
    return Interval(mean, stderr, max(0.0, middle - reach), min(1.0, middle + reach))


def mean_of_means(intervals: Sequence[Interval]) -> Interval:
    """The plain mean of independent means.

    The distances from the mean to its limits are the root mean squares of theirs, over the root of their number, each
    side for itself (MOVER: Zou and Donner, Stat. Med. 2008). So it stays wide where theirs are.
    """
    count = len(intervals)

    def combined(distances: Iterable[float]) -> float:
        return math.sqrt(math.fsum(distance**2 for distance in distances)) / count

    mean = math.fsum(one.mean for one in intervals) / count
    return Interval(
        mean,
        combined(one.stderr for one in intervals),
        mean - combined(one.mean - one.low for one in intervals),
        mean + combined(one.high - one.mean for one in intervals),
    )


def _over_clusters(clusters: Sequence[Sequence[float]]) -> tuple[float, float, int]:
    """Mean and variance (ddof 1; 0 for one cluster) of the cluster means, and their number."""
    if not clusters or not all(clusters):
        raise ValueError("need at least one cluster, none of them empty")
    means = [math.fsum(values) / len(values) for values in clusters]
    count = len(means)
    mean = math.fsum(means) / count
    variance = math.fsum((value - mean) ** 2 for value in means) / max(1, count - 1)
    return mean, variance, count


def sign_flip_p_value(groups: Sequence[Sequence[float]], draws: int = 20_000, seed: int = 0) -> float:
    """Two-sided p-value of the mean over groups of the mean within being 0, by flipping the sign of every value.

    Under the null hypothesis that two models are alike, a problem's difference is as likely as its negative. Exact,
    over all patterns, for up to 14 values other than 0; else by `draws` random patterns, as (hits + 1) / (draws + 1).

    Args:
        groups: paired differences, one list per benchmark.
    """
    weighted = [value / len(values) for values in groups for value in values if value]
    if not weighted:
        return 1.0
    import numpy as np

    values = np.abs(np.array(weighted))  # |sum| has the same distribution whatever the signs are to begin with
    observed = abs(math.fsum(weighted)) * (1 - 1e-12)  # patterns that tie with it must not fall to rounding
    if len(values) <= 14:
        patterns = np.array(list(itertools.product((-1.0, 1.0), repeat=len(values))))
        return float((np.abs(patterns @ values) >= observed).mean())
    generator, hits, block = np.random.default_rng(seed), 0, 1000
    for start in range(0, draws, block):
        signs = 2 * generator.integers(0, 2, (min(block, draws - start), len(values)), dtype=np.int8) - 1
        hits += int((np.abs(signs @ values) >= observed).sum())
    return (hits + 1) / (draws + 1)


def t_within(t: float, degrees: int) -> float:
    """P(|T| < t) of Student's t with a whole number of degrees of freedom, exact (Abramowitz and Stegun 26.7.3-4)."""
    if t <= 0:
        return 0.0
    angle = math.atan(t / math.sqrt(degrees))
    cosine2 = math.cos(angle) ** 2
    odd = degrees % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for power in range(1 + odd, degrees, 2):  # terms cos^(power - 1)
        total += term
        term *= cosine2 * power / (power + 1)
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


@cache
def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t, by bisection of `t_within`."""
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    inside, low, high = 2 * probability - 1, 0.0, 1.0
    while t_within(high, degrees) < inside:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_within(middle, degrees) < inside else (low, middle)
    return (low + high) / 2


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
