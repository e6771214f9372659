"""Theory and evaluation statistics against enumeration and printed tables."""

import itertools
import math
import random
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from da3po_cli.algos.advantages import group_advantages
from da3po_cli.algos.stats import (
    alpha_minus,
    alpha_plus,
    avg_at_k,
    gamma,
    keep_probability,
    mean_interval,
    mean_of_means,
    pass_at_k,
    share_interval,
    sign_flip_p_value,
    t_quantile,
    t_within,
)

NORMALISATIONS = [(1.0, 0), (1.0, 1), (0.0, 0), (0.5, 1)]


def conditional_means(p, size, power, ddof):
    """E[A_1 | r_1], E[A_1 | r_1, kept], E[A_1 1{r_1}] and the latter given kept, by enumerating all 2^G outcomes."""
    mass = {(kept, first): [0.0, 0.0] for kept in (False, True) for first in (0, 1)}
    for outcome in itertools.product((0, 1), repeat=size):
        probability = p ** sum(outcome) * (1 - p) ** (size - sum(outcome))
        advantage = group_advantages([2.0 * r - 1 for r in outcome], std_power=power, ddof=ddof)[0]
        cell = mass[0 < sum(outcome) < size, outcome[0]]
        cell[0] += probability
        cell[1] += probability * advantage
    plain = [(mass[True, r][1] + mass[False, r][1]) / (mass[True, r][0] + mass[False, r][0]) for r in (0, 1)]
    kept = [mass[True, r][1] / mass[True, r][0] for r in (0, 1)]
    total = mass[True, 0][0] + mass[True, 1][0]
    joint_plain = [mass[True, r][1] + mass[False, r][1] for r in (0, 1)]
    joint_kept = [mass[True, r][1] / total for r in (0, 1)]
    return plain, kept, joint_plain, joint_kept, total


@pytest.mark.parametrize(("power", "ddof"), NORMALISATIONS)
@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("p", [0.02, 0.1, 0.3, 0.5, 0.7, 0.95])
def test_alpha_and_gamma_by_enumeration(p, size, power, ddof):
    plain, kept, joint_plain, joint_kept, total = conditional_means(p, size, power, ddof)
    assert kept[1] / plain[1] == pytest.approx(alpha_plus(p, size), rel=1e-9)
    assert kept[0] / plain[0] == pytest.approx(alpha_minus(p, size), rel=1e-9)
    assert gamma(p, size) == pytest.approx(kept[1] / plain[1] / (kept[0] / plain[0]), rel=1e-9)
    assert keep_probability(p, size) == pytest.approx(total, rel=1e-9)
    # the mass per slot, unlike the size given correctness, grows by one factor for both signs
    for r in (0, 1):
        assert joint_kept[r] / joint_plain[r] == pytest.approx(1 / total, rel=1e-9)


@given(st.floats(0.001, 0.999), st.integers(2, 32))
def test_gamma_is_below_one_exactly_on_hard_prompts(p, size):
    if size == 2:  # G - 1 = 1: gamma = p / (1 - p)
        assert gamma(p, size) == pytest.approx(p / (1 - p))
    # above about 1e-15 from 1 it can be told apart in float64
    if abs(p ** (size - 1) - (1 - p) ** (size - 1)) > 1e-12:
        assert (gamma(p, size) < 1) == (p < 0.5)


def test_gamma_table_at_sixteen():
    table = {0.01: 0.140, 0.02: 0.261, 0.05: 0.537, 0.1: 0.794, 0.2: 0.965, 0.3: 0.995, 0.5: 1.0}
    for p, value in table.items():
        assert gamma(p, 16) == pytest.approx(value, abs=6e-4)


@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_pass_at_k_by_enumeration(n):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        draws = list(itertools.combinations([1] * c + [0] * (n - c), k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))


