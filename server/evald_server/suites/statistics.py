"""Statistics of shares, trials and pairs. Pure functions without dependencies; docs/statistics.md explains them."""

import math
import random
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Final, NamedTuple

CONFIDENCE: Final = 0.95

SIGNIFICANCE: Final = 0.05
"""The significance level of one-sided tests."""

POWER: Final = 0.8
"""The probability of finding a drop of the smallest detectable size."""

# Bisecting [0, 1] 60 times is more precise than a float.
_HALVINGS: Final = 60

# Changes are rounded to this fraction. It is divisible by 1 to 16 and by 100, so that equal changes of means of
# up to 16 trials, and of scores in percent, stay equal.
_GRID: Final = 7_207_200

# Limit of additions in an exact permutation test: 0.2 s. Enough for 16 pairs, or for many with few different changes.
_MAX_EXACT_STEPS: Final = 200_000

# Fewest broken pairs that are significant if none is fixed: (1/2)^5 is below 5 %.
_FEWEST_BROKEN: Final = 5


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def wilson(hits: float, trials: float, confidence: float = CONFIDENCE) -> Interval:
    """Return the two-sided score interval of the share hits / trials; 0 to 1 without trials.

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
    """Return the exact one-sided upper bound of the share hits / trials; 1 without trials.

    With 0 hits it is 1 - (1 - confidence)^(1/trials), about 3/trials at 95 % (the rule of three).
    Raises ValueError unless 0 <= hits <= trials.
    Source: Clopper and Pearson, Biometrika 26(4), 1934.
    """
    _check(hits, trials)
    if hits == trials:
        return 1.0
    low, high = hits / trials, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _at_most(hits, trials, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def pass_at_k(trials: int, passed: int, k: int) -> float | None:
    """Return the probability that at least one of k trials passes; None with fewer than k trials.

    Unbiased: the share of all groups of k of these trials in which at least one passed.
    Source: Chen et al., Evaluating Large Language Models Trained on Code, arXiv 2107.03374, 2021.
    """
    _check_trials(trials, passed, k)
    return 1 - math.comb(trials - passed, k) / math.comb(trials, k) if trials >= k else None


def pass_hat_k(trials: int, passed: int, k: int) -> float | None:
    """Return the probability that all of k trials pass (pass^k); None with fewer than k trials.

    Unbiased: the share of all groups of k of these trials in which all passed.
    Source: Yao et al., tau-bench, arXiv 2406.12045, 2024.
    """
    _check_trials(trials, passed, k)
    return math.comb(passed, k) / math.comb(trials, k) if trials >= k else None


class MeanEstimate(NamedTuple):
    """A mean over cases."""

    value: float
    interval: Interval


def estimate_mean(shares: Iterable[tuple[float, int]], groups: float = 1.0) -> MeanEstimate:
    """Return the mean share of the cases, with its interval. Raises ValueError without cases.

    shares: pairs of a share from 0 to 1 and the number of cases with it. groups: the most independent
    observations that one case may count as, at least 1; for example its number of trials.
    The interval is Wilson's with an effective number of cases. That number is above the real one if the shares
    vary less than verdicts of 0 or 1 would, because each case has several trials. The factor is computed with one
    passing and one failing case added, so that few cases, or cases that all agree, do not overstate it.
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
    size = cases * min(middle * (1 - middle) / variance, groups)
    mean = total / cases
    return MeanEstimate(mean, wilson(mean * size, size))


def mcnemar_p(broken: int, fixed: int) -> float:
    """Return the exact one-sided p-value for more broken than fixed pairs; 1 if none is broken.

    Sources: McNemar, Psychometrika 12(2), 1947; exact: the binomial test of the pairs that changed.
    """
    return min(_at_most(fixed, broken + fixed, 0.5), 1.0) if broken else 1.0


def permutation_p(changes: Sequence[float]) -> float:
    """Return the one-sided p-value for a fall of paired values; 1 without changes.

    changes: from -1 to 1. Under the null hypothesis each change could as well have the other sign. All
    combinations of signs are counted if that is cheap; else up to 20,000 are drawn, always the same ones.
    Sources: Fisher, The Design of Experiments, 1935, section 21; p-values of drawn permutations are never 0:
    Phipson and Smyth, Statistical Applications in Genetics and Molecular Biology 9(1), 2010.
    """
    steps = [step for step in (round(change * _GRID) for change in changes) if step]
    # With random signs, the sum is at most the observed one if the negative changes add up to at least `negative`.
    sizes = [abs(step) for step in steps]
    negative = sum(-step for step in steps if step < 0)
    exact = _exact_tail(sizes, negative)
    return _drawn_tail(sizes, negative) if exact is None else exact


