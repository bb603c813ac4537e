"""Metrics of runs: how they end, their turns, and how many there are now."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric

from .histogram import Histogram
from .prometheus import add_count, add_histogram, counter, gauge

RUN_OUTCOMES: Final = ("passed", "failed", "skipped", "error", "cancelled", "interrupted")

# A conversation with models takes from a second to an hour.
_BOUNDS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)


class RunMetrics:
    """Counts runs and exports them. The series are fixed: the outcomes are a closed list."""

    def __init__(self) -> None:
        self._outcomes = dict.fromkeys(RUN_OUTCOMES, 0)
        self._turns = 0
        self._durations = Histogram(_BOUNDS)
        self._running: Callable[[], int] | None = None
        self._queued: Callable[[], int] | None = None

    def ended(self, outcome: str, seconds: float | None) -> None:
        """Count a run that has ended or was interrupted. outcome: one of RUN_OUTCOMES. seconds: since it began;
        None when it never did."""
        self._outcomes[outcome] += 1
        if seconds is not None:
            self._durations.observe(seconds)

    def turn(self) -> None:
        """Count a turn."""
        self._turns += 1

    def watch(self, *, running: Callable[[], int], queued: Callable[[], int]) -> None:
        """Call these at every scrape, in its thread: how many runs there are now."""
        self._running = running
        self._queued = queued

    def now(self) -> tuple[int, int]:
        """Return how many runs go on and how many wait."""
        return (self._running() if self._running else 0), (self._queued() if self._queued else 0)

    def families(self) -> Iterator[Metric]:
        """Yield the current families."""
        runs = counter("evald_runs", "Runs that ended or were interrupted, by the outcome.")
        for outcome, count in self._outcomes.copy().items():
            add_count(runs, {"outcome": outcome}, count)
        turns = counter("evald_run_turns", "Turns of runs that were evaluated.")
        add_count(turns, {}, self._turns)
        durations = HistogramMetricFamily(
            "evald_run_duration_seconds", "How long runs took from their start to their end.", labels=()
        )
        add_histogram(durations, [], self._durations)
        yield from (runs, turns, durations)
        yield gauge("evald_runs_running", "Runs whose conversation goes on now.", self._running)
        yield gauge("evald_runs_queued", "Runs that wait for their turn.", self._queued)
