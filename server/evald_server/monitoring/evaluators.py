"""Metrics of evaluators: results, durations, errors, scores and measured values, by type."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

import evald
from evald.errorcodes import CODES
from evald.result import Kind, Verdict, measurement
from evald_server.engine.plan import Plan
from evald_server.engine.planned_evaluator import PlannedEvaluator
from evald_server.engine.run import EvaluationRun

from .histogram import (
    BOUNDS_BY_UNIT,
    DURATION_BOUNDS,
    RATIO_BOUNDS,
    Exemplar,
    Histogram,
    family_unit,
    is_trace_id,
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

ERROR_CODES = (*CODES, OTHER)

_ERROR_INDEX = {code: index for index, code in enumerate(ERROR_CODES)}

_FAILED, _SKIPPED = int(Verdict.FAILED), int(Verdict.SKIPPED)


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

    scores: of enforced assertions; None for metrics. measured: values by unit.
    """

    label: str
    origin: str
    durations: Histogram
    errors: CodeCounts
    scores: Histogram | None = None
    measured: dict[str, MeasuredValues] = field(default_factory=dict)


class EvaluatorTally:
    """A tally of one evaluator type's results, either the enforced or the shadow ones.

    labels: evaluator, kind, enforcement. verdicts: the possible verdicts of the type. gates: whether the results are
    of enforced assertions, which have scores and a pass rate.
    """

    def __init__(
        self,
        series: TypeSeries,
        labels: tuple[str, str, str],
        verdicts: Sequence[Verdict],
        clock: Callable[[], float],
        *,
        gates: bool,
    ) -> None:
        self.series = series
        self.labels = labels
        self.verdicts = verdicts
        self.counts = [0] * (len(Verdict) + 1)  # by the verdict's number; 0 is no verdict
        self.exemplars: dict[int, Exemplar] = {}
        self.pass_rate = PassRate(self.counts) if gates else None
        self._scores = series.scores if gates else None
        self._measured: MeasuredValues | None = None
        self._clock = clock
        if self.pass_rate is not None:
            self.pass_rate.start_slot(clock())

    def with_values(self, measured: MeasuredValues) -> "EvaluatorTally":
        """Return a tally that shares all counters of this one and counts values in `measured`."""
        other = copy(self)
        other._measured = measured  # noqa: SLF001 - a copy of itself
        return other

    def add(
        self,
        verdict: int,
        seconds: float,
        score: float | None,
        value: float | None,
        trace_id: str | None = None,
        count: int = 1,
    ) -> None:
        """Count results.

        verdict: number of an `evald.Verdict`. seconds: duration of the evaluator; not counted for skipped results,
        because nothing ran. value: None if the data was unavailable, because its placeholder 0 is no measurement.
        trace_id: 32 hex digits, as in `traceparent`; anything else is ignored. count: number of equal results, whose
        mean duration is `seconds`.
        """
        if self.pass_rate is not None and verdict <= _FAILED:
            now = self._clock()
            if now >= self.pass_rate.slot_end:
                self.pass_rate.start_slot(now)
            if score is not None and self._scores is not None and 0.0 <= score <= 1.0:
                self._scores.observe(score, count)
        self.counts[verdict] += count
        if verdict != _SKIPPED:
            self.series.durations.observe(seconds, count)
        if value is not None and self._measured is not None:
            self._measured.observe(value, count)
        if trace_id is not None and is_trace_id(trace_id):
            self.exemplars[verdict] = Exemplar(trace_id, 1.0, time.time())
            if verdict != _SKIPPED:
                self.series.durations.set_exemplar(seconds, trace_id)

    def error(self, code: str) -> None:
        """Count the code of an error, in addition to `add`. An unknown code counts as "other"."""
        self.series.errors.add(_ERROR_INDEX.get(code, len(CODES)))