def test_pass_at_k_is_not_a_bootstrap():
    assert pass_at_k(4, 1, 4) == 1.0  # best@4 by resampling would say 0.684


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0)])
def test_pass_at_k_rejects(n, c, k):
    with pytest.raises(ValueError, match=f"n={n}, c={c}, k={k}"):
        pass_at_k(n, c, k)


def test_avg_at_k_is_a_multiple_of_one_over_samples():
    assert avg_at_k([[1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 1, 1]]) * 12 == pytest.approx(7)


def test_interval_clusters_by_prompt():
    # two prompts, one always right and one never: 1000 samples each do not make the mean certain
    interval = mean_interval([[1.0] * 1000, [0.0] * 1000])
    assert interval.mean == 0.5
    assert interval.stderr == pytest.approx(math.sqrt(0.5) / math.sqrt(2))
    assert interval.high - interval.mean == pytest.approx(12.7062 * interval.stderr, rel=1e-4)
    assert mean_interval([[0.5]]).high == math.inf
    with pytest.raises(ValueError, match="at least one cluster"):
        mean_interval([])


@pytest.mark.parametrize(
    ("degrees", "value"),
    [
        (1, 12.7062),
        (2, 4.30265),
        (3, 3.18245),
        (4, 2.77645),
        (5, 2.57058),
        (10, 2.22814),
        (30, 2.04227),
        (120, 1.97993),
    ],
)
def test_t_quantile_table(degrees, value):
    assert t_quantile(0.975, degrees) == pytest.approx(value, abs=6e-6 * value)
    assert t_quantile(0.025, degrees) == -t_quantile(0.975, degrees)


@pytest.mark.parametrize("degrees", [1, 2, 3, 6, 7, 50])
def test_t_within_is_the_integral_of_the_density(degrees):
    scale = math.gamma((degrees + 1) / 2) / math.gamma(degrees / 2) / math.sqrt(degrees * math.pi)
    steps, end = 4000, 1.7
    width = 2 * end / steps
    middles = [-end + (step + 0.5) * width for step in range(steps)]
    area = sum(width * scale * (1 + t * t / degrees) ** (-(degrees + 1) / 2) for t in middles)
    assert t_within(end, degrees) == pytest.approx(area, abs=1e-7)


def test_t_goes_to_the_normal():
    assert t_within(1.96, 1_000_001) == pytest.approx(2 * NormalDist().cdf(1.96) - 1, abs=1e-6)


def test_share_interval_where_nothing_or_everything_is_right():
    """Wilson's interval of 0 of n is 0 .. t^2 / (n + t^2), with Student's t in place of z."""
    t2 = 2.2621572**2  # 9 degrees
    nothing, everything = share_interval([0.0] * 10, 8), share_interval([1.0] * 10, 8)
    assert (nothing.mean, nothing.stderr, nothing.low) == (0, 0, 0)
    assert nothing.high == pytest.approx(t2 / (10 + t2), rel=1e-6)
    assert (everything.low, everything.high) == pytest.approx((10 / (10 + t2), 1), rel=1e-6)
    assert share_interval([0.5]).low == 0 and share_interval([0.5]).high == 1


def test_share_interval_of_values_that_are_all_alike():
    """Ten problems with 4 of 8 right each are 80 independent draws at most: Wilson's interval of 40 of 80."""
    found, t2 = share_interval([0.5] * 10, 8), 2.2621572**2
    assert found.stderr == 0
    assert found.high - found.low == pytest.approx(math.sqrt(t2 / 80 + (t2 / 80) ** 2) / (1 + t2 / 80), rel=1e-6)


@given(st.lists(st.integers(0, 32), min_size=2, max_size=30), st.sampled_from([1, 8, 32]))
def test_share_interval_is_symmetric_and_holds_the_mean(counts, most):
    values = [count / 32 for count in counts]
    right, wrong = share_interval(values, most), share_interval([1 - v for v in values], most)
    assert (1 - wrong.high, 1 - wrong.low) == pytest.approx((right.low, right.high), abs=1e-6)
    assert 0 <= right.low <= right.mean + 1e-9
    assert right.mean - 1e-9 <= right.high <= 1
    assert right.stderr == pytest.approx(mean_interval([[v] for v in values]).stderr)


