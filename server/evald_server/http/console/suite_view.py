"""Suite runs as lists show them."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from evald.v1 import suite_service_pb2
from evald_server.pages.formats import Mark, mark
from evald_server.pages.plots import Bar, bar

SuiteRun = suite_service_pb2.SuiteRun

_STATUS_WORDS: Final = {
    suite_service_pb2.SUITE_RUN_STATUS_RUNNING: "Running",
    suite_service_pb2.SUITE_RUN_STATUS_COMPLETED: "Completed",
    suite_service_pb2.SUITE_RUN_STATUS_INTERRUPTED: "Interrupted",
}


class SuiteRow(NamedTuple):
    """A suite run. mark: None of one without a verdict. change: of the pass rate since the one before, or None."""

    run: SuiteRun
    mark: Mark | None
    status: str
    bar: Bar | None
    before: SuiteRun | None
    change: float | None


def suite_status(run: SuiteRun) -> str:
    """Return where a suite run stands, in a word."""
    return _STATUS_WORDS.get(run.status, "Unknown")


def suite_mark(run: SuiteRun) -> Mark | None:
    """Return the verdict of a suite run; None of one that has none."""
    return mark(run.verdict) if run.status == suite_service_pb2.SUITE_RUN_STATUS_COMPLETED else None


def rate_bar(run: SuiteRun) -> Bar | None:
    """Return the pass rate with its interval and the threshold."""
    if not run.HasField("pass_rate"):
        return None
    return bar(run.pass_rate.value, run.pass_rate.low, run.pass_rate.high, target=run.threshold)


def suite_rows(runs: Iterable[SuiteRun]) -> list[SuiteRow]:
    """Return rows of suite runs. runs: newest first; the one before is looked for among them."""
    rows: list[SuiteRow] = []
    older: dict[tuple[str, str], SuiteRun] = {}
    for run in reversed(list(runs)):
        key = (run.suite, run.target)
        before = older.get(key)
        change = None
        if before is not None and run.HasField("pass_rate"):
            change = run.pass_rate.value - before.pass_rate.value
        rows.append(SuiteRow(run, suite_mark(run), suite_status(run), rate_bar(run), before, change))
        if run.HasField("pass_rate") and suite_mark(run):
            older[key] = run
    return rows[::-1]
