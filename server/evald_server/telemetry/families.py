"""Building blocks of Prometheus families: what the tallies of every subject are exported with."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import samples
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from .histogram import Exemplar, Histogram


def counter(name: str, documentation: str) -> CounterMetricFamily:
    """An empty family; the exposition appends `_total` to its name."""
    return CounterMetricFamily(name, documentation, labels=())


def add_count(
    family: Metric, labels: Mapping[str, str], value: float, exemplar: Exemplar | None = None
) -> None:
    """Append one count to the family of a counter."""
    shown = _exemplar(exemplar) if exemplar else None
    family.samples.append(samples.Sample(f"{family.name}_total", dict(labels), value, None, shown))


def gauge(name: str, documentation: str, read: Callable[[], float] | None) -> Metric:
    """A family of one number without labels. read: asked now; without it the family is empty."""
    return GaugeMetricFamily(name, documentation, value=None if read is None else read())


def add_histogram(family: HistogramMetricFamily, labels: Iterable[str], histogram: Histogram) -> None:
    """Append one histogram, with a trace for each bucket that has one."""
    *counts, total = histogram.cells[:]
    shown: list[tuple[str, float] | tuple[str, float, samples.Exemplar]] = []
    below = 0.0
    for index, (bound, count) in enumerate(zip((*histogram.bounds, "+Inf"), counts, strict=True)):
        below += count
        exemplar = histogram.exemplars.get(index)
        shown.append(
            (str(bound), below, _exemplar(exemplar)) if exemplar is not None else (str(bound), below)
        )
    family.add_metric(list(labels), shown, total)


def _exemplar(exemplar: Exemplar) -> samples.Exemplar:
    return samples.Exemplar({"trace_id": exemplar.trace_id}, exemplar.value, exemplar.time)
