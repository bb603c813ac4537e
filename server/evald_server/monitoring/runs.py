"""Metrics of runs and suite runs: outcomes, turns, durations, and current numbers."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric

from .histogram import Histogram
from .prometheus import add_count, add_histogram, counter, counts, gauge

RUN_OUTCOMES: Final = ("passed", "failed", "skipped", "error", "cancelled", "interrupted")

# The possible verdicts of a suite run, and the outcome without a verdict.
SUITE_OUTCOMES: Final = ("passed", "failed", "error", "interrupted")

# Bounds in seconds. A conversation with models takes from a second to an hour.
_BOUNDS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)


class RunMetrics:
    """The metrics of runs. The number of series is fixed, because the outcomes are a closed list."""

    def __init__(self) -> None:
        self._outcomes = dict.fromkeys(RUN_OUTCOMES, 0)
        self._turns = 0
        self._durations = Histogram(_BOUNDS)
        self._running: Callable[[], int] | None = None
        self._queued: Callable[[], int] | None = None

    def ended(self, outcome: str, seconds: float | None) -> None:
        """Count an ended or interrupted run.

        outcome: one of RUN_OUTCOMES. seconds: duration of the run; None if it never began.
        """
        self._outcomes[outcome] += 1
        if seconds is not None:
            self._durations.observe(seconds)

    def turn(self) -> None:
        """Count a turn."""
        self._turns += 1

    def watch(self, *, running: Callable[[], int], queued: Callable[[], int]) -> None:
        """Set the functions that return the numbers of running and queued runs. Each scrape calls them in its thread."""
        self._running = running
        self._queued = queued

    def now(self) -> tuple[int, int]:
        """Return the numbers of running and queued runs."""
        return (self._running() if self._running else 0), (self._queued() if self._queued else 0)

    def families(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        text = "Runs that ended or were interrupted, by the outcome."
        runs = counts("evald_runs", text, "outcome", self._outcomes)
        turns = counter("evald_run_turns", "Turns of runs that were evaluated.")
        add_count(turns, {}, self._turns)
        durations = HistogramMetricFamily(
            "evald_run_duration_seconds", "Duration of runs from their start to their end.", labels=()
        )
        add_histogram(durations, [], self._durations)
        yield from (runs, turns, durations)
        yield gauge("evald_runs_running", "Runs whose conversation is in progress.", self._running)
        yield gauge("evald_runs_queued", "Runs in the queue.", self._queued)


class SuiteMetrics:
    """The metrics of suite runs. The number of series is fixed, because the outcomes are a closed list."""

    def __init__(self) -> None:
        self._outcomes = dict.fromkeys(SUITE_OUTCOMES, 0)
        self._running: Callable[[], int] | None = None

    def ended(self, outcome: str) -> None:
        """Count an ended or interrupted suite run. outcome: one of SUITE_OUTCOMES."""
        self._outcomes[outcome] += 1

    def watch(self, *, running: Callable[[], int]) -> None:
        """Set the function that returns the number of running suite runs. Each scrape calls it in its thread."""
        self._running = running

    def families(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        text = "Suite runs that ended or were interrupted, by the outcome."
        yield counts("evald_suite_runs", text, "outcome", self._outcomes)
        yield gauge("evald_suite_runs_running", "Suite runs in progress.", self._running)
