"""The registry of metric families: counters and gauges of prometheus_client, and histograms of our own."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, product
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

OTHER: Final = "other"
"""The value of a label for all values that have no series of their own."""

DURATION_BOUNDS: Final = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

_MAX_TYPES: Final = 150

# Larger values could make the sum infinite or NaN, and then it would stay so.
_MAX_OBSERVATION: Final = 1e300

# Longer values are unreadable in the legend of a chart.
_MAX_CALLER_VALUE: Final = 64


def caller_value(value: str) -> str:
    """Return a label's value that a caller chose, or "other" if it is too long or not printable."""
    return value if len(value) <= _MAX_CALLER_VALUE and value.isprintable() else OTHER


def shown(collector: Collector) -> Iterator[Metric]:
    """Yield the families that have samples, without the times at which prometheus_client created their series."""
    for family in collector.collect():
        family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        if family.samples:
            yield family


def total(collector: Collector) -> float:
    """Return the sum of a metric's samples."""
    return sum(sample.value for family in shown(collector) for sample in family.samples)


class Counts(Counter):
    """A counter, by the values of its labels."""

    def add(self, *values: str, count: float = 1) -> None:
        """Add to a count. values: of the labels, in their order."""
        (self.labels(*values) if values else self).inc(count)


class Histogram:
    """Counts of observations by bucket. The one of prometheus_client takes no aggregates.

    One thread at a time observes: the event loop's, or the one that holds `Telemetry.folding`.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, mean: float, count: int = 1) -> None:
        """Count so many observations with this mean, all in one bucket. Ignore infinities and NaN."""
        if -_MAX_OBSERVATION < mean < _MAX_OBSERVATION:
            self._counts[bisect_left(self._bounds, mean)] += count
            self._sum += mean * count

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Return the cumulative counts by upper bound, and the sum."""
        counts = accumulate(self._counts.copy())
        return list(zip([*map(str, self._bounds), "+Inf"], counts, strict=True)), self._sum


class Histograms(Collector):
    """A family of histograms, by the values of its labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._name, self._text, self._names, self._bounds = name, text, labels, bounds
        self._histograms: dict[tuple[str, ...], Histogram] = {}

    def labels(self, *values: str, bounds: Sequence[float] = ()) -> Histogram:
        """Return the histogram of these values, the same one each time. bounds: instead of the family's own."""
        histogram = self._histograms.get(values)
        return histogram or self._histograms.setdefault(values, Histogram(bounds or self._bounds))

    def collect(self) -> Iterable[Metric]:
        """Yield the family."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._names)
        for values, histogram in self._histograms.copy().items():
            family.add_metric(values, *histogram.buckets())
        yield family


class Families(CollectorRegistry):
    """A registry that creates its families."""

    def counter(self, name: str, text: str, /, *labels: str, **known: Sequence[str]) -> Counts:
        """Return a new counter.

        known: further labels, whose values are known in advance. If all are, their combinations are exported as 0 from the
        start, so that a rate sees their first increase.
        """
        counts = Counts(name, text, (*labels, *known), registry=self)
        for values in product(*known.values()) if known and not labels else ():
            counts.labels(*values)
        return counts

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Return a new gauge."""
        return Gauge(name, text, labels, registry=self)

    def histograms(
        self, name: str, text: str, *labels: str, bounds: Sequence[float] = DURATION_BOUNDS
    ) -> Histograms:
        """Return a new family of histograms."""
        family = Histograms(name, text, labels, bounds)
        self.register(family)
        return family


class TypeNames:
    """The names of evaluator types that have series of their own: the first ones, because plugins choose names."""

    def __init__(self, families: Families) -> None:
        text = "Lookups of a label value beyond the limit, counted as other."
        self._overflow = families.counter("evald_label_overflow", text, label=("evaluator",))
        self._names: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def label(self, name: str) -> str:
        """Return the name, or "other" beyond the limit."""
        if name not in self._names:
            if len(self._names) >= _MAX_TYPES:
                self._overflow.add("evaluator")
                return OTHER
            self._names.add(name)
        return name
