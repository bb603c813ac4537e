"""A limit on the number of series, so that too many label values do not make scrapes slow."""

from collections import Counter
from collections.abc import Callable, Mapping

from prometheus_client.core import Metric

from .prometheus import counts


class SeriesLimit:
    """A limit on new series and on new values of each label.

    series: how many may still be added in total. values: how many may still be added, by label. overflows: number of
    refused reservations, by label.
    """

    def __init__(self, series: int, values: Mapping[str, float]) -> None:
        self._series = series
        self._values = dict(values)
        self.overflows = dict.fromkeys(values, 0)

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

    The first count of a code reserves its series. If that fails, `overflow` counts the code instead.
    """

    def __init__(
        self, size: int, reserve: Callable[[], bool] = lambda: True, overflow: "CodeCounts | None" = None
    ) -> None:
        self.cells = [0] * size
        self._reserve = reserve
        self._overflow = overflow

    def add(self, index: int) -> None:
        """Count one code, by its index in the list."""
        if self.cells[index] or self._overflow is None or self._reserve():
            self.cells[index] += 1
        else:
            self._overflow.cells[index] += 1


def overflow_family(*limits: SeriesLimit) -> Metric:
    """Return the metric family of refused reservations, by label."""
    lookups: Counter[str] = Counter()
    for limit in limits:
        lookups.update(limit.overflows)
    text = "Lookups of a label value beyond the limit, counted as other."
    return counts("evald_label_overflow", text, "label", lookups)
