"""Figures of the overview, from the counts of hours."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from evald.records import read_verdict
from evald.result import Verdict
from evald.v1 import evaluator_pb2, run_service_pb2, suite_service_pb2
from evald_server.pages.formats import Mark, mark
from evald_server.pages.plots import Bar, bar, spark
from evald_server.store.rollups import ASSERTION, RUN, Rollup
from evald_server.suites.reports.case_view import title
from evald_server.suites.reports.report import is_metric
from evald_server.suites.statistics import wilson

# Rows of each table, those with most failures first.
_ROWS: Final = 50
_PROBLEMS: Final = 10


class Rate(NamedTuple):
    """A pass rate with its 95 % interval."""

    estimate: suite_service_pb2.Estimate
    bar: Bar


class RunFigures(NamedTuple):
    """All runs of a period that ended. counts: a spark. rate: None where none passed or failed. share: of those without a verdict."""

    total: int
    counts: str
    rate: Rate | None
    error_count: int
    error_share: float


class AssertionRow(NamedTuple):
    """An assertion over a period. name: in results, for filters."""

    name: str
    title: str
    passed: int
    failed: int
    error: int
    rate: Rate | None
    spark: str


class MetricRow(NamedTuple):
    """A metric over a period. mean: None where nothing was measured."""

    title: str
    measured: int
    error: int
    mean: float | None
    spark: str


class Figures(NamedTuple):
    """What the counts of a period say. rows_left_out: of assertions and metrics."""

    runs: RunFigures
    assertions: list[AssertionRow]
    metrics: list[MetricRow]
    rows_left_out: int


class FailureGroup(NamedTuple):
    """Runs that fail in the same way. evaluator: name for a filter, "" if the run itself broke."""

    mark: Mark
    scenario: str
    scenario_id: str
    what: str
    evaluator: str
    runs: int
    last_id: str


class Period(NamedTuple):
    """A time in pieces of one length. since, width: microseconds. size: how many."""

    since: int
    width: int
    size: int

    def spark(self, values: Mapping[int, float], most: float | None = None) -> str:
        """Draw values, given by the begins of their pieces. most: as for `plots.spark`."""
        return spark([values.get(self.since + place * self.width) for place in range(self.size)], most)


def figures(found: Iterable[Rollup], period: Period, labels: Mapping[str, str]) -> Figures:
    """Return what the counts of a period's pieces say. labels: of evaluators, by type."""
    runs: list[Rollup] = []
    assertions: dict[str, list[Rollup]] = {}
    metrics: dict[str, list[Rollup]] = {}
    for one in found:
        if one.scope == RUN:
            runs.append(one)
        else:
            (assertions if one.scope == ASSERTION else metrics).setdefault(one.key, []).append(one)

    def shown(name: str) -> str:
        base = name.partition("#")[0]
        return title(name, base, labels.get(base, ""))

    def failures(name: str) -> int:
        return sum(one.failed + one.error for one in assertions[name])

    worst = sorted(assertions, key=lambda name: (-failures(name), shown(name)))
    return Figures(
        _runs(runs, period),
        [_assertion(name, shown(name), assertions[name], period) for name in worst[:_ROWS]],
        [_metric(shown(name), metrics[name], period) for name in sorted(metrics, key=shown)[:_ROWS]],
        max(len(assertions) - _ROWS, 0) + max(len(metrics) - _ROWS, 0),
    )


def _runs(counts: Iterable[Rollup], period: Period) -> RunFigures:
    ended: dict[int, int] = defaultdict(int)
    passed = failed = error = 0
    for one in counts:
        ended[one.hour] += one.passed + one.failed + one.error + one.skipped
        passed, failed, error = passed + one.passed, failed + one.failed, error + one.error
    total = sum(ended.values())
    share = error / total if total else 0.0
    return RunFigures(total, period.spark(ended), _rate(passed, failed), error, share)


def _assertion(name: str, shown: str, counts: Sequence[Rollup], period: Period) -> AssertionRow:
    passed, failed = sum(one.passed for one in counts), sum(one.failed for one in counts)
    rates = {one.hour: one.passed / (one.passed + one.failed) for one in counts if one.passed or one.failed}
    error = sum(one.error for one in counts)
    return AssertionRow(
        name, shown, passed, failed, error, _rate(passed, failed), period.spark(rates, most=1.0)
    )


def _metric(shown: str, counts: Sequence[Rollup], period: Period) -> MetricRow:
    measured = sum(one.value_count for one in counts)
    mean = sum(one.value_sum for one in counts) / measured if measured else None
    means = {one.hour: one.value_sum / one.value_count for one in counts if one.value_count}
    return MetricRow(shown, measured, sum(one.error for one in counts), mean, period.spark(means))


def _rate(passed: int, failed: int) -> Rate | None:
    """Return a pass rate; None where nothing passed or failed."""
    if not passed + failed:
        return None
    low, high = wilson(passed, passed + failed)
    value = passed / (passed + failed)
    return Rate(suite_service_pb2.Estimate(value=value, low=low, high=high), bar(value, low, high))


def problems(runs: Iterable[run_service_pb2.Run]) -> list[FailureGroup]:
    """Return in what ways runs failed, the most frequent first. runs: newest first."""
    found: dict[tuple[str, str], FailureGroup] = {}
    for run in runs:
        verdict, what, evaluator = _cause(run)
        key = (run.scenario_id, what)
        before = found.get(key)
        found[key] = (
            before._replace(runs=before.runs + 1)
            if before
            else FailureGroup(mark(verdict), run.scenario.name, run.scenario_id, what, evaluator, 1, run.id)
        )
    return sorted(found.values(), key=lambda one: -one.runs)[:_PROBLEMS]


def _cause(run: run_service_pb2.Run) -> tuple[Verdict, str, str]:
    """Return what a run came to, and the evaluator or the error that decided it."""
    broke = run.status == run_service_pb2.RUN_STATUS_ERROR
    wanted = Verdict.ERROR if broke else Verdict.FAILED
    for result in run.output.evaluator_results:
        shadow = result.enforcement == evaluator_pb2.ENFORCEMENT_SHADOW
        if read_verdict(result.verdict) is wanted and not shadow and not is_metric(result):
            shown = title(result.name, result.type, result.label)
            if result.HasField("error"):
                shown = f"{shown}: {result.error.code}"
            return wanted, shown, result.name
    return wanted, run.error.code if broke else "the run as a whole", ""
