"""Metrics of saturation: running, queued and refused evaluations, and the lag of the event loop."""

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from .prometheus import OTHER, counts, gauge
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
        self._rejections: dict[str, int] = {}
        self._inflight: Callable[[], int] | None = None
        self._queued: Callable[[], int] | None = None
        self._lag = RecentMaximum()

    def rejected(self, reason: str) -> None:
        """Count an evaluation refused before it started. reason: from a short fixed list."""
        if reason not in self._rejections and not self._limit.reserve("reason", 1):
            reason = OTHER
        self._rejections[reason] = self._rejections.get(reason, 0) + 1

    def watch(self, *, inflight: Callable[[], int], queued: Callable[[], int]) -> None:
        """Set the functions that return the numbers of running and queued evaluations.

        Each scrape calls them in its thread.
        """
        self._inflight = inflight
        self._queued = queued

    def loop_lag(self, seconds: float) -> None:
        """Record the delay between requested and actual wake-up of the event loop. Call at least once a second."""
        self._lag.observe(seconds, self._clock())

    def families(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        yield gauge("evald_inflight_evaluations", "Evaluations that are running now.", self._inflight)
        yield gauge("evald_queued_evaluations", "Evaluations in the queue.", self._queued)
        text = "Evaluations refused before they started, by reason."
        yield counts("evald_evaluations_rejected", text, "reason", self._rejections)
        yield gauge(
            "evald_event_loop_lag_seconds",
            "Delay of the event loop: the maximum of the last 30 to 60 seconds.",
            lambda: self._lag.value(self._clock()),
        )
