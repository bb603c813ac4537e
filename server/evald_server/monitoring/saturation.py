"""Metrics of saturation: running, queued and refused evaluations, and the lag of the event loop."""

from collections import deque
from collections.abc import Iterator

from prometheus_client.core import Metric

from .prometheus import OTHER, Counts, Gauge
from .series_limit import SeriesLimit

# A minute's worth, so that a scrape every minute misses no peak.
_LAGS = 240


class Saturation:
    """The metrics of the server's load: refusals, running and queued evaluations, lag."""

    def __init__(self, limit: SeriesLimit) -> None:
        self._limit = limit
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
            "Delay of the event loop: the maximum of the last 60 seconds.",
        )
        self._lags: deque[float] = deque(maxlen=_LAGS)
        self._lag.set_function(lambda: max(self._lags.copy(), default=0.0))

    def rejected(self, reason: str) -> None:
        """Count an evaluation refused before it started. reason: from a short fixed list."""
        if (reason,) not in self._rejections.counts and not self._limit.reserve("reason", 1):
            reason = OTHER
        self._rejections.add(reason)

    def loop_lag(self, seconds: float) -> None:
        """Record the delay between requested and actual wake-up of the event loop. Call it four times a second."""
        self._lags.append(seconds)

    def families(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        return (
            metric.family()
            for metric in (self.inflight, self.queued, self.store_degraded, self._rejections, self._lag)
        )
