"""Confidence intervals and bounds of observed shares."""

import math
from statistics import NormalDist
from typing import Final, NamedTuple

CONFIDENCE: Final = 0.95

# Bisecting [0, 1] 60 times is more precise than a float.
_HALVINGS: Final = 60


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def wilson(hits: float, trials: int, confidence: float = CONFIDENCE) -> Interval:
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


def _check(hits: float, trials: int) -> None:
    if not 0 <= hits <= trials:
        raise ValueError(f"got {hits} hits in {trials} trials, wanted 0 <= hits <= trials")
