"""Group-relative advantages and Direct Advantage Amplification, in float64 on plain lists.

Legend: G responses of one prompt (the group), k of them correct, p = k / G.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from da3po_cli.algos.stats import gamma
from da3po_cli.algos.table import AlgoConfig
from da3po_cli.algos.types import Group

STD_EPS = 1e-6  # as in verl and slime; added to the standard deviation, not under its root


def group_advantages(rewards: Sequence[float], *, std_power: float, ddof: int) -> list[float]:
    """A_i = (r_i - mean) / (std ** std_power + 1e-6), over the G rewards of one prompt.

    Closed forms for +-1 (or 0/1) rewards, std_power 1, ddof 0: A+ = sqrt((G-k)/k), A- = -sqrt(k/(G-k)); ddof 1
    multiplies both by sqrt((G-1)/G). std_power 0 is r - mean exactly, with no division (Dr. GRPO).

    Rewards that are all equal give exactly 0: the float mean of equal numbers may differ from them, and the residue
    over a tiny standard deviation would be a large advantage made of rounding errors.
    """
    if not rewards or max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if std_power == 0:
        return centred
    variance = math.fsum(value * value for value in centred) / (len(rewards) - ddof)
    scale = math.sqrt(variance) ** std_power + STD_EPS
    return [value / scale for value in centred]


# (p, G, lambda, tau) -> the factor on positive advantages of correct responses to a prompt with pass rate p < tau
DAA_SCHEDULES: dict[str, Callable[[float, int, float, float], float]] = {
    "constant": lambda p, size, lam, tau: lam,
    "inverse_gamma": lambda p, size, lam, tau: 1 / gamma(p, size),
    "linear": lambda p, size, lam, tau: lam + (1 - lam) * p / tau,
}


def daa_weights(acc: Sequence[int], *, lam: float, tau: float, schedule: str = "constant") -> list[float]:
    """DAA (arXiv 2608.27982): lambda for the correct responses of a hard prompt (p < tau, strict), else 1.

    A factor on positive advantages: `assign_advantages` leaves the others as they are.

    Args:
        acc: 0 or 1 per response of the group: raw correctness, never the shaped reward, since a correct response
            of full length has reward 1 - 1 = 0.
        lam: 1 turns every schedule off, so that lambda 1 is DAPO.
        schedule: a name of DAA_SCHEDULES; `constant` is the paper's.
    """
    rate = sum(acc) / max(1, len(acc))
    if lam == 1 or not 0 < rate < tau:
        return [1.0] * len(acc)
    weight = DAA_SCHEDULES[schedule](rate, len(acc), lam, tau)
    return [weight if one else 1.0 for one in acc]


def assign_advantages(group: Group, algo: AlgoConfig) -> None:
    """Fill `advantage` and `daa_weight` of every response of a graded group.

    With daa_lambda = 1 the advantages are DAPO's bit for bit, for x * 1.0 == x. Shaping may leave a correct response
    below its group's mean: that is a punishment, which DAA does not amplify. A response that the grader could not judge
    is left out of mean, std and pass rate and gets advantage 0.
    """
    for response in group.responses:
        response.advantage, response.daa_weight = 0.0, 1.0
    known = group.known
    advantages = group_advantages([r.reward for r in known], std_power=algo.std_power, ddof=algo.std_ddof)
    weights = daa_weights([r.acc for r in known], lam=algo.daa_lambda, tau=algo.daa_tau, schedule=algo.daa_schedule)
    for response, advantage, weight in zip(known, advantages, weights, strict=True):
        response.daa_weight = weight if advantage > 0 else 1.0
        response.advantage = response.daa_weight * advantage
