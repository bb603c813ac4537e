"""What metrics measure: a histogram for each unit, and the last value."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from . import buckets
from .families import add_histogram
from .histogram import Histogram


class Measured:
    """What an evaluator measures in one unit. last: None before the first value."""

    __slots__ = ("histogram", "last")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.histogram = Histogram(bounds)
        self.last: float | None = None

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value."""
        self.histogram.observe(value, count)
        self.last = value


def value_families(measured_by_type: Iterable[tuple[str, Mapping[str, Measured]]]) -> Iterator[Metric]:
    """measured_by_type: the type's label, and what it measures by unit."""
    families = {
        unit: HistogramMetricFamily(
            f"evald_metric_value_{unit}",
            f"Values measured by evaluators whose unit is {unit}"
            + (", or a plain number, or one without a family of its own." if unit == "count" else ".")
            + " Buckets can differ between evaluators: never add evaluators up.",
            labels=["evaluator"],
        )
        for unit in buckets.BY_UNIT
    }
    last = GaugeMetricFamily(
        "evald_metric_last_value",
        "The value measured last, for people. Of one pod, and of one conversation among many.",
        labels=["evaluator", "unit"],
    )
    for label, by_unit in measured_by_type:
        for unit, measured in list(by_unit.items()):
            add_histogram(families[buckets.family_unit(unit)], [label], measured.histogram)
            if measured.last is not None:
                last.add_metric([label, unit], measured.last)
    yield from families.values()
    yield last
