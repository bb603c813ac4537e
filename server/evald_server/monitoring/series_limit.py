"""A limit on the number of series, so that too many label values do not make scrapes slow."""

import math
from collections.abc import Mapping


class SeriesLimit:
    """A limit on series and on values of each label.

    series: how many a scrape may have. values: how many values a label may have. fixed: number of the series that are
    reserved from the start. overflows: number of refused reservations, by label.
    """

    def __init__(self, series: int, values: Mapping[str, float]) -> None:
        self._series = series
        self._values = dict(values)
        self.fixed = 0
        self.overflows = dict.fromkeys(values, 0)

    def add_fixed(self, series: int) -> None:
        """Reserve the series of a family that it always has. The creator of the limit checks that all of them fit."""
        self.fixed += series
        self._series -= series

    def split(self, series: int, *labels: str) -> "SeriesLimit":
        """Return a limit for so many of the series, without a limit on values of these labels."""
        self.add_fixed(series)
        part = SeriesLimit(series, dict.fromkeys(labels, math.inf))
        self.overflows |= dict.fromkeys(labels, 0)
        part.overflows = self.overflows
        return part

    def reserve(self, label: str, series: int, values: int = 1) -> bool:
        """Try to reserve series and values of a label. Return whether this succeeded."""
        if series > self._series or values > self._values[label]:
            self.overflows[label] += 1
            return False
        self._series -= series
        self._values[label] -= values
        return True


class CodeCounts:
    """Counts by code, for a closed list of codes.

    The first count of a code reserves its series. If that fails, `overflow` counts the code instead. limit, overflow:
    None if the series of all codes are reserved.
    """

    def __init__(self, limit: SeriesLimit | None = None, overflow: "CodeCounts | None" = None) -> None:
        self.counts: dict[str, int] = {}
        self._limit = limit
        self._overflow = overflow

    def add(self, code: str) -> None:
        """Count one code."""
        counts = self.counts
        if code in counts:
            counts[code] += 1
        elif self._limit is None or self._overflow is None or self._limit.reserve("code", 1):
            counts[code] = 1
        else:
            self._overflow.add(code)
