"""The figures of the overview, from hourly counts."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Final, NamedTuple

from evald.catalog import EvaluatorType
from evald.records import read_verdict
from evald.result import Verdict
from evald.v1 import evaluator_pb2, run_service_pb2, suite_service_pb2
from evald_server.pages.formats import Mark, mark
from evald_server.pages.plots import Bar, bar, spark
from evald_server.store.rollups import ASSERTION, METRIC, RUN, Rollup
from evald_server.suites.reports.case_view import title
from evald_server.suites.reports.report import is_metric
from evald_server.suites.statistics import wilson

from .evaluator_types import unit_of

# Most rows of each table.
_ROWS: Final = 50


class Rate(NamedTuple):
    """A pass rate with its 95 % interval."""

    estimate: suite_service_pb2.Estimate
    bar: Bar


class RunFigures(NamedTuple):
    """The ended runs of a period. counts: a spark. rate: None if none passed or failed. error_*: inconclusive runs."""

    total: int
    counts: str
    rate: Rate | None
    error_count: int
    error_share: float


class AssertionRow(NamedTuple):
    """An assertion over a period. name: its name in results, for filters."""

    name: str
    title: str
    passed: int
    failed: int
    error: int
    rate: Rate | None
    spark: str


class MetricRow(NamedTuple):
    """A metric over a period. name: its name in results. mean: None without a measurement. unit: "" if unknown."""

    name: str
    title: str
    measured: int
    error: int
    mean: float | None
    unit: str
    spark: str


class Spread(NamedTuple):
    """The distribution of a metric's counted values. p95: the 95th percentile of the rounded values."""

    counted: int
    p95: float


class Figures(NamedTuple):
    """The figures of a period. rows_left_out: the number of assertions and metrics left out."""

    runs: RunFigures
    assertions: list[AssertionRow]
    metrics: list[MetricRow]
    rows_left_out: int


class FailureGroup(NamedTuple):
    """Runs of a scenario with the same failure. evaluator: its name for a filter; "" if no evaluator was the cause."""

    mark: Mark
    scenario: str
    scenario_id: str
    what: str
    evaluator: str
    runs: int
    last_id: str


class Period(NamedTuple):
    """A period, divided into intervals of one length. since, width: in microseconds. size: the number of intervals."""

    since: int
    width: int
    size: int

    def begins(self) -> range:
        """Return the start times of the intervals."""
        return range(self.since, self.since + self.size * self.width, self.width)

    def spark(self, values: Mapping[int, float], most: float | None = None) -> str:
        """Draw values, given by the start times of their intervals. most: as for `plots.spark`."""
        return spark([values.get(begin) for begin in self.begins()], most)


def figures(found: Iterable[Rollup], period: Period, types: Mapping[str, EvaluatorType]) -> Figures:
    """Calculate the figures of a period. found: the counts of its intervals. types: of evaluators, by name."""
    counts: dict[str, dict[str, list[Rollup]]] = {RUN: {}, ASSERTION: {}, METRIC: {}}
    for one in found:
        counts[one.scope].setdefault(one.key, []).append(one)
    assertions, metrics = counts[ASSERTION], counts[METRIC]

    def shown(name: str) -> str:
        base = name.partition("#")[0]
        return title(name, base, types[base].label if base in types else "")

    def unit(name: str) -> str:
        known = types.get(name.partition("#")[0])
        return unit_of(known) if known is not None else ""

    def failures(name: str) -> int:
        return sum(one.failed + one.error for one in assertions[name])

    worst = sorted(assertions, key=lambda name: (-failures(name), shown(name)))
    return Figures(
        _runs([one for rows in counts[RUN].values() for one in rows], period),
        [_assertion(name, shown(name), assertions[name], period) for name in worst[:_ROWS]],
        [
            _metric(name, shown(name), unit(name), metrics[name], period)
            for name in sorted(metrics, key=shown)[:_ROWS]
        ],
        max(len(assertions) - _ROWS, 0) + max(len(metrics) - _ROWS, 0),
    )


def _runs(counts: Sequence[Rollup], period: Period) -> RunFigures:
    ended: dict[int, int] = defaultdict(int)
    passed = failed = error = 0
    for one in counts:
        ended[one.hour] += one.passed + one.failed + one.error + one.skipped
        passed, failed, error = passed + one.passed, failed + one.failed, error + one.error
    total = sum(ended.values())
    share = error / total if total else 0.0
    return RunFigures(total, period.spark(ended), _rate(passed, failed), error, share)


def _assertion(name: str, shown: str, counts: Sequence[Rollup], period: Period) -> AssertionRow:
    hours, _, _, passed, failed, error, *_ = zip(*counts, strict=True)
    rates = {hour: yes / (yes + no) for hour, yes, no in zip(hours, passed, failed, strict=True) if yes or no}
    rate = _rate(sum(passed), sum(failed))
    plot = period.spark(rates, most=1.0)
    return AssertionRow(name, shown, sum(passed), sum(failed), sum(error), rate, plot)


def _metric(name: str, shown: str, unit: str, counts: Sequence[Rollup], period: Period) -> MetricRow:
    hours, _, _, _, _, error, _, counted, sums = zip(*counts, strict=True)
    means = {hour: total / n for hour, n, total in zip(hours, counted, sums, strict=True) if n}
    measured = sum(counted)
    mean = sum(sums) / measured if measured else None
    return MetricRow(name, shown, measured, sum(error), mean, unit, period.spark(means))


def spreads(values: Iterable[tuple[str, float, int]]) -> dict[str, Spread]:
    """Calculate the distributions of metrics. values: name, value and count, in ascending order of value for a name."""
    found = {}
    for name, rows in groupby(values, itemgetter(0)):
        _, measured, times = zip(*rows, strict=True)
        counted = sum(times)
        # The first position that covers 95 % of the values.
        place = bisect_left(list(accumulate(times)), counted * 19 / 20)
        found[name] = Spread(counted, measured[place])
    return found


def _rate(passed: int, failed: int) -> Rate | None:
    """Return a pass rate; None if nothing passed or failed."""
    if not passed + failed:
        return None
    low, high = wilson(passed, passed + failed)
    value = passed / (passed + failed)
    return Rate(suite_service_pb2.Estimate(value=value, low=low, high=high), bar(value, low, high))


def problems(runs: Iterable[run_service_pb2.Run]) -> list[FailureGroup]:
    """Group runs by their failure, the most frequent one first. runs: newest first."""
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
    return sorted(found.values(), key=lambda one: -one.runs)


def _cause(run: run_service_pb2.Run) -> tuple[Verdict, str, str]:
    """Return the verdict of a run, the text of its cause, and the deciding evaluator's name or ""."""
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
