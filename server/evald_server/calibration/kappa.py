"""Cohen's kappa: the agreement of two raters beyond chance."""

import random
from typing import Final, NamedTuple

from evald_server.suites.statistics import CONFIDENCE, Interval

# The sampling takes 6 ms. Between seeds, the ends then differ by about a fiftieth of the interval's width.
_DRAWS: Final = 2000

# Jeffreys' prior: half a case in each cell.
_PRIOR: Final = 0.5


class Confusion(NamedTuple):
    """Counts of verdict pairs, the human's first and the judge's second. Fractions of cases are allowed."""

    pass_pass: float = 0
    pass_fail: float = 0
    fail_pass: float = 0
    fail_fail: float = 0

    @property
    def total(self) -> float:
        """The number of pairs."""
        return sum(self)

    @property
    def agreed(self) -> float:
        """The number of pairs with equal verdicts."""
        return self.pass_pass + self.fail_fail


def cohen_kappa(table: Confusion) -> float | None:
    """Return kappa: 1 is perfect agreement, 0 is chance, below 0 is worse than chance.

    None if undefined: there are no pairs, or both raters always gave the same single verdict.
    Source: Cohen, Educational and Psychological Measurement 20(1), 1960.
    """
    return _kappa(*map(float, table))


def kappa_interval(table: Confusion) -> Interval | None:
    """Return the interval of kappa; None where kappa is undefined.

    It is an equal-tailed credible interval given the table, with Jeffreys' prior on the four shares, by sampling.
    Unlike the normal approximation it does not shrink to a point when the raters never disagree; its
    upper end is then 1. The seed depends on the table alone, so equal tables give equal intervals.
    Source: Basu, Banerjee and Sen, Biometrics 56(2), 2000; the ends at no disagreement as for a share in
    Brown, Cai and DasGupta, Statistical Science 16(2), 2001.
    """
    if cohen_kappa(table) is None:
        return None
    rng = random.Random(repr(tuple(table)))  # noqa: S311 - statistics, not secrets
    draw, shapes = rng.gammavariate, [count + _PRIOR for count in table]
    # Gamma variates divided by their sum are Dirichlet distributed; kappa does not depend on the sum.
    drawn = sorted(_defined(_kappa(*[draw(shape, 1.0) for shape in shapes])) for _ in range(_DRAWS))
    tail = (1 - CONFIDENCE) / 2
    low, high = drawn[round(tail * (_DRAWS - 1))], drawn[round((1 - tail) * (_DRAWS - 1))]
    return Interval(
        -1.0 if table.agreed == 0 else low,
        1.0 if table.agreed == table.total else high,
    )


def _kappa(pass_pass: float, pass_fail: float, fail_pass: float, fail_fail: float) -> float | None:
    total = pass_pass + pass_fail + fail_pass + fail_fail
    if not total:
        return None
    human, judge = pass_pass + pass_fail, pass_pass + fail_pass
    by_chance = (human * judge + (total - human) * (total - judge)) / total
    if by_chance == total:
        return None
    return (pass_pass + fail_fail - by_chance) / (total - by_chance)


def _defined(value: float | None) -> float:
    # Kappa is undefined only if shares underflow to 0.
    return 0.0 if value is None else value
