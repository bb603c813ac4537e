"""Metrics of remote evaluators: tasks, instances, leases and circuits."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from . import buckets
from .families import add_count, add_histogram, counter, gauge
from .histogram import Histogram, series_of
from .labels import OTHER
from .room import Room

_INSTANCE_SERIES = 12  # per remote type: three modes in four states


class RemoteTally:
    """Latency of one remote type's tasks."""

    __slots__ = ("durations", "label", "observe")

    def __init__(self, label: str, durations: Histogram) -> None:
        self.label = label
        self.durations = durations
        self.observe = durations.observe


class RemoteTallies:
    """Creates and exports the tallies of remote types; exports instances and circuits."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._tallies: dict[str, RemoteTally] = {}
        self._other = RemoteTally(OTHER, Histogram(buckets.DURATION))
        self._instances: Callable[[], Mapping[tuple[str, str, str], int]] = dict
        self._open_circuits: Callable[[], int] = int
        self._leases_expired = 0

    def tally(self, type: str) -> RemoteTally:  # noqa: A002 - the word of the contract
        """Return the counter of a remote type's tasks, the same object each time."""
        found = self._tallies.get(type)
        if found is not None:
            return found
        if type == OTHER or not self._room.admit("detail", series_of(buckets.DURATION) + _INSTANCE_SERIES):
            return self._other
        return self._tallies.setdefault(type, RemoteTally(type, Histogram(buckets.DURATION)))

    def lease_expired(self) -> None:
        """Count an expired lease."""
        self._leases_expired += 1

    def watch(
        self,
        *,
        instances: Callable[[], Mapping[tuple[str, str, str], int]],
        open_circuits: Callable[[], int],
    ) -> None:
        """Call these at every scrape, in its thread: instances by type, mode and state; open circuits."""
        self._instances = instances
        self._open_circuits = open_circuits

    def families(self) -> Iterator[Metric]:
        """Yield the current families."""
        instances = GaugeMetricFamily(
            "evald_remote_instances",
            "Instances of remote evaluators, by the way they came and by their state.",
            labels=["evaluator", "mode", "state"],
        )
        shown: dict[tuple[str, str, str], int] = {}
        for (name, mode, state), count in self._instances().items():
            label = name if name in self._tallies else OTHER
            shown[label, mode, state] = shown.get((label, mode, state), 0) + count
        for labels, count in shown.items():
            instances.add_metric(labels, count)
        yield instances
        durations = HistogramMetricFamily(
            "evald_remote_task_duration_seconds",
            "How long remote instances took for a task, each attempt counted, waiting for a place left out.",
            labels=["evaluator"],
        )
        for tally in [*self._tallies.values(), self._other]:
            add_histogram(durations, [tally.label], tally.durations)
        yield durations
        expired = counter(
            "evald_remote_lease_expirations", "Leases that ran out because nobody renewed them."
        )
        add_count(expired, {}, self._leases_expired)
        yield expired
        yield gauge(
            "evald_remote_circuit_open",
            "Remote instances whose circuit is open: they failed too often and are left alone for a while.",
            self._open_circuits,
        )
