"""What the evaluators of one plan said in a batch, added up."""

from collections.abc import Sequence
from typing import NamedTuple

from evald.result import Verdict, measurement
from evald.v1 import evaluation_service_pb2
from evald_server.engine.plan import Plan
from evald_server.engine.run import EvaluationRun


class Sums(NamedTuple):
    """Totals as plain numbers. By evaluator: counts by the verdict's number, and the sum of what was measured."""

    counts: Sequence[Sequence[int]]
    sums: Sequence[float]


class Totals:
    """The evaluators of one plan over a batch."""

    __slots__ = ("_counts", "_plan", "_sums")

    def __init__(self, plan: Plan) -> None:
        # Holding the plan also keeps its id from being given to another one.
        self._plan = plan
        self._counts = [[0] * (len(Verdict) + 1) for _ in plan.evaluators]
        self._sums = [0.0] * len(plan.evaluators)

    def add(self, run: EvaluationRun) -> None:
        """Count the results of one item."""
        for evaluator, result in zip(self._plan.evaluators, run.results, strict=True):
            if evaluator.is_metric and result.verdict is Verdict.PASSED:
                value = measurement(result.value, result.metadata)
                if value is None:
                    continue
                self._sums[evaluator.index] += value
            self._counts[evaluator.index][result.verdict] += 1

    def sums(self) -> Sums:
        """These totals, for another process."""
        return Sums(self._counts, self._sums)

    def merge(self, other: Sums) -> None:
        """Count what another process has counted under an equal plan."""
        for counts, more in zip(self._counts, other.counts, strict=True):
            for verdict, count in enumerate(more):
                counts[verdict] += count
        for index, total in enumerate(other.sums):
            self._sums[index] += total

    def write(self, summary: evaluation_service_pb2.BatchSummary, means: dict[str, list[float]]) -> None:
        """Add up by the evaluators' names. means: sum and count of what metrics measured."""
        for evaluator, counts, total in zip(self._plan.evaluators, self._counts, self._sums, strict=True):
            pb = summary.evaluators[evaluator.name]
            measured = counts[Verdict.PASSED]
            pb.error_count += counts[Verdict.ERROR]
            if not evaluator.is_metric:
                pb.passed_count += measured
                pb.failed_count += counts[Verdict.FAILED]
            elif measured:
                mean = means.setdefault(evaluator.name, [0.0, 0])
                mean[0] += total
                mean[1] += measured
