"""Results of evaluators: who gets which tally, and the families read from them."""

from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from evald import evaluator
from evald.result import Kind, measurement
from evald_server.engine.plan import Plan, PlannedEvaluator
from evald_server.engine.run import EvaluationRun

from . import buckets
from .families import add_count, add_histogram, counter
from .histogram import Histogram, series_of
from .labels import ASSERTION_VERDICTS, OTHER, VERDICT_NAMES, verdicts
from .room import Codes, Room
from .tally import ERROR_CODES, Tally, TypeSeries
from .values import Measured, value_families


class EvaluatorTallies:
    """Gives out the tallies of evaluator types. clock: monotonic seconds."""

    def __init__(self, room: Room, clock: Callable[[], float]) -> None:
        self._room = room
        self._clock = clock
        self._announced: dict[str, Kind] = {}
        self._subjects: dict[str, TypeSeries] = {}
        self._tallies: dict[tuple[str, bool], Tally] = {}
        self._by_plan: WeakKeyDictionary[Plan, list[Tally]] = WeakKeyDictionary()
        self._by_unit: dict[tuple[Tally, str], Tally] = {}
        self._other = TypeSeries(OTHER, OTHER, Histogram(buckets.DURATION), Codes(len(ERROR_CODES)))
        self._other_tallies: dict[tuple[Kind, bool], Tally] = {}

    def tally(
        self,
        type: str,  # noqa: A002 - the word of the contract
        kind: int,
        *,
        enforced: bool,
        origin: str,
        metric: evaluator.Metric | None,
    ) -> Tally:
        """The counters of a registered type, the same object each time.

        kind: number of an `evald.Kind`. origin: "built_in", "plugin" or "remote". metric: how to
        read its values, None when it has none; uses of one type may differ in the unit. The origin of
        a type's first use stays.
        """
        found = self._tallies.get((type, enforced))
        if found is not None:
            return self._in_unit(found, metric)
        subject = self._subject(type, Kind(kind), origin)
        # The verdicts under one enforcement come with the type; those under the other one need room.
        second = not enforced if type in self._announced else (type, not enforced) in self._tallies
        if subject is self._other or (
            second and not self._room.admit("evaluator", len(ASSERTION_VERDICTS), values=0)
        ):
            shared = self._other_tallies.get((Kind(kind), enforced))
            if shared is None:
                shared = self._new_tally(self._other, Kind(kind), enforced)
                self._other_tallies[Kind(kind), enforced] = shared
            return shared
        tally = self._tallies[type, enforced] = self._new_tally(subject, Kind(kind), enforced)
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

    def of(self, planned: PlannedEvaluator) -> Tally:
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
        """Show a type's verdicts from now on, with zeros: a rate needs to see them rise from there.

        Its histograms come with its first use: those of all built-ins would leave no room for others.
        """
        if type not in self._subjects and type not in self._announced and self._room.admit("evaluator", 0):
            self._announced[type] = Kind(kind)

    def _in_unit(self, tally: Tally, metric: evaluator.Metric | None) -> Tally:
        if metric is None or tally.subject is self._other:
            return tally
        unit = metric.unit
        found = self._by_unit.get((tally, unit))
        if found is not None:
            return found
        measured = tally.subject.measured.get(unit)
        if measured is None:
            bounds = buckets.value_bounds(metric)
            if not self._room.admit("detail", series_of(bounds) + 1, values=0):  # the last value
                return tally
            measured = tally.subject.measured.setdefault(unit, Measured(bounds))
        return self._by_unit.setdefault((tally, unit), tally.measuring(measured))

    def _subject(self, label: str, kind: Kind, origin: str) -> TypeSeries:
        found = self._subjects.get(label)
        if found is not None:
            return found
        if label not in self._announced and (label == OTHER or not self._room.admit("evaluator", 0)):
            return self._other
        scores = Histogram(buckets.RATIO) if kind is Kind.ASSERTION else None
        series = series_of(buckets.DURATION)
        if scores:
            series += series_of(scores.bounds) + 1  # the pass ratio
        if self._room.admit("detail", series):
            subject = TypeSeries(
                label,
                origin,
                Histogram(buckets.DURATION),
                Codes(len(ERROR_CODES), lambda: self._room.admit("code", 1), self._other.errors),
                scores=scores,
            )
        else:
            subject = TypeSeries(label, OTHER, self._other.durations, self._other.errors)
        return self._subjects.setdefault(label, subject)

    def _new_tally(self, subject: TypeSeries, kind: Kind, enforced: bool) -> Tally:
        return Tally(
            subject,
            (subject.label, kind.name.lower(), "enforced" if enforced else "shadow"),
            verdicts(kind),
            self._clock,
            gates=enforced and subject.scores is not None,
        )

    def families(self) -> Iterator[Metric]:
        """Those of this moment."""
        results = counter(
            "evald_evaluator_results",
            "Results of evaluators, by verdict. The truth about pass rates: rate of passed over rate of "
            "passed and failed, enforced assertions only. Shadow results changed no verdict.",
        )
        ratios = GaugeMetricFamily(
            "evald_assertion_pass_ratio",
            "Share of passed among the passed and failed enforced results of the last 5 minutes, for people. "
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
            ratio = tally.window.ratio(self._clock()) if tally.window else None
            if ratio is not None:
                ratios.add_metric([tally.labels[0]], ratio)
        for label, kind in self._announced.copy().items():
            if (label, True) not in self._tallies:
                names = {"evaluator": label, "kind": kind.name.lower(), "enforcement": "enforced"}
                for verdict in verdicts(kind):
                    add_count(results, {**names, "verdict": VERDICT_NAMES[verdict]}, 0)
        durations = HistogramMetricFamily(
            "evald_evaluator_duration_seconds",
            "How long evaluators took, errors included, skips and queueing left out.",
            labels=["evaluator", "origin"],
        )
        errors = counter(
            "evald_evaluator_errors",
            "Results of evaluators that gave no verdict, by the code of the error.",
        )
        scores = HistogramMetricFamily(
            "evald_assertion_score_ratio",
            "Scores of enforced assertions that passed or failed, from 0 to 1, higher is better.",
            labels=["evaluator"],
        )
        subjects = self._detailed_subjects()
        for subject in subjects:
            add_histogram(durations, [subject.label, subject.origin], subject.durations)
            for code, count in zip(ERROR_CODES, subject.errors.cells[:], strict=True):
                if count:
                    add_count(errors, {"evaluator": subject.label, "code": code}, count)
            if subject.scores is not None:
                add_histogram(scores, [subject.label], subject.scores)
        yield from (results, durations, errors, scores, ratios)
        yield from value_families((subject.label, subject.measured) for subject in subjects)

    def _detailed_subjects(self) -> list[TypeSeries]:
        """Those with histograms of their own, and the one that the rest share."""
        subjects = list(self._subjects.values())
        detailed = [subject for subject in subjects if subject.durations is not self._other.durations]
        shared = self._other_tallies or any(self._room.overflows.values())
        return [*detailed, self._other] if shared else detailed
