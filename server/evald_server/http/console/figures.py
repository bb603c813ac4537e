"""Figures of the overview, from the counts of hours."""

import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from evald.records import read_verdict
from evald.result import Verdict
from evald.v1 import evaluator_pb2, run_service_pb2, suite_service_pb2
from evald_server.pages.formats import Mark, mark
from evald_server.pages.plots import Bar, bar, spark
from evald_server.store.rollups import ASSERTION, METRIC, RUN, Rollup
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


class _Series:
    """The counts of one key, piece by piece."""

    def __init__(self, size: int) -> None:
        self.pieces: list[Rollup | None] = [None] * size

    def total(self, name: str) -> int:
        return sum(getattr(piece, name) for piece in self.pieces if piece is not None)

    def rates(self) -> list[float | None]:
        return [
            piece.passed / (piece.passed + piece.failed) if piece and piece.passed + piece.failed else None
            for piece in self.pieces
        ]

    def means(self) -> list[float | None]:
        return [
            piece.value_sum / piece.value_count if piece and piece.value_count else None
            for piece in self.pieces
        ]


def pass_rate(passed: int, failed: int) -> Rate | None:
    """Return a pass rate; None where nothing passed or failed."""
    if not passed + failed:
        return None
    low, high = wilson(passed, passed + failed)
    value = passed / (passed + failed)
    return Rate(suite_service_pb2.Estimate(value=value, low=low, high=high), bar(value, low, high))


def figures(found: Iterable[Rollup], since: int, width: int, size: int, labels: Mapping[str, str]) -> Figures:
    """Return what the counts of a period say.

    since, width, size: its pieces, microseconds. labels: of evaluators, by type.
    """
    runs = _Series(size)
    series: dict[str, dict[str, _Series]] = {
        ASSERTION: defaultdict(lambda: _Series(size)),
        METRIC: defaultdict(lambda: _Series(size)),
    }
    for one in found:
        place = min(max((one.hour - since) // width, 0), size - 1)
        if one.scope == RUN:
            # Of all scenarios together.
            before = runs.pieces[place]
            added = one[3:] if before is None else map(operator.add, before[3:], one[3:])
            runs.pieces[place] = Rollup(*one[:3], *added)
        else:
            series[one.scope][one.key].pieces[place] = one

    def label(name: str) -> str:
        base = name.partition("#")[0]
        return title(name, base, labels.get(base, ""))

    assertions = [_assertion(name, label(name), one) for name, one in series[ASSERTION].items()]
    assertions.sort(key=lambda row: (-row.failed - row.error, row.title))
    metrics = [_metric(label(name), one) for name, one in series[METRIC].items()]
    metrics.sort(key=lambda row: row.title)
    left_out = max(len(assertions) - _ROWS, 0) + max(len(metrics) - _ROWS, 0)
    return Figures(_runs(runs), assertions[:_ROWS], metrics[:_ROWS], left_out)


def _runs(runs: _Series) -> RunFigures:
    passed, failed, error = (runs.total(name) for name in ("passed", "failed", "error"))
    counts = [sum(piece[3:7]) if piece is not None else 0 for piece in runs.pieces]
    count = sum(counts)
    return RunFigures(count, spark(counts), pass_rate(passed, failed), error, error / count if count else 0.0)


def _assertion(name: str, shown: str, one: _Series) -> AssertionRow:
    passed, failed = one.total("passed"), one.total("failed")
    rate = pass_rate(passed, failed)
    return AssertionRow(name, shown, passed, failed, one.total("error"), rate, spark(one.rates(), 1.0))


def _metric(shown: str, one: _Series) -> MetricRow:
    measured = one.total("value_count")
    mean = one.total("value_sum") / measured if measured else None
    return MetricRow(shown, measured, one.total("error"), mean, spark(one.means()))


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
