"""Metrics of saturation: running, queued and refused evaluations, and the lag of the event loop."""

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from .prometheus import OTHER, Counts, Gauge
from .series_limit import SeriesLimit

_MAXIMUM_SECONDS = 30


class RecentMaximum:
    """The maximum of the last 30 to 60 seconds, so that a scrape every 30 seconds misses no peak."""

    def __init__(self) -> None:
        self._window = 0
        self._maxima = (0.0, 0.0)  # of the previous window and of this one

    def observe(self, value: float, now: float) -> None:
        """Record a value measured at `now`, in monotonic seconds."""
        previous, current = self._at(now)
        self._window = int(now // _MAXIMUM_SECONDS)
        self._maxima = (previous, max(current, value))

    def value(self, now: float) -> float:
        """Return the maximum; 0 if there were no values."""
        return max(self._at(now))

    def _at(self, now: float) -> tuple[float, float]:
        """Return the maxima of the previous window and of the window that contains `now`."""
        elapsed = int(now // _MAXIMUM_SECONDS) - self._window
        if elapsed == 0:
            return self._maxima
        return (self._maxima[1] if elapsed == 1 else 0.0, 0.0)


class Saturation:
    """The metrics of the server's load: refusals, running and queued evaluations, lag. clock: monotonic seconds."""

    def __init__(self, limit: SeriesLimit, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self.inflight = Gauge(limit, "evald_inflight_evaluations", "Evaluations that are running now.")
        self.queued = Gauge(limit, "evald_queued_evaluations", "Evaluations in the queue.")
        self.store_degraded = Gauge(
            limit, "evald_store_degraded", "1 while the store cannot be used; what needs no store goes on."
        )
        text = "Evaluations refused before they started, by reason."
        self._rejections = Counts(limit, "evald_evaluations_rejected", text, more=1, reason=())  # 1: "other"
        self._lag = Gauge(
            limit,
            "evald_event_loop_lag_seconds",
            "Delay of the event loop: the maximum of the last 30 to 60 seconds.",
        )
        self._maximum = RecentMaximum()
        self._lag.set_function(lambda: self._maximum.value(clock()))

    def rejected(self, reason: str) -> None:
        """Count an evaluation refused before it started. reason: from a short fixed list."""
        if (reason,) not in self._rejections.counts and not self._limit.reserve("reason", 1):
            reason = OTHER
        self._rejections.add(reason)

    def loop_lag(self, seconds: float) -> None:
        """Record the delay between requested and actual wake-up of the event loop. Call at least once a second."""
        self._maximum.observe(seconds, self._clock())

    def families(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        return (
            metric.family()
            for metric in (self.inflight, self.queued, self.store_degraded, self._rejections, self._lag)
        )