class EvaluatorMetrics:
    """The metrics of evaluators: creates and exports the tallies of types. clock: monotonic seconds."""

    def __init__(self, limit: SeriesLimit, clock: Callable[[], float]) -> None:
        # Those of "other".
        limit.add_fixed(2 * (len(ASSERTION_VERDICTS) + len(METRIC_VERDICTS)))
        limit.add_fixed(series_count(DURATION_BOUNDS) + len(ERROR_CODES))
        self._limit = limit
        self._clock = clock
        self._announced: dict[str, Kind] = {}
        self._series: dict[str, TypeSeries] = {}  # by type
        self._tallies: dict[tuple[str, bool], EvaluatorTally] = {}
        # In the order of the cached plan. A lookup by type takes 0.8 us, almost as long as the counting.
        self._by_plan: WeakKeyDictionary[Plan, list[EvaluatorTally]] = WeakKeyDictionary()
        self._by_unit: dict[tuple[EvaluatorTally, str], EvaluatorTally] = {}
        self._other = TypeSeries(OTHER, OTHER, Histogram(DURATION_BOUNDS), CodeCounts(len(ERROR_CODES)))
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
        found = self._tallies.get((type, enforced))
        if found is not None:
            return self._in_unit(found, metric)
        series = self._type_series(type, Kind(kind), origin)
        # The type's reservation includes the verdicts of one enforcement; those of the other are reserved here.
        second = not enforced if type in self._announced else (type, not enforced) in self._tallies
        if series is self._other or (
            second and not self._limit.reserve("evaluator", len(ASSERTION_VERDICTS), values=0)
        ):
            shared = self._other_tallies.get((Kind(kind), enforced))
            if shared is None:
                shared = self._new_tally(self._other, Kind(kind), enforced)
                self._other_tallies[Kind(kind), enforced] = shared
            return shared
        tally = self._tallies[type, enforced] = self._new_tally(series, Kind(kind), enforced)
        return self._in_unit(tally, metric)

    def count(self, run: EvaluationRun) -> None:
        """Count the results of a finished run."""
        plan = run.plan
        tallies = self._by_plan.get(plan)
        if tallies is None:
            tallies = self._by_plan[plan] = [self.of(planned) for planned in plan.evaluators]
        for planned, outcome, tally in zip(plan.evaluators, run.outcomes, tallies, strict=True):
            assert outcome is not None
            result, nanos, _ = outcome
            if result.error is not None:
                tally.error(result.error.code)
            value = result.value
            if value is not None and planned.is_metric:
                value = measurement(value, result.metadata)
            tally.add(result.verdict, nanos * 1e-9, result.score, value)

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

    def announce(self, type: str, kind: int) -> None:  # noqa: A002 - the word of the contract
        """Export a type's verdicts as zeros from now on, so that a Prometheus rate sees their first increase.

        Its histograms are reserved only at its first use: those of all built-ins would leave none for other types.
        """
        if type not in self._series and type not in self._announced and self._limit.reserve("evaluator", 0):
            self._announced[type] = Kind(kind)

    def _in_unit(self, tally: EvaluatorTally, metric: evald.Metric | None) -> EvaluatorTally:
        """Return the tally that counts values in the metric's unit; the same tally if the series limit is reached."""
        if metric is None or tally.series is self._other:
            return tally
        unit = metric.unit
        found = self._by_unit.get((tally, unit))
        if found is not None:
            return found
        measured = tally.series.measured.get(unit)
        if measured is None:
            bounds = value_bounds(metric)
            if not self._limit.reserve("detail", series_count(bounds) + 1, values=0):  # + 1: the last value
                return tally
            measured = tally.series.measured.setdefault(unit, MeasuredValues(bounds))
        return self._by_unit.setdefault((tally, unit), tally.with_values(measured))

    def _type_series(self, label: str, kind: Kind, origin: str) -> TypeSeries:
        """Return the series of a type; above the limits, its own series with shared histograms, or the shared series."""
        found = self._series.get(label)
        if found is not None:
            return found
        if label not in self._announced and (label == OTHER or not self._limit.reserve("evaluator", 0)):
            return self._other
        scores = Histogram(RATIO_BOUNDS) if kind is Kind.ASSERTION else None
        needed = series_count(DURATION_BOUNDS)
        if scores:
            needed += series_count(scores.bounds) + 1  # the pass ratio
        if self._limit.reserve("detail", needed):
            series = TypeSeries(
                label,
                origin,
                Histogram(DURATION_BOUNDS),
                CodeCounts(len(ERROR_CODES), lambda: self._limit.reserve("code", 1), self._other.errors),
                scores=scores,
            )
        else:
            series = TypeSeries(label, OTHER, self._other.durations, self._other.errors)
        return self._series.setdefault(label, series)

    def _new_tally(self, series: TypeSeries, kind: Kind, enforced: bool) -> EvaluatorTally:
        return EvaluatorTally(
            series,
            (series.label, kind.name.lower(), "enforced" if enforced else "shadow"),
            verdicts(kind),
            self._clock,
            gates=enforced and series.scores is not None,
        )

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
                add_count(
                    results,
                    {**names, "verdict": VERDICT_NAMES[verdict]},
                    tally.counts[verdict],
                    tally.exemplars.get(verdict),
                )
            ratio = tally.pass_rate.ratio(self._clock()) if tally.pass_rate else None
            if ratio is not None:
                ratios.add_metric([tally.labels[0]], ratio)
        for label, kind in self._announced.copy().items():
            if (label, True) not in self._tallies:
                names = {"evaluator": label, "kind": kind.name.lower(), "enforcement": "enforced"}
                for verdict in verdicts(kind):
                    add_count(results, {**names, "verdict": VERDICT_NAMES[verdict]}, 0)
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
            for code, count in zip(ERROR_CODES, series.errors.cells[:], strict=True):
                if count:
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
