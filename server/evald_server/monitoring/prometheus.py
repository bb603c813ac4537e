"""Helpers to export counters as Prometheus metric families, shared by all modules with metrics."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import samples
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from evald.result import Kind, Verdict

from .histogram import Exemplar, Histogram

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


def add_count(
    family: Metric, labels: Mapping[str, str], value: float, exemplar: Exemplar | None = None
) -> None:
    """Append one count to a counter family."""
    exported = _exemplar(exemplar) if exemplar else None
    family.samples.append(samples.Sample(f"{family.name}_total", dict(labels), value, None, exported))


def counts(
    name: str, documentation: str, label: str, found: Mapping[str, float], **more: str
) -> CounterMetricFamily:
    """Return a counter family with the counts by the values of a label. more: labels of all of them."""
    family = counter(name, documentation)
    for value, count in dict(found).items():
        add_count(family, {**more, label: value}, count)
    return family


def gauge(name: str, documentation: str, read: Callable[[], float] | None) -> Metric:
    """Return a gauge family with one number, without labels. read: returns the number; None for an empty family."""
    return GaugeMetricFamily(name, documentation, value=None if read is None else read())


def add_histogram(family: HistogramMetricFamily, labels: Iterable[str], histogram: Histogram) -> None:
    """Append one histogram with its exemplars to a histogram family."""
    *counts, total = histogram.cells[:]
    buckets: list[tuple[str, float] | tuple[str, float, samples.Exemplar]] = []
    cumulative = 0.0
    for index, (bound, count) in enumerate(zip((*histogram.bounds, "+Inf"), counts, strict=True)):
        cumulative += count
        exemplar = histogram.exemplars.get(index)
        if exemplar is None:
            buckets.append((str(bound), cumulative))
        else:
            buckets.append((str(bound), cumulative, _exemplar(exemplar)))
    family.add_metric(list(labels), buckets, total)


def _exemplar(exemplar: Exemplar) -> samples.Exemplar:
    return samples.Exemplar({"trace_id": exemplar.trace_id}, exemplar.value, exemplar.time)
