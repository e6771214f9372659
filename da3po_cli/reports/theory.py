"""What dynamic sampling does to the advantages that are seen: the closed forms, and the same measured on rollouts.

G responses of one prompt with pass rate p, k of them correct; a group is kept when 0 < k < G.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from da3po_cli.algos.stats import Interval, alpha_minus, alpha_plus, gamma, keep_probability
from da3po_cli.errors import UsageError
from da3po_cli.reports.data import RunData
from da3po_cli.reports.plots import Plot, Series
from da3po_cli.runs.rollouts import read_rollouts

RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
GROUPS = (4, 8, 16, 32)
DRAWS = 2000  # bootstrap samples
FEWEST = 10.0  # groups of a bin, in weight; below that nothing is shown

EXPLANATION = (
    "alpha+ = 1/(1 - p^(G-1)) and alpha- = 1/(1 - (1-p)^(G-1)) are exact as E[A | correct, kept] / E[A | correct], and "
    "the same for wrong, when the G responses are independent with one pass rate p and a unanimous group has "
    "advantage 0; overlong shaping, or a filter on anything but correctness, breaks the second condition.",
    "Their ratio gamma = alpha+ / alpha- is below 1 exactly for p < 1/2, whatever G >= 2: on hard prompts the filter "
    "leaves a correct response as it is and enlarges a wrong one that is seen.",
    "That is a statement on single responses: in the joint form E[A 1(correct) | kept] / E[A 1(correct)] both sides "
    "are 1/P(kept), for wrong responses are rarer in the kept groups of a hard prompt, and refilling the batch scales "
    "the whole expected gradient by one number, so that DAA changes the objective rather than undoing a bias; "
    "algo.daa_schedule=inverse_gamma is the control that tells the two apart.",
)


@dataclass(frozen=True)
class Row:
    """The closed forms at one pass rate and group size."""

    p: float
    group_size: int
    alpha_plus: float
    alpha_minus: float
    gamma: float
    keep: float


def row(p: float, group_size: int) -> Row:
    """The closed forms of `da3po_cli.algos.stats` for 0 < p < 1."""
    return Row(
        p,
        group_size,
        alpha_plus(p, group_size),
        alpha_minus(p, group_size),
        gamma(p, group_size),
        keep_probability(p, group_size),
    )


# -------------------------------------------------------------------------------------------------------- measurement


@dataclass(frozen=True)
class Bin:
    """Prompts whose pass rate looked like `estimate` on one part of their responses, measured on the other part."""

    estimate: float
    rate: float
    """Mean pass rate in the measuring part: without bias, for the two parts are independent given the prompt."""
    groups: float
    """Prompts, in weight: every way to split a group counts with its probability."""
    alpha_plus: Interval
    alpha_minus: Interval
    gamma: Interval


@dataclass(frozen=True)
class Measured:
    """alpha and gamma of saved rollouts."""

    group_size: int
    groups: int
    left_out: int
    """Groups of another size, or with a response that failed or could not be judged."""
    overall: Bin
    """Over all prompts, with the whole group as the group."""
    half: int
    """Size of the measuring part: what the closed forms must be taken at to compare the bins."""
    bins: Sequence[Bin]


def count_groups(run: RunData) -> tuple[Counter[int], int, int]:
    """(number of groups by their correct responses, group size, groups left out) of all saved rollouts of a run.

    Kept and dropped groups, at every step; each is a draw at the pass rate that the prompt had at that step.

    Raises:
        UsageError: the run has saved none.
    """
    sizes = Counter[tuple[int, int]]()
    left_out = 0
    for size, correct in _judged(run):
        if correct is None:
            left_out += 1
        else:
            sizes[size, correct] += 1
    if not sizes:
        raise UsageError(
            f"{run.directory.path} has no saved rollouts",
            where="--run",
            hint="a run with run.save_rollouts=true, which is the default",
        )
    by_size = Counter[int]()
    for (size, _), count in sizes.items():
        by_size[size] += count
    group_size = by_size.most_common(1)[0][0]
    counts = Counter({correct: count for (size, correct), count in sizes.items() if size == group_size})
    return counts, group_size, left_out + by_size.total() - counts.total()


def _judged(run: RunData) -> Iterator[tuple[int, int | None]]:
    for _, file in run.rollout_files:
        for _, record in read_rollouts(file):
            responses = record["responses"]
            known = all(one["verdict"] != "unknown" and one["finish_reason"] != "failed" for one in responses)
            yield len(responses), sum(one["acc"] for one in responses) if known else None


def measure(counts: Mapping[int, int], group_size: int, left_out: int = 0, *, seed: int = 0) -> Measured:
    """alpha+ = correct responses / those of them in mixed groups (and so on), with bootstrap intervals over groups.

    Bins: each group is split into an estimating and a measuring part of G // 2, which is treated as a group of that
    size. All splits count, each with its (hypergeometric) probability, so that no random choice adds noise. Binning on
    one part and measuring on the other keeps the selection out of the measurement. A bin still mixes prompts of
    different rates, for which alpha+ and alpha- lie above the curve at the mean rate (Jensen), never below it.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    ks = np.arange(group_size + 1)
    seen = np.array([counts.get(int(k), 0) for k in ks], dtype=float)
    total = int(seen.sum())
    draws = generator.multinomial(total, seen / total, size=DRAWS).astype(float)
    samples = np.vstack([seen, draws])  # [1 + DRAWS, G + 1]; the first row is the data

    half = group_size // 2
    whole = np.zeros((group_size + 1, group_size + 1))
    np.fill_diagonal(whole, 1.0)
    bins: list[Bin] = []
    for estimate in range(group_size - half + 1) if half >= 2 else ():
        found = _bin(samples, _split(group_size, half, estimate), half, estimate / (group_size - half))
        if found.groups >= FEWEST and math.isfinite(found.gamma.mean):
            bins.append(found)
    return Measured(group_size, total, left_out, _bin(samples, whole, group_size, math.nan), half, bins)


