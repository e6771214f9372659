"""The closed forms against exact enumeration in rational numbers, and the measurement against enumerated rollouts."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest

from da3po_cli.reports import theory

RATES = [Fraction(n, 100) for n in (1, 5, 10, 25, 40, 50, 60, 75, 90, 99)]


def enumerate_forms(p: Fraction, size: int) -> tuple[Fraction, Fraction, Fraction]:
    """alpha+, alpha- and P(kept) from the distribution of k alone.

    E[A | correct] is the sum over k of P(k) (k/G) A+(k), over P(correct); with A = 0 in unanimous groups. Only sums
    over k with the square A+(k) = (G-k)/k are rational, and any positive A+(k) gives the same ratio iff the forms are
    a statement on probabilities; so A+ = (G-k)/G (no division by the standard deviation) is used.
    """
    chance = {k: math.comb(size, k) * p**k * (1 - p) ** (size - k) for k in range(size + 1)}
    mixed = range(1, size)

    def expectation(share: int, ks: range) -> Fraction:
        """E[A | a response is correct (share 1) or wrong (0), and k in ks]."""
        weight = {k: chance[k] * (Fraction(k, size) if share else Fraction(size - k, size)) for k in ks}
        value = {k: Fraction(size - k, size) if share else -Fraction(k, size) for k in ks}
        return sum((weight[k] * value[k] for k in ks), Fraction()) / sum(weight.values(), Fraction())

    whole = range(size + 1)
    plus = expectation(1, mixed) / expectation(1, whole)
    minus = expectation(0, mixed) / expectation(0, whole)
    return plus, minus, sum((chance[k] for k in mixed), Fraction())


@pytest.mark.parametrize("size", range(2, 33))
def test_the_closed_forms_are_those_of_enumeration(size: int) -> None:
    for p in RATES:
        plus, minus, keep = enumerate_forms(p, size)
        found = theory.row(float(p), size)
        for value, exact in (
            (found.alpha_plus, plus),
            (found.alpha_minus, minus),
            (found.gamma, plus / minus),
            (found.keep, keep),
        ):
            assert value == pytest.approx(float(exact), rel=1e-12, abs=0)


@pytest.mark.parametrize("size", [2, 4, 16])
def test_the_joint_form_is_the_same_on_both_sides(size: int) -> None:
    """E[A 1(correct) | kept] / E[A 1(correct)] = 1 / P(kept), also for wrong: what the explanation says."""
    for p in RATES:
        chance = {k: math.comb(size, k) * p**k * (1 - p) ** (size - k) for k in range(size + 1)}
        keep = sum(chance[k] for k in range(1, size))
        for mass in (lambda k: Fraction(k * (size - k), size**2), lambda k: -Fraction((size - k) * k, size**2)):
            everywhere = sum(chance[k] * mass(k) for k in range(size + 1))
            kept = sum(chance[k] * mass(k) for k in range(1, size)) / keep
            assert kept / everywhere == 1 / keep


def counts_of(p: Fraction, size: int, groups: int) -> Counter[int]:
    """A histogram of k that is exactly binomial."""
    found = {k: groups * math.comb(size, k) * p**k * (1 - p) ** (size - k) for k in range(size + 1)}
    assert all(value.denominator == 1 for value in found.values())
    return Counter({k: int(value) for k, value in found.items()})


@pytest.mark.parametrize("p", [Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)])
def test_prompts_of_one_rate_measure_the_closed_form_in_every_bin(p: Fraction) -> None:
    """With binomial k, what is estimated on one part says nothing about the other: all bins are at p."""
    measured = theory.measure(counts_of(p, 8, 4**8), 8)
    assert measured.half == 4 and len(measured.bins) == 5
    for one, size in [(measured.overall, 8), *((b, 4) for b in measured.bins)]:
        exact = theory.row(float(p), size)
        assert one.rate == pytest.approx(float(p), rel=1e-12)
        assert one.alpha_plus.mean == pytest.approx(exact.alpha_plus, rel=1e-12)
        assert one.alpha_minus.mean == pytest.approx(exact.alpha_minus, rel=1e-12)
        assert one.gamma.mean == pytest.approx(exact.gamma, rel=1e-12)
        assert one.gamma.low < one.gamma.mean < one.gamma.high
    assert sum(one.groups for one in measured.bins) == pytest.approx(4**8)


def test_a_bin_is_the_average_over_all_splits() -> None:
    """Against the plain average over every split of four written-out groups (G = 4, two halves of two)."""
    from itertools import combinations

    groups = {(1, 0, 0, 0): 30, (1, 1, 0, 0): 50, (1, 1, 1, 0): 40, (0, 0, 0, 0): 20}
    counts = Counter({sum(group): count for group, count in groups.items()})
    measured = theory.measure(counts, 4)
    for one in measured.bins:
        seen = passed = weight = 0.0
        for group, count in groups.items():
            for measuring in combinations(range(4), 2):
                rest = [group[n] for n in range(4) if n not in measuring]
                b = sum(group[n] for n in measuring)
                if sum(rest) / 2 == one.estimate:
                    weight += count / 6
                    seen += count / 6 * b
                    passed += count / 6 * b * (0 < b < 2)
        assert one.alpha_plus.mean == pytest.approx(seen / passed, rel=1e-12)
        assert one.groups == pytest.approx(weight, rel=1e-12)
    assert [one.estimate for one in measured.bins] == [0.0, 0.5, 1.0]


def test_a_mixture_lies_above_the_curve_at_its_mean() -> None:
    """What the note under the table says (Jensen)."""
    counts = counts_of(Fraction(1, 4), 8, 4**8) + counts_of(Fraction(3, 4), 8, 4**8)
    measured = theory.measure(counts, 8)
    assert measured.overall.rate == pytest.approx(0.5)
    exact = theory.row(0.5, 8)
    assert measured.overall.alpha_plus.mean > exact.alpha_plus
    assert measured.overall.alpha_minus.mean > exact.alpha_minus


def test_the_interval_covers_the_truth_at_its_level() -> None:
    """200 sets of 300 groups at p = 0.3: the 95 % interval of gamma holds the closed form in 88 to 99 % of them."""
    import numpy as np

    generator, exact = np.random.default_rng(1), theory.row(0.3, 4).gamma
    hits = 0
    for _ in range(200):
        counts = Counter(generator.binomial(4, 0.3, size=300).tolist())
        gamma = theory.measure(counts, 4).overall.gamma
        hits += gamma.low <= exact <= gamma.high
    assert 176 <= hits <= 198


def test_groups_too_small_to_split_have_no_bins() -> None:
    measured = theory.measure(Counter({0: 10, 1: 10, 2: 10}), 2)
    assert measured.bins == [] and measured.overall.alpha_plus.mean == 3.0


def test_the_figures_have_the_points_of_the_closed_forms() -> None:
    plots = {plot.slug: plot for plot in theory.theory_plots([4, 16])}
    line = plots["figure2_gamma"].series[1]
    assert line.label == "G = 16"
    assert dict(zip(line.xs, line.ys, strict=True))[0.05] == pytest.approx(0.5367, abs=1e-3)
    assert plots["figure2_gamma"].shade == (0.0, 0.5, "p < 0.5: gamma < 1")
    assert [one.label for one in plots["figure1_alpha_plus"].series] == ["G = 4", "G = 16"]
