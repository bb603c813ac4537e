"""Metrics of evaluators: results, durations, errors, scores and measured values, by type."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

import evald
from evald.errorcodes import CODES
from evald.result import Kind, Verdict, measurement
from evald_server.engine.plan import Plan
from evald_server.engine.planned_evaluator import PlannedEvaluator
from evald_server.engine.run import Outcome

from .histogram import (
    BOUNDS_BY_UNIT,
    DURATION_BOUNDS,
    RATIO_BOUNDS,
    Histogram,
    family_unit,
    series_count,
    value_bounds,
)
from .pass_rate import PassRate
from .prometheus import (
    ASSERTION_VERDICTS,
    METRIC_VERDICTS,
    OTHER,
    VERDICT_NAMES,
    add_count,
    add_histogram,
    counter,
    verdicts,
)
from .series_limit import CodeCounts, SeriesLimit

_PASSED, _FAILED, _SKIPPED = Verdict.PASSED, int(Verdict.FAILED), int(Verdict.SKIPPED)

_SHORT_NANOS = 1_000_000  # the first bound of DURATION_BOUNDS


class MeasuredValues:
    """The values that an evaluator type measures in one unit. last: None before the first value."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.histogram = Histogram(bounds)
        self.last: float | None = None

    def observe(self, value: float, count: int) -> None:
        """Count values. value: their mean."""
        self.histogram.observe(value, count)
        self.last = value


@dataclass(slots=True, eq=False)
class TypeSeries:
    """The series of one evaluator type, for enforced and shadow results together.

    Before the type's first use, and above the series limit, durations and errors are those of "other". origin: "" before
    the first use. scores: of enforced assertions; None for metrics and above the limit. measured: values by unit.
    """

    label: str
    durations: Histogram
    errors: CodeCounts
    origin: str = ""
    scores: Histogram | None = None
    measured: dict[str, MeasuredValues] = field(default_factory=dict)


class EvaluatorTally:
    """A tally of one evaluator type's results, either the enforced or the shadow ones.

    labels: evaluator, kind, enforcement. verdicts: the possible verdicts of the type. pass_rate: of enforced
    assertions; None for others.
    """

    def __init__(self, series: TypeSeries, kind: Kind, clock: Callable[[], float], *, enforced: bool) -> None:
        self.series = series
        self.labels = (series.label, kind.name.lower(), "enforced" if enforced else "shadow")
        self.verdicts = verdicts(kind)
        self.counts = [0] * (len(Verdict) + 1)  # by the verdict's number; 0 is no verdict
        self.pass_rate = PassRate(self.counts) if enforced and kind is Kind.ASSERTION else None
        self._clock = clock
        if self.pass_rate is not None:
            self.pass_rate.start_slot(clock())

    def add(self, verdict: int, seconds: float, score: float | None, count: int = 1) -> None:
        """Count results.

        verdict: number of an `evald.Verdict`. seconds: duration of the evaluator; not counted for skipped results,
        because nothing ran. count: number of equal results, whose mean duration is `seconds`.
        """
        series = self.series
        if self.pass_rate is not None and verdict <= _FAILED:
            now = self._clock()
            if now >= self.pass_rate.slot_end:
                self.pass_rate.start_slot(now)
            if score is not None and series.scores is not None and 0.0 <= score <= 1.0:
                series.scores.observe(score, count)
        self.counts[verdict] += count
        if verdict != _SKIPPED:
            series.durations.observe(seconds, count)

    def error(self, code: str) -> None:
        """Count the code of an error, in addition to `add`. An unknown code counts as "other"."""
        self.series.errors.add(code if code in CODES else OTHER)

    def measure(self, unit: str, value: float, count: int = 1) -> None:
        """Count values, in addition to `add`. Drop them above the series limit. value: their mean."""
        values = self.series.measured.get(unit)
        if values is not None:
            values.observe(value, count)