def _exact_tail(sizes: list[int], least: int) -> float | None:
    """Return the probability that a random subset of sizes sums to at least `least`; None if counting takes too long."""
    ways: dict[int, int] = {0: 1}
    budget = _MAX_EXACT_STEPS
    for size in sizes:
        budget -= len(ways)
        if budget < 0:
            return None
        longer = dict(ways)
        for total, count in ways.items():
            longer[total + size] = longer.get(total + size, 0) + count
        ways = longer
    return sum(count for total, count in ways.items() if total >= least) / (1 << len(sizes))


def _drawn_tail(sizes: list[int], least: int) -> float:
    """Estimate the probability of `_exact_tail` by drawing subsets.

    A subset is one integer with a bit for each size. Each plane is an integer with one binary digit of every size,
    so that counting bits gives the sum.
    """
    planes = [
        (1 << digit, int("".join("1" if size >> digit & 1 else "0" for size in sizes), 2))
        for digit in range(max(sizes).bit_length())
    ]
    # Fewer draws for a million pairs, which then take seconds; the estimate of p is still within 0.01.
    draws = max(2000, min(20_000, 200_000_000 // len(sizes)))
    source = random.Random(len(sizes))  # noqa: S311  equal inputs must give equal figures
    hits = 0
    for _ in range(draws):
        subset = source.getrandbits(len(sizes))
        negative = sum(worth * (plane & subset).bit_count() for worth, plane in planes)
        hits += negative >= least
    return (hits + 1) / (draws + 1)


def effect_size(changes: Sequence[float]) -> float | None:
    """Return the mean change in standard deviations of the changes; None for fewer than 2, or equal ones.

    Source: d_z in Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988, section 2.3.5.
    """
    if len(changes) < 2:
        return None
    mean = math.fsum(changes) / len(changes)
    variance = math.fsum((change - mean) ** 2 for change in changes) / (len(changes) - 1)
    # Rounding alone makes the variance of equal changes differ from 0.
    return mean / math.sqrt(variance) if variance > 1e-18 else None


def change_interval(both: float, broken: float, fixed: float, neither: float) -> Interval:
    """Return the interval of the change of a share over pairs, after minus before; -1 to 1 without pairs.

    both: number of pairs that passed before and after. neither: of pairs that failed before and after.
    Source: Newcombe, Statistics in Medicine 17(22), 1998, pages 2635 to 2650, method 10.
    """
    pairs = both + broken + fixed + neither
    if not pairs:
        return Interval(-1.0, 1.0)
    before, after = both + broken, both + fixed
    old, new = before / pairs, after / pairs
    old_low, old_high = wilson(before, pairs)
    new_low, new_high = wilson(after, pairs)
    margins = before * (pairs - before) * after * (pairs - after)
    covariance: float = both * neither - broken * fixed
    if covariance > 0:
        covariance = max(covariance - pairs / 2, 0)
    phi = covariance / math.sqrt(margins) if margins else 0.0

    def reach(one: float, other: float) -> float:
        return math.sqrt(max(one * one - 2 * phi * one * other + other * other, 0.0))

    change = new - old
    return Interval(
        max(change - reach(new - new_low, old_high - old), -1.0),
        min(change + reach(new_high - new, old - old_low), 1.0),
    )


def smallest_detectable_drop(pairs: int, noise: float = 0.0) -> float | None:
    """Return the smallest drop of a share that `mcnemar_p` finds with 80 % power; None if it does not find even 1.

    noise: share of pairs that change from failed to passed by chance; the same share changes back by chance.
    Exact without noise. With noise: the approximation of Connett, Smith and McHugh, Statistics in Medicine 6(5),
    1987, but at least the exact value.
    """
    if pairs < _FEWEST_BROKEN:
        return None
    # Binomial: with this drop, fewer than _FEWEST_BROKEN pairs break with a probability of 1 - POWER.
    exact = upper_bound(_FEWEST_BROKEN - 1, pairs, POWER)
    alpha, beta = (NormalDist().inv_cdf(share) for share in (1 - SIGNIFICANCE, POWER))

    def needed(drop: float) -> float:
        changed = min(drop + 2 * noise, 1.0)
        spread = math.sqrt(max(changed - drop * drop, 0.0))
        return float((alpha * math.sqrt(changed) + beta * spread) / drop) ** 2

    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if needed(middle) > pairs:
            low = middle
        else:
            high = middle
    return max(exact, high)


def _at_most(hits: int, trials: int, share: float) -> float:
    """Return the binomial probability of at most `hits` hits. share: of one hit, between 0 and 1."""
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
