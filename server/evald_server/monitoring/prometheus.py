"""Metric families of Prometheus, and helpers to export counters as such, shared by all modules with metrics."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, product

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from evald.result import Kind, Verdict

from .histogram import Histogram
from .series_limit import SeriesLimit

OTHER = "other"
"""The label value for everything above a limit."""

ASSERTION_VERDICTS = (Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED)
METRIC_VERDICTS = (Verdict.PASSED, Verdict.ERROR, Verdict.SKIPPED)
VERDICT_NAMES = {verdict: verdict.name.lower() for verdict in Verdict}

# Longer values are unreadable in the legend of a chart.
_MAX_CALLER_VALUE = 64


def verdicts(kind: Kind) -> Sequence[Verdict]:
    """Return the verdicts that an evaluator of this kind can give."""
    return ASSERTION_VERDICTS if kind is Kind.ASSERTION else METRIC_VERDICTS


def caller_value(value: str) -> str:
    """Return the caller's value, or "other" if it is too long or not printable."""
    return value if len(value) <= _MAX_CALLER_VALUE and value.isprintable() else OTHER


def counter(name: str, documentation: str) -> CounterMetricFamily:
    """Return an empty counter family. The exposition appends `_total` to its name."""
    return CounterMetricFamily(name, documentation, labels=())


def add_count(family: Metric, labels: Mapping[str, str], value: float) -> None:
    """Append one count to a counter family."""
    family.add_sample(f"{family.name}_total", dict(labels), value)


class Counts:
    """A counter family and its counts, by the values of its labels.

    labels: the values of each label; the counts of all their combinations are exported as 0 from the start. more: the
    number of other counts, with values that are not known in advance.
    """

    def __init__(
        self, limit: SeriesLimit, name: str, documentation: str, /, *, more: int = 0, **labels: Sequence[str]
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self.counts: dict[tuple[str, ...], float] = dict.fromkeys(product(*labels.values()), 0)
        limit.add_fixed(len(self.counts) + more)

    def add(self, *values: str, count: float = 1) -> None:
        """Add to a count. values: of the labels, in their order."""
        self.counts[values] = self.counts.get(values, 0) + count

    def family(self) -> Metric:
        """Return the current metric family."""
        family = counter(self._name, self._documentation)
        for values, count in self.counts.copy().items():
            add_count(family, dict(zip(self._labels, values, strict=True)), count)
        return family


class Gauge:
    """A gauge family with one number and no labels. It has no series before `set_function`."""

    def __init__(self, limit: SeriesLimit, name: str, documentation: str) -> None:
        limit.add_fixed(1)
        self._name = name
        self._documentation = documentation
        self._read: Callable[[], float] | None = None

    def set_function(self, read: Callable[[], float]) -> None:
        """Set the function that returns the number. Each scrape calls it in its thread."""
        self._read = read

    def value(self) -> float:
        """Return the number; 0 before `set_function`."""
        return 0 if self._read is None else self._read()

    def family(self) -> Metric:
        """Return the current metric family."""
        value = None if self._read is None else self.value()
        return GaugeMetricFamily(self._name, self._documentation, value=value)


def add_histogram(family: HistogramMetricFamily, labels: Iterable[str], histogram: Histogram) -> None:
    """Append one histogram to a histogram family."""
    *counts, total = histogram.cells[:]
    bounds = [str(bound) for bound in (*histogram.bounds, "+Inf")]
    family.add_metric(list(labels), list(zip(bounds, accumulate(counts), strict=True)), total)