class EvaluatorMetrics:
    """The metrics of evaluators: creates and exports the tallies of types. clock: monotonic seconds."""

    def __init__(self, limit: SeriesLimit, clock: Callable[[], float]) -> None:
        # Those of "other".
        limit.add_fixed(2 * (len(ASSERTION_VERDICTS) + len(METRIC_VERDICTS)))
        limit.add_fixed(series_count(DURATION_BOUNDS) + len(CODES) + 1)
        self._limit = limit
        self._clock = clock
        self._series: dict[str, TypeSeries] = {}  # by type
        self._tallies: dict[tuple[str, bool], EvaluatorTally] = {}
        # In the order of the cached plan. A lookup by type takes 0.8 us, almost as long as the counting.
        self._by_plan: WeakKeyDictionary[Plan, list[EvaluatorTally]] = WeakKeyDictionary()
        self._other = TypeSeries(OTHER, Histogram(DURATION_BOUNDS), CodeCounts(), OTHER)
        self._other_tallies: dict[tuple[Kind, bool], EvaluatorTally] = {}

    def tally(
        self,
        type: str,  # noqa: A002 - the word of the contract
        kind: int,
        *,
        enforced: bool,
        origin: str,
        metric: evald.Metric | None,
    ) -> EvaluatorTally:
        """Return the tally of a registered type, the same object each time.

        kind: number of an `evald.Kind`. origin: "built_in", "plugin" or "remote"; the type's first use decides.
        metric: describes the values; None without values. Different uses of a type may have different units.
        """
        series = self._type_series(type)
        if not series.origin:
            series.origin = origin
            self._add_histograms(series, Kind(kind))
        tally = self._tallies.get((type, enforced)) or self._new_tally(series, Kind(kind), enforced=enforced)
        if metric is not None and tally.series is not self._other and metric.unit not in series.measured:
            bounds = value_bounds(metric)
            if self._limit.reserve("histograms", series_count(bounds) + 1, values=0):  # + 1: the last value
                series.measured[metric.unit] = MeasuredValues(bounds)
        return tally

    def count(self, plan: Plan, runs: Sequence[Sequence[Outcome | None]]) -> None:
        """Count the results of finished runs of a plan."""
        tallies = self._by_plan.get(plan)
        if tallies is None:
            tallies = self._by_plan[plan] = [self.of(planned) for planned in plan.evaluators]
        for planned, tally, outcomes in zip(plan.evaluators, tallies, zip(*runs, strict=True), strict=True):
            usual_score, metric = planned.usual_score, planned.metric
            count = usual_nanos = 0
            for result, nanos, _ in outcomes:
                # Short results are in the first bucket of the histogram, so they are added together.
                if result.verdict is _PASSED and result.score == usual_score and nanos < _SHORT_NANOS:
                    count += 1
                    usual_nanos += nanos
                else:
                    tally.add(result.verdict, nanos * 1e-9, result.score)
                    if result.error is not None:
                        tally.error(result.error.code)
                if metric is not None and result.value is not None:
                    value = measurement(result.value, result.metadata) if planned.is_metric else result.value
                    if value is not None:
                        tally.measure(metric.unit, value)
            if count:
                tally.add(_PASSED, usual_nanos * 1e-9 / count, usual_score, count=count)

    def of(self, planned: PlannedEvaluator) -> EvaluatorTally:
        """Return the tally of a planned evaluator."""
        definition = planned.definition
        return self.tally(
            definition.type,
            definition.kind,
            enforced=planned.enforced,
            origin=planned.origin.name.lower(),
            metric=planned.metric,
        )

    def export_zeros(self, type: str, kind: int) -> None:  # noqa: A002 - the word of the contract
        """Export a type's verdicts as zeros from now on, so that a Prometheus rate sees their first increase.

        Its histograms are reserved only at its first use: those of all built-ins would leave none for other types.
        """
        if type not in self._series:
            series = self._type_series(type)
            if series is not self._other:
                self._new_tally(series, Kind(kind), enforced=True)

    def _type_series(self, label: str) -> TypeSeries:
        """Return the series of a type; above the limit of types the shared series."""
        found = self._series.get(label)
        if found is not None:
            return found
        if label == OTHER or not self._limit.reserve("evaluator", 0):
            return self._other
        return self._series.setdefault(label, TypeSeries(label, self._other.durations, self._other.errors))

    def _add_histograms(self, series: TypeSeries, kind: Kind) -> None:
        """Give a type its own histograms and error codes, if the series limit allows it."""
        needed = series_count(DURATION_BOUNDS)
        if kind is Kind.ASSERTION:
            needed += series_count(RATIO_BOUNDS) + 1  # + 1: the pass ratio
        if self._limit.reserve("histograms", needed):
            series.errors = CodeCounts(self._limit, self._other.errors)
            if kind is Kind.ASSERTION:
                series.scores = Histogram(RATIO_BOUNDS)
            # Last, because a scrape exports the series from then on.
            series.durations = Histogram(DURATION_BOUNDS)

    def _new_tally(self, series: TypeSeries, kind: Kind, *, enforced: bool) -> EvaluatorTally:
        """Return a new tally of a type; above the limits the shared one."""
        # The type's reservation includes the verdicts of one enforcement; those of the other are reserved here.
        is_second = (series.label, not enforced) in self._tallies
        if series is not self._other and (
            not is_second or self._limit.reserve("evaluator", len(ASSERTION_VERDICTS), values=0)
        ):
            tally = EvaluatorTally(series, kind, self._clock, enforced=enforced)
            self._tallies[series.label, enforced] = tally
            return tally
        found = self._other_tallies.get((kind, enforced))
        if found is None:
            found = EvaluatorTally(self._other, kind, self._clock, enforced=enforced)
            self._other_tallies[kind, enforced] = found
        return found

    def families(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        results = counter(
            "evald_evaluator_results",
            "Results of evaluators, by verdict. For pass rates, divide the rate of passed by the rate of "
            "passed and failed, of enforced assertions only. Shadow results did not change any verdict.",
        )
        ratios = GaugeMetricFamily(
            "evald_assertion_pass_ratio",
            "Share of passed among the passed and failed enforced results of the last 5 minutes, for display only. "
            "Never average it over pods or time: use evald_evaluator_results_total for that. "
            "Absent when nothing passed or failed.",
            labels=["evaluator"],
        )
        for tally in (*self._tallies.values(), *self._other_tallies.values()):
            names = dict(zip(("evaluator", "kind", "enforcement"), tally.labels, strict=True))
            for verdict in tally.verdicts:
                add_count(results, {**names, "verdict": VERDICT_NAMES[verdict]}, tally.counts[verdict])
            if tally.pass_rate is not None and tally.series.scores is not None:
                ratio = tally.pass_rate.ratio(self._clock())
                if ratio is not None:
                    ratios.add_metric([tally.labels[0]], ratio)
        durations = HistogramMetricFamily(
            "evald_evaluator_duration_seconds",
            "Duration of evaluators, including errors, without skipped results and queueing.",
            labels=["evaluator", "origin"],
        )
        errors = counter(
            "evald_evaluator_errors",
            "Results in error, by the code of the error.",
        )
        scores = HistogramMetricFamily(
            "evald_assertion_score_ratio",
            "Scores of enforced assertions that passed or failed, from 0 to 1, higher is better.",
            labels=["evaluator"],
        )
        exported = self._exported_series()
        for series in exported:
            add_histogram(durations, [series.label, series.origin], series.durations)
            for code, count in series.errors.counts.copy().items():
                add_count(errors, {"evaluator": series.label, "code": code}, count)
            if series.scores is not None:
                add_histogram(scores, [series.label], series.scores)
        yield from (results, durations, errors, scores, ratios)
        yield from _value_families(exported)

    def _exported_series(self) -> list[TypeSeries]:
        """Return the series with their own histograms, and the shared series if it is used."""
        types = list(self._series.values())
        detailed = [series for series in types if series.durations is not self._other.durations]
        shared = self._other_tallies or any(self._limit.overflows.values())
        return [*detailed, self._other] if shared else detailed


def _value_families(types: Iterable[TypeSeries]) -> Iterator[Metric]:
    families = {
        unit: HistogramMetricFamily(
            f"evald_metric_value_{unit}",
            f"Values measured by evaluators whose unit is {unit}"
            + (", or a plain number, or one without a family of its own." if unit == "count" else ".")
            + " Buckets can differ between evaluators: never sum over evaluators.",
            labels=["evaluator"],
        )
        for unit in BOUNDS_BY_UNIT
    }
    last = GaugeMetricFamily(
        "evald_metric_last_value",
        "The last measured value, for display only: of one pod, and of one conversation among many.",
        labels=["evaluator", "unit"],
    )
    for series in types:
        for unit, measured in series.measured.copy().items():
            add_histogram(families[family_unit(unit)], [series.label], measured.histogram)
            if measured.last is not None:
                last.add_metric([series.label, unit], measured.last)
    yield from families.values()
    yield last