def _split(group_size: int, half: int, estimate: int) -> Any:
    """[G + 1, half + 1]: probability that a group with k correct has `estimate` in the one part and b in the other."""
    import numpy as np

    table = np.zeros((group_size + 1, half + 1))
    for b in range(half + 1):
        k = estimate + b
        table[k, b] = math.comb(group_size - half, estimate) * math.comb(half, b) / math.comb(group_size, k)
    return table


def _bin(samples: Any, split: Any, size: int, estimate: float) -> Bin:
    """Ratios over the counts [draws, G + 1] sent through `split` [G + 1, size + 1]."""
    import numpy as np

    weight = samples @ split  # [draws, size + 1]: groups by their number b of correct responses
    b = np.arange(size + 1)
    mixed = (b > 0) & (b < size)
    with np.errstate(divide="ignore", invalid="ignore"):
        plus = (weight @ b) / (weight @ (b * mixed))
        minus = (weight @ (size - b)) / (weight @ ((size - b) * mixed))
        ratio = plus / minus
        rate = (weight[0] @ b) / (size * weight[0].sum())
    return Bin(estimate, float(rate), float(weight[0].sum()), *(_percentiles(one) for one in (plus, minus, ratio)))


def _percentiles(values: Any) -> Interval:
    """The first value, with the 95 % percentile interval of the others.

    A draw without any mixed group counts as infinite, as it is; 0 / 0 is left out. No draw leaves no interval.
    """
    import numpy as np

    drawn = values[1:][~np.isnan(values[1:])]
    if not len(drawn):
        return Interval(float(values[0]), math.inf, -math.inf, math.inf)
    low, high = np.quantile(drawn, [0.025, 0.975], method="nearest")  # no arithmetic with infinities
    finite = drawn[np.isfinite(drawn)]
    return Interval(float(values[0]), float(finite.std()) if len(finite) else math.nan, float(low), float(high))


# --------------------------------------------------------------------------------------------------------------- plots


def theory_plots(groups: Sequence[int], measured: Measured | None = None) -> list[Plot]:
    """Figure 1 (alpha+ and alpha- over p), Figure 2 (gamma over p, p < 0.5 shaded), and the keep rate.

    With a measurement the closed forms are drawn at the size of its measuring part too, and its bins as points.
    """
    sizes: list[int] = sorted({*groups, *([measured.half] if measured and measured.bins else [])})
    grid = [n / 200 for n in range(2, 199)]
    note = f"Points: rollouts of the run, G = {measured.half}; bars: 95 %." if measured and measured.bins else ""
    bins = measured.bins if measured else ()
    size = f"measured, G = {measured.half}" if measured else ""
    return [
        *(
            Plot(
                f"figure1_alpha_{name}",
                f"Figure 1: alpha{sign} over the pass rate",
                "pass rate p",
                f"alpha{sign}, {word} responses",
                [Series(f"G = {g}", grid, [form(p, g) for p in grid]) for g in sizes],
                log_y=True,
                limits=(0.93, 12),
                overlay=_overlay(bins, f"alpha_{name}", size),
                note=note,
            )
            for name, sign, word, form in (
                ("plus", "+", "correct", alpha_plus),
                ("minus", "-", "wrong", alpha_minus),
            )
        ),
        Plot(
            "figure2_gamma",
            "Figure 2: gamma over the pass rate",
            "pass rate p",
            "gamma = alpha+ / alpha-",
            [Series(f"G = {g}", grid, [gamma(p, g) for p in grid]) for g in sizes],
            log_y=True,
            limits=(0.08, 12),
            levels=[(1.0, "gamma = 1")],
            shade=(0.0, 0.5, "p < 0.5: gamma < 1"),
            overlay=_overlay(bins, "gamma", size),
            note=note,
        ),
        Plot(
            "keep_rate",
            "Groups that dynamic sampling keeps",
            "pass rate p",
            "P(0 < k < G)",
            [Series(f"G = {g}", grid, [keep_probability(p, g) for p in grid]) for g in sizes],
            limits=(0.0, 1.03),
        ),
    ]


def _overlay(bins: Sequence[Bin], name: str, label: str) -> list[Series]:
    if not bins:
        return []
    values: list[Interval] = [getattr(one, name) for one in bins]
    low, high = [one.low for one in values], [one.high for one in values]
    return [Series(label, [one.rate for one in bins], [one.mean for one in values], low, high)]
