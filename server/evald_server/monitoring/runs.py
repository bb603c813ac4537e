"""Metrics of runs and suite runs: outcomes, turns, durations, and current numbers."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric

from .histogram import Histogram, series_count
from .prometheus import Counts, Gauge, add_histogram
from .series_limit import SeriesLimit

RUN_OUTCOMES: Final = ("passed", "failed", "skipped", "error", "cancelled", "interrupted")

# The possible verdicts of a suite run, and the outcome without a verdict.
SUITE_OUTCOMES: Final = ("passed", "failed", "error", "interrupted")

# Bounds in seconds. A conversation with models takes from a second to an hour.
_BOUNDS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)


class RunMetrics:
    """The metrics of runs. The number of series is fixed, because the outcomes are a closed list."""

    def __init__(self, limit: SeriesLimit) -> None:
        text = "Runs that ended or were interrupted, by the outcome."
        self._outcomes = Counts(limit, "evald_runs", text, outcome=RUN_OUTCOMES)
        self.turns = Counts(limit, "evald_run_turns", "Turns of runs that were evaluated.")
        limit.add_fixed(series_count(_BOUNDS))
        self._durations = Histogram(_BOUNDS)
        self.running = Gauge(limit, "evald_runs_running", "Runs whose conversation is in progress.")
        self.queued = Gauge(limit, "evald_runs_queued", "Runs in the queue.")

    def ended(self, outcome: str, seconds: float | None) -> None:
        """Count an ended or interrupted run.

        outcome: one of RUN_OUTCOMES. seconds: duration of the run; None if it never began.
        """
        self._outcomes.add(outcome)
        if seconds is not None:
            self._durations.observe(seconds)

    def families(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        durations = HistogramMetricFamily(
            "evald_run_duration_seconds", "Duration of runs from their start to their end.", labels=()
        )
        add_histogram(durations, [], self._durations)
        yield from (self._outcomes.family(), self.turns.family(), durations)
        yield from (self.running.family(), self.queued.family())


class SuiteMetrics:
    """The metrics of suite runs. The number of series is fixed, because the outcomes are a closed list.

    ended: suite runs that ended or were interrupted, by SUITE_OUTCOMES.
    """

    def __init__(self, limit: SeriesLimit) -> None:
        text = "Suite runs that ended or were interrupted, by the outcome."
        self.ended = Counts(limit, "evald_suite_runs", text, outcome=SUITE_OUTCOMES)
        self.running = Gauge(limit, "evald_suite_runs_running", "Suite runs in progress.")

    def families(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        yield from (self.ended.family(), self.running.family())
