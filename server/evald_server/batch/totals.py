"""What the evaluators of one plan said in a batch, added up."""

from collections.abc import Sequence
from typing import NamedTuple

from evald.result import Verdict, measurement
from evald.v1 import evaluation_service_pb2
from evald_server.engine.plan import Plan
from evald_server.engine.run import Evaluation


class Sums(NamedTuple):
    """Totals as plain numbers. By use: counts by the verdict's number, and the sum of what was measured."""

    perfect: int
    counts: Sequence[Sequence[int]]
    sums: Sequence[float]


class Totals:
    """The evaluators of one plan over a batch. perfect: items in which all of them simply passed."""

    __slots__ = ("_counts", "_perfect", "_plan", "_sums")

    def __init__(self, plan: Plan) -> None:
        # Holding the plan also keeps its id from being given to another one.
        self._plan = plan
        self._perfect = 0
        self._counts = [[0] * (len(Verdict) + 1) for _ in plan.uses]
        self._sums = [0.0] * len(plan.uses)

    def add(self, evaluation: Evaluation) -> None:
        """Count the results of one item."""
        if evaluation.perfect and not self._plan.measures:
            self._perfect += 1
            return
        for use, outcome in zip(self._plan.uses, evaluation.outcomes, strict=True):
            if outcome is None:
                continue
            if use.is_metric and outcome.verdict is Verdict.PASSED:
                value = measurement(outcome.value, outcome.metadata)
                if value is None:
                    continue
                self._sums[use.index] += value
            self._counts[use.index][outcome.verdict] += 1

    def sums(self) -> Sums:
        """These totals, for another process."""
        return Sums(self._perfect, self._counts, self._sums)

    def merge(self, other: Sums) -> None:
        """Count what another process has counted under an equal plan."""
        self._perfect += other.perfect
        for counts, more in zip(self._counts, other.counts, strict=True):
            for verdict, count in enumerate(more):
                counts[verdict] += count
        for index, total in enumerate(other.sums):
            self._sums[index] += total

    def write(self, summary: evaluation_service_pb2.BatchSummary, means: dict[str, list[float]]) -> None:
        """Add up by the evaluators' names. means: sum and count of what metrics measured."""
        for use, counts, total in zip(self._plan.uses, self._counts, self._sums, strict=True):
            pb = summary.evaluators[use.name]
            measured = counts[Verdict.PASSED]
            pb.error_count += counts[Verdict.ERROR]
            if not use.is_metric:
                pb.passed_count += measured + self._perfect
                pb.failed_count += counts[Verdict.FAILED]
            elif measured:
                mean = means.setdefault(use.name, [0.0, 0])
                mean[0] += total
                mean[1] += measured
