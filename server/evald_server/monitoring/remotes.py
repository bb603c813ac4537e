"""Metrics of remote evaluators: tasks, instances, leases and circuits."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from .histogram import DURATION_BOUNDS, Histogram, series_count
from .prometheus import OTHER, Counts, Gauge, add_histogram
from .series_limit import SeriesLimit

_TYPE_SERIES = series_count(DURATION_BOUNDS) + 12  # of a type: instances in three modes and four states


class RemoteMetrics:
    """The metrics of remote evaluators: task durations by type, instances, leases and circuit breakers.

    instances: returns the number of instances by (type, mode, state). Each scrape calls it in its thread.
    """

    def __init__(self, limit: SeriesLimit) -> None:
        self._limit = limit
        self._tasks: dict[str, Histogram] = {}  # durations by type
        self._other = Histogram(DURATION_BOUNDS)
        self.instances: Callable[[], Mapping[tuple[str, str, str], int]] = dict
        limit.add_fixed(_TYPE_SERIES)  # of "other"
        self._leases_expired = Counts(
            limit, "evald_remote_lease_expirations", "Leases that expired because they were not renewed."
        )
        self.open_circuits = Gauge(
            limit, "evald_remote_circuit_open", "Remote instances whose circuit breaker is open."
        )

    def tasks(self, type: str) -> Histogram:  # noqa: A002 - the word of the contract
        """Return the duration histogram of a remote type's tasks, the same object each time."""
        found = self._tasks.get(type)
        if found is not None:
            return found
        if type == OTHER or not self._limit.reserve("histograms", _TYPE_SERIES):
            return self._other
        return self._tasks.setdefault(type, Histogram(DURATION_BOUNDS))

    def lease_expired(self) -> None:
        """Count an expired lease."""
        self._leases_expired.add()

    def families(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        instances = GaugeMetricFamily(
            "evald_remote_instances",
            "Instances of remote evaluators, by how they connected and by state.",
            labels=["evaluator", "mode", "state"],
        )
        counts: dict[tuple[str, str, str], int] = {}
        for (name, mode, state), count in self.instances().items():
            label = name if name in self._tasks else OTHER
            counts[label, mode, state] = counts.get((label, mode, state), 0) + count
        for labels, count in counts.items():
            instances.add_metric(labels, count)
        yield instances
        durations = HistogramMetricFamily(
            "evald_remote_task_duration_seconds",
            "Duration of a task on a remote instance, each attempt counted, without queueing.",
            labels=["evaluator"],
        )
        for label, histogram in (self._tasks | {OTHER: self._other}).items():
            add_histogram(durations, [label], histogram)
        yield durations
        yield from (self._leases_expired.family(), self.open_circuits.family())
