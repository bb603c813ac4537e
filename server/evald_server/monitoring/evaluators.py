"""Metrics of evaluators: results, durations, errors, scores and measured values, by type."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final
from weakref import WeakKeyDictionary

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from evald.errorcodes import CODES
from evald.result import Kind, Metric, Verdict, measurement
from evald_server.engine.plan import Plan
from evald_server.engine.planned_evaluator import PlannedEvaluator
from evald_server.engine.run import Outcome

from .families import DURATION_BOUNDS, OTHER, Families, Histogram, TypeNames

_BOUNDS_BY_UNIT: Final[Mapping[str, tuple[float, ...]]] = {
    "seconds": DURATION_BOUNDS,
    "tokens": (10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5),
    "characters": (10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5),
    "words": (3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4),
    "count": (0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 50.0, 100.0),
    # 0 and 1 have their own buckets, because most assertions have no other scores. 0.8 is the default threshold.
    "ratio": (0.0, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0),
    "bytes": (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0),
    "usd": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
}

# The limit of `MetricDescriptor.bucket_bounds` in the protos.
_MAX_OWN_BOUNDS: Final = 20

_SLOT_SECONDS: Final = 10
_SLOTS: Final = 30

_SHORT_NANOS: Final = 1_000_000  # the first bound of DURATION_BOUNDS

_PASSED, _FAILED, _SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.SKIPPED


class PassRate:
    """The share of passed results over the last five minutes, in slots of ten seconds. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slots: deque[list[int]] = deque(maxlen=_SLOTS)  # number of the slot, passed, failed

    def add(self, verdict: int, count: int) -> None:
        """Count results that passed or failed."""
        slot = int(self._clock() // _SLOT_SECONDS)
        if not self._slots or self._slots[-1][0] != slot:
            self._slots.append([slot, 0, 0])
        self._slots[-1][verdict] += count

    def ratio(self) -> float | None:
        """Return passed / (passed + failed); None without such results."""
        oldest = int(self._clock() // _SLOT_SECONDS) - _SLOTS
        recent = [slot for slot in self._slots.copy() if slot[0] > oldest]
        passed, failed = (sum(slot[verdict] for slot in recent) for verdict in (_PASSED, _FAILED))
        return passed / (passed + failed) if recent else None


class EvaluatorTally:
    """A tally of one type's results, either the enforced or the shadow ones. Shows their counts as zeros from the start,
    so that a Prometheus rate sees their first increase."""

    def __init__(
        self, metrics: "EvaluatorMetrics", label: str, kind: Kind, enforcement: str, origin: str
    ) -> None:
        self._metrics, self._label, self._origin = metrics, label, origin
        self._results = (label, kind.name.lower(), enforcement)
        self._is_scored = kind is Kind.ASSERTION and enforcement == "enforced"
        self.values: dict[str, Histogram] = {}  # by unit
        for verdict in Verdict:
            if kind is Kind.ASSERTION or verdict is not _FAILED:
                metrics.results.labels(*self._results, verdict.name.lower())

    def add(self, verdict: int, seconds: float, score: float | None, count: int = 1) -> None:
        """Count equal results.

        verdict: number of an `evald.Verdict`. seconds: mean duration of the evaluator; not counted for skipped results,
        because nothing ran.
        """
        metrics, label = self._metrics, self._label
        metrics.results.add(*self._results, Verdict(verdict).name.lower(), count=count)
        durations = metrics.durations.labels(label, self._origin)
        if verdict != _SKIPPED:
            durations.observe(seconds, count)
        if self._is_scored and verdict <= _FAILED:
            metrics.pass_rates.setdefault(label, PassRate(metrics.clock)).add(verdict, count)
            if score is not None and 0.0 <= score <= 1.0:
                metrics.scores.labels(label).observe(score, count)

    def error(self, code: str) -> None:
        """Count the code of an error, in addition to `add`. An unknown code counts as "other"."""
        self._metrics.errors.add(self._label, code if code in CODES else OTHER)

    def measure(self, unit: str, value: float, count: int = 1) -> None:
        """Count values, in addition to `add`. value: their mean."""
        if unit in self.values:
            self.values[unit].observe(value, count)
            self._metrics.last_value.labels(self._label, unit).set(value)


class EvaluatorMetrics(Collector):
    """The metrics of evaluators. types: the names with series of their own. clock: monotonic seconds."""

    def __init__(self, families: Families, types: TypeNames, clock: Callable[[], float]) -> None:
        self._types, self.clock = types, clock
        text = (
            "Results of evaluators, by verdict. For pass rates, divide the rate of passed by the rate of "
            "passed and failed, of enforced assertions only. Shadow results did not change any verdict."
        )
        labels = ("evaluator", "kind", "enforcement", "verdict")
        self.results = families.counter("evald_evaluator_results", text, *labels)
        text = "Duration of evaluators, including errors, without skipped results and queueing."
        self.durations = families.histograms("evald_evaluator_duration_seconds", text, "evaluator", "origin")
        text = "Results in error, by the code of the error."
        self.errors = families.counter("evald_evaluator_errors", text, "evaluator", "code")
        text = "Scores of enforced assertions that passed or failed, from 0 to 1, higher is better."
        name = "evald_assertion_score_ratio"
        self.scores = families.histograms(name, text, "evaluator", bounds=_BOUNDS_BY_UNIT["ratio"])
        text = "Measured values. Buckets can differ between evaluators: never sum over evaluators."
        self._values = {
            unit: families.histograms(f"evald_metric_value_{unit}", text, "evaluator", bounds=bounds)
            for unit, bounds in _BOUNDS_BY_UNIT.items()
        }
        text = "The last measured value, for display only: of one pod, and of one conversation among many."
        self.last_value = families.gauge("evald_metric_last_value", text, "evaluator", "unit")
        self.pass_rates: dict[str, PassRate] = {}
        self._tallies: dict[tuple[str, Kind, str, str], EvaluatorTally] = {}
        self._by_plan: WeakKeyDictionary[Plan, list[EvaluatorTally]] = WeakKeyDictionary()
        families.register(self)

    def tally(
        self, name: str, kind: int, *, enforced: bool, origin: str, metric: Metric | None
    ) -> EvaluatorTally:
        """Return the tally of a registered type, the same object each time.

        kind: number of an `evald.Kind`. origin: "built_in", "plugin" or "remote". metric: describes the values; None
        without values. Different uses of a type may have different units.
        """
        label = self._types.label(name)
        enforcement = "enforced" if enforced else "shadow"
        key = (label, Kind(kind), enforcement, OTHER if label == OTHER else origin)
        tally = self._tallies.get(key) or self._tallies.setdefault(key, EvaluatorTally(self, *key))
        if metric is not None and metric.unit not in tally.values:
            family = self._values.get(metric.unit, self._values["count"])
            tally.values[metric.unit] = family.labels(label, bounds=_own_bounds(metric))
        return tally

    def of(self, planned: PlannedEvaluator) -> EvaluatorTally:
        """Return the tally of a planned evaluator."""
        definition, origin = planned.definition, planned.origin.name.lower()
        return self.tally(
            definition.type, definition.kind, enforced=planned.enforced, origin=origin, metric=planned.metric
        )

    def export_zeros(self, name: str, kind: int) -> None:
        """Show a type's enforced results as zeros from now on."""
        self.tally(name, kind, enforced=True, origin="", metric=None)

    def count(self, plan: Plan, runs: Sequence[Sequence[Outcome | None]]) -> None:
        """Count the results of finished runs of a plan."""
        tallies = self._by_plan.get(plan)
        if tallies is None:
            tallies = self._by_plan[plan] = [self.of(planned) for planned in plan.evaluators]
        for planned, tally, outcomes in zip(plan.evaluators, tallies, zip(*runs, strict=True), strict=True):
            metric, usual_score = planned.metric, planned.usual_score
            count = usual_nanos = 0
            values: Counter[float] = Counter()
            for result, nanos, _ in filter(None, outcomes):
                # Short results are in the first bucket of the histogram, so they are added together.
                if result.verdict is _PASSED and result.score == usual_score and nanos <= _SHORT_NANOS:
                    count += 1
                    usual_nanos += nanos
                else:
                    tally.add(result.verdict, nanos * 1e-9, result.score)
                    if result.error is not None:
                        tally.error(result.error.code)
                if metric is not None and result.value is not None:
                    value = measurement(result.value, result.metadata) if planned.is_metric else result.value
                    if value is not None:
                        values[value] += 1
            if count:
                tally.add(_PASSED, usual_nanos * 1e-9 / count, usual_score, count)
            for value, times in values.items():
                tally.measure(metric.unit if metric else "", value, times)

    def collect(self) -> Iterable[Family]:
        """Yield the pass ratios."""
        ratios = GaugeMetricFamily(
            "evald_assertion_pass_ratio",
            "Share of passed among the passed and failed enforced results of the last 5 minutes, for display only. "
            "Never average it over pods or time: use evald_evaluator_results_total for that. "
            "Absent when nothing passed or failed.",
            labels=["evaluator"],
        )
        for label, rate in self.pass_rates.copy().items():
            if (ratio := rate.ratio()) is not None:
                ratios.add_metric([label], ratio)
        yield ratios


def _own_bounds(metric: Metric) -> Sequence[float]:
    """Return the metric's own bounds if they are finite, strictly increasing and at most 20, else none."""
    own = metric.bucket_bounds
    edges = (float("-inf"), *own, float("inf"))
    return own if len(own) <= _MAX_OWN_BOUNDS and all(low < high for low, high in pairwise(edges)) else ()
