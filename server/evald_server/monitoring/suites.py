"""Metrics of suite runs: how they end, and how many there are now."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import Metric

from .prometheus import add_count, counter, gauge

# The verdicts that a suite run can have, and the end without one.
SUITE_OUTCOMES: Final = ("passed", "failed", "error", "interrupted")


class SuiteMetrics:
    """Counts suite runs and exports them. The series are fixed: the outcomes are a closed list."""

    def __init__(self) -> None:
        self._outcomes = dict.fromkeys(SUITE_OUTCOMES, 0)
        self._running: Callable[[], int] | None = None

    def ended(self, outcome: str) -> None:
        """Count a suite run that has ended or was interrupted. outcome: one of SUITE_OUTCOMES."""
        self._outcomes[outcome] += 1

    def watch(self, *, running: Callable[[], int]) -> None:
        """Call this at every scrape, in its thread: how many suite runs there are now."""
        self._running = running

    def families(self) -> Iterator[Metric]:
        """Yield the current families."""
        runs = counter("evald_suite_runs", "Suite runs that ended or were interrupted, by the outcome.")
        for outcome, count in self._outcomes.copy().items():
            add_count(runs, {"outcome": outcome}, count)
        yield runs
        yield gauge("evald_suite_runs_running", "Suite runs whose cases run now.", self._running)
