"""Histograms: counts by bucket, and bounds of the buckets.

One thread writes and another reads, without locks. A reader copies each list in one step, which is atomic under the
interpreter lock, so the buckets of a histogram always add up to its count.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise

from evald.result import Metric

DURATION_BOUNDS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

# 0 and 1 have their own buckets, because most assertions have no other scores. 0.8 is the default threshold.
RATIO_BOUNDS = (0.0, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)

BOUNDS_BY_UNIT: Mapping[str, tuple[float, ...]] = {
    "seconds": DURATION_BOUNDS,
    "tokens": (10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5),
    "characters": (10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5),
    "words": (3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4),
    "count": (0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 50.0, 100.0),
    "ratio": RATIO_BOUNDS,
    "bytes": (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0),
    "usd": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
}
"""Bounds for metric values, by unit. Each unit has its own family."""

MAX_OWN_BOUNDS = 20
"""The limit of `MetricDescriptor.bucket_bounds` in the protos."""

# Larger values could make the sum infinite or NaN, and then it would stay so.
_MAX_OBSERVATION = 1e300


class Histogram:
    """A histogram: counts of observations by bucket.

    cells: one count per upper bound (inclusive), the count above the last bound, then the sum. All are in one list, so
    that a reader copies them at once.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self.cells: list[float] = [0] * (len(self.bounds) + 2)

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value. Ignore infinities and NaN. count: number of observations with this mean value."""
        if -_MAX_OBSERVATION < value < _MAX_OBSERVATION:
            self.cells[bisect_left(self.bounds, value)] += count
            self.cells[-1] += value * count


def series_count(bounds: Sequence[float]) -> int:
    """Return the number of series of a histogram in a scrape: the bounds, +Inf, sum and count."""
    return len(bounds) + 3


def family_unit(unit: str) -> str:
    """Return the unit whose metric family exports values of this unit: "count" for plain numbers and unknown units."""
    return unit if unit in BOUNDS_BY_UNIT else "count"


def value_bounds(metric: Metric) -> Sequence[float]:
    """Return the metric's own bounds if they are finite, strictly increasing and at most 20, else its unit's."""
    own = metric.bucket_bounds
    if 0 < len(own) <= MAX_OWN_BOUNDS:
        edges = (float("-inf"), *own, float("inf"))
        if all(low < high for low, high in pairwise(edges)):
            return own
    return BOUNDS_BY_UNIT[family_unit(metric.unit)]
