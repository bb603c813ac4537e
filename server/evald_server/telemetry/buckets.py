"""Bucket bounds of the histograms."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from evald.evaluator import Metric

DURATION = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

# 0 and 1 have buckets of their own, because most assertions score nothing else. 0.8 is the default threshold.
RATIO = (0.0, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)

BY_UNIT: Mapping[str, tuple[float, ...]] = {
    "seconds": DURATION,
    "tokens": (10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5),
    "characters": (10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5),
    "words": (3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4),
    "count": (0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 50.0, 100.0),
    "ratio": RATIO,
    "bytes": (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0),
    "usd": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
}
"""Bounds for metric values, by unit. Each unit has its own family."""

MAX_OWN_BOUNDS = 20
"""Limit of the contract for `MetricDescriptor.bucket_bounds`."""


def family_unit(unit: str) -> str:
    """Return the unit whose family holds values of this one: "count" for plain numbers and unknown units."""
    return unit if unit in BY_UNIT else "count"


def value_bounds(metric: Metric) -> Sequence[float]:
    """Return the metric's own bounds if they are finite, strictly increasing and at most 20, else its unit's."""
    own = metric.bucket_bounds
    if 0 < len(own) <= MAX_OWN_BOUNDS:
        edges = (float("-inf"), *own, float("inf"))
        if all(low < high for low, high in pairwise(edges)):
            return own
    return BY_UNIT[family_unit(metric.unit)]