# problems, samples, and the Beta distribution of their difficulty: few and hard, all or nothing, like the large sets
SETTINGS = [(30, 32, 0.3, 1.2), (83, 32, 0.5, 0.5), (272, 8, 1.0, 1.0)]


@pytest.mark.parametrize(("problems", "k", "a", "b"), SETTINGS)
def test_intervals_cover_the_truth(problems, k, a, b):
    """Benchmarks drawn again and again from a population whose avg@k and pass@k are known in closed form.

    E[(1 - p)^k] = B(a, b + k) / B(a, b) for a difficulty p of Beta(a, b).
    """
    rng, draws = random.Random(7), 1200
    none_right = math.exp(math.lgamma(b + k) + math.lgamma(a + b) - math.lgamma(a + b + k) - math.lgamma(b))
    inside = {"avg": 0, "pass": 0}
    for _ in range(draws):
        correct = [binomial(rng, k, rng.betavariate(a, b)) for _ in range(problems)]
        avg = share_interval([c / k for c in correct], k)
        solved = share_interval([pass_at_k(k, c, k) for c in correct])
        inside["avg"] += avg.low <= a / (a + b) <= avg.high
        inside["pass"] += solved.low <= 1 - none_right <= solved.high
    for metric, count in inside.items():
        assert 0.93 <= count / draws <= 0.97, (metric, count / draws)


def binomial(rng, n, p):
    return sum(rng.random() < p for _ in range(n))


def test_mean_of_means_is_plain_and_adds_variances():
    one = mean_interval([[0.0], [1.0], [0.0], [1.0], [0.5]])
    two = mean_interval([[0.5], [0.0], [1.0], [1.0], [0.0]])
    both = mean_of_means([one, two])
    assert both.mean == pytest.approx((one.mean + two.mean) / 2)
    assert both.stderr == pytest.approx(math.sqrt(one.stderr**2 + two.stderr**2) / 2)
    assert both.high - both.mean == pytest.approx(math.hypot(one.high - one.mean, two.high - two.mean) / 2)
    # a large benchmark does not outweigh a small one
    assert mean_of_means([mean_interval([[1.0]] * 675), mean_interval([[0.0]] * 30)]).mean == 0.5
    assert mean_of_means([mean_interval([[0.5]]), two]).high == math.inf
    # the mean of two that are certain to be 0 is not
    nothing = share_interval([0.0] * 30)
    assert mean_of_means([nothing, nothing]).high == pytest.approx(nothing.high / math.sqrt(2))


def test_sign_flips_by_enumeration():
    groups = [[0.5, -0.25, 0.125, 0.0], [0.375, 0.25, -0.5]]
    weighted = [v / len(values) for values in groups for v in values]
    observed = abs(sum(weighted))
    flips = list(itertools.product((1, -1), repeat=len(weighted)))
    share = sum(abs(sum(s * v for s, v in zip(f, weighted, strict=True))) >= observed - 1e-12 for f in flips) / len(
        flips
    )
    assert sign_flip_p_value(groups) == pytest.approx(share)
    assert sign_flip_p_value([[0.0, 0.0]]) == 1.0
    assert sign_flip_p_value([[1.0] * 10]) == pytest.approx(2 / 2**10)  # all alike: only two patterns are as extreme


def test_sign_flips_at_random_agree_with_the_exact_test():
    # 40 differences of the same size: the number of plus signs is binomial
    values = [1.0] * 27 + [-1.0] * 13
    exact = sum(math.comb(40, plus) for plus in range(41) if abs(2 * plus - 40) >= 14) / 2**40
    assert sign_flip_p_value([values]) == pytest.approx(exact, abs=4 * math.sqrt(exact / 20_000))
    assert sign_flip_p_value([values]) == sign_flip_p_value([values])
