"""Theory and evaluation statistics against enumeration and printed tables."""

import itertools
import math

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
    pass_at_k,
    t_quantile,
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
    ("degrees", "value"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (5, 2.57058), (10, 2.22814), (30, 2.04227)]
)
def test_t_quantile_table(degrees, value):
    assert t_quantile(0.975, degrees) == pytest.approx(value, abs=0.02 if degrees == 3 else 2e-3)
    assert t_quantile(0.025, degrees) == pytest.approx(-value, abs=0.02 if degrees == 3 else 2e-3)
