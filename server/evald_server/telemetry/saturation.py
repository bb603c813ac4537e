"""Metrics of saturation: running, queued and refused evaluations, and the lag of the event loop."""

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from .families import add_count, counter, gauge
from .labels import OTHER
from .room import Room
from .window import RecentWorst


class Saturation:
    """Counts refusals and exports the load. clock: monotonic seconds."""

    def __init__(self, room: Room, clock: Callable[[], float]) -> None:
        self._room = room
        self._clock = clock
        self._rejections: dict[str, int] = {}
        self._inflight: Callable[[], int] | None = None
        self._queued: Callable[[], int] | None = None
        self._lag = RecentWorst()

    def rejected(self, reason: str) -> None:
        """Count an evaluation refused before it started. reason: from a short fixed list."""
        if reason not in self._rejections and not self._room.admit("reason", 1):
            reason = OTHER
        self._rejections[reason] = self._rejections.get(reason, 0) + 1

    def watch(self, *, inflight: Callable[[], int], queued: Callable[[], int]) -> None:
        """Call these at every scrape, in its thread: running and queued evaluations."""
        self._inflight = inflight
        self._queued = queued

    def lagged(self, seconds: float, now: float) -> None:
        """Record the event loop's lag at this moment."""
        self._lag.observe(seconds, now)

    def families(self) -> Iterator[Metric]:
        """Yield the current families."""
        yield gauge("evald_inflight_evaluations", "Evaluations that run now.", self._inflight)
        yield gauge("evald_queued_evaluations", "Evaluations that wait to be let in.", self._queued)
        rejected = counter(
            "evald_evaluations_rejected", "Evaluations refused before they began, by the reason."
        )
        for reason, count in self._rejections.copy().items():
            add_count(rejected, {"reason": reason}, count)
        yield rejected
        yield gauge(
            "evald_event_loop_lag_seconds",
            "How much later than asked for the event loop woke up: the worst of the last 30 to 60 seconds.",
            lambda: self._lag.worst(self._clock()),
        )
