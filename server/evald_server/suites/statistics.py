"""Statistics of shares, trials and pairs. Pure functions without dependencies; docs/statistics.md explains them."""

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import Final, NamedTuple

CONFIDENCE: Final = 0.95

# Bisecting [0, 1] 60 times is more precise than a float.
_HALVINGS: Final = 60


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def wilson(hits: float, trials: float, confidence: float = CONFIDENCE) -> Interval:
    """Return the two-sided score interval of a share; 0 to 1 without trials.

    Raises ValueError unless 0 <= hits <= trials.
    Source: Wilson, J. Am. Stat. Assoc. 22, 1927; recommended by Brown, Cai and DasGupta,
    Statistical Science 16(2), 2001, because it holds its confidence for small numbers and shares near 0 and 1.
    """
    _check(hits, trials)
    if not trials:
        return Interval(0.0, 1.0)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = hits / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    # At 0 and 1 both terms are equal; rounding must not exclude the share itself.
    low = 0.0 if hits == 0 else (centre - spread) / scale
    high = 1.0 if hits == trials else (centre + spread) / scale
    return Interval(low, high)


def upper_bound(hits: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """Return the exact one-sided upper bound of a share; 1 without trials.

    With 0 hits it is 1 - (1 - confidence)^(1/trials), about 3/trials at 95 % (the rule of three).
    Raises ValueError unless 0 <= hits <= trials.
    Source: Clopper and Pearson, Biometrika 26(4), 1934.
    """
    _check(hits, trials)
    if hits == trials:
        return 1.0
    if not hits:
        return 1 - math.pow(1 - confidence, 1 / trials)
    low, high = hits / trials, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _at_most(hits, trials, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def pass_at_k(trials: int, passed: int, k: int) -> float | None:
    """Return how likely at least one of k trials passes; None with fewer than k trials.

    Unbiased: the share of the groups of k of these trials in which one passed.
    Source: Chen et al., Evaluating Large Language Models Trained on Code, arXiv 2107.03374, 2021.
    """
    _check_trials(trials, passed, k)
    return 1 - math.comb(trials - passed, k) / math.comb(trials, k) if trials >= k else None


def pass_hat_k(trials: int, passed: int, k: int) -> float | None:
    """Return how likely all of k trials pass (pass^k); None with fewer than k trials.

    Unbiased: the share of the groups of k of these trials in which all passed.
    Source: Yao et al., tau-bench, arXiv 2406.12045, 2024.
    """
    _check_trials(trials, passed, k)
    return math.comb(passed, k) / math.comb(trials, k) if trials >= k else None


class MeanEstimate(NamedTuple):
    """A mean over cases."""

    value: float
    interval: Interval


def estimate_mean(shares: Iterable[tuple[float, int]], groups: float = 1.0) -> MeanEstimate:
    """Return the mean of shares from 0 to 1, one from each case, with its interval. Raises ValueError without any.

    shares: a share and how many cases have it. groups: as how many independent observations one case may
    count at most, for example its number of trials.
    The interval is Wilson's with an effective number of cases: more than there are as far as the shares
    differ less than passed and failed would, which is what trials within a case add. That factor is taken
    with one passing and one failing case added, so that few cases, or cases that all agree, do not overstate it.
    Sources: effective size, Korn and Graubard, Survey Methodology 24(2), 1998; added cases, Agresti and Coull,
    The American Statistician 52(2), 1998.
    """
    cases, total, squares = 0, 0.0, 0.0
    for share, count in shares:
        cases += count
        total += share * count
        squares += share * share * count
    if not cases:
        raise ValueError("got no case, wanted at least one")
    middle = (total + 1) / (cases + 2)
    variance = (squares + 1) / (cases + 2) - middle * middle
    size = cases * min(max(middle * (1 - middle) / variance, 1.0), max(groups, 1.0))
    mean = min(total / cases, 1.0)
    return MeanEstimate(mean, wilson(mean * size, size))


def _at_most(hits: int, trials: int, share: float) -> float:
    """Return the binomial probability of at most so many hits, 0 < share < 1."""
    if share >= 1:
        return 0.0
    log_hit, log_miss = math.log(share), math.log1p(-share)
    whole = math.lgamma(trials + 1)
    return math.fsum(
        math.exp(
            whole - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * log_hit + (trials - k) * log_miss
        )
        for k in range(hits + 1)
    )


def _check(hits: float, trials: float) -> None:
    if not 0 <= hits <= trials:
        raise ValueError(f"got {hits} hits in {trials} trials, wanted 0 <= hits <= trials")


def _check_trials(trials: int, passed: int, k: int) -> None:
    _check(passed, trials)
    if k < 1:
        raise ValueError(f"got k = {k}, wanted at least 1")
