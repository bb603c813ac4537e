"""Observations by bucket, some of them with the trace that shows one.

One thread writes, another reads, without locks. Each list is copied in one step, which the
interpreter lock makes whole, so the buckets of a histogram always add up to its count.
"""

import re
import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

is_trace_id = re.compile(r"[0-9a-f]{32}").fullmatch

_LARGEST = 1e300  # leaves room to add up: a sum that became infinite or NaN would stay so


class Exemplar(NamedTuple):
    """A trace that shows one observation. `time`: Unix time in seconds."""

    trace_id: str
    value: float
    time: float


class Histogram:
    """Observations by bucket.

    `cells`: one count per upper bound (inclusive), the count above them all, then the sum.
    """

    __slots__ = ("bounds", "cells", "exemplars")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self.cells: list[float] = [0] * (len(self.bounds) + 2)
        self.exemplars: dict[int, Exemplar] = {}

    def observe(self, value: float, count: int = 1) -> None:
        """Count a number. Infinities and NaN are left out."""
        if -_LARGEST < value < _LARGEST:
            cells = self.cells
            cells[bisect_left(self.bounds, value)] += count
            cells[-1] += value * count

    def trace(self, value: float, trace_id: str) -> None:
        """Let the bucket of this number point to a trace."""
        self.exemplars[bisect_left(self.bounds, value)] = Exemplar(trace_id, value, time.time())


def series_of(bounds: Sequence[float]) -> int:
    """How many series a histogram of these bounds is in a scrape: +Inf, sum and count besides the bounds."""
    return len(bounds) + 3
