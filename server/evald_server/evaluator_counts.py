"""Counts the results of an evaluator, for the summaries of batches and suite runs."""

import math
from typing import Final

from evald.v1 import evaluation_service_pb2, evaluator_pb2, result_pb2

_METRIC: Final = evaluator_pb2.EVALUATOR_KIND_METRIC


class EvaluatorCounts:
    """The verdict counts of the evaluators with one name, and the sum and number of a metric's values.

    They count as an assertion if one of them is an assertion, and as enforced if one of them is enforced.
    """

    def __init__(self) -> None:
        self.kind: int = _METRIC
        self.enforced = False
        self.passed = self.failed = self.errors = self.values = 0
        self.sum = 0.0

    def add(self, kind: int, enforced: bool, verdict: int, value: float | None, count: int = 1) -> None:
        """Add `count` equal results. value: of a metric; None if unavailable."""
        if kind != _METRIC:
            self.kind = kind
        self.enforced = self.enforced or enforced
        if verdict == result_pb2.VERDICT_PASSED:
            if kind != _METRIC:
                self.passed += count
            if value is not None:
                self.sum += count * value
                self.values += count
        elif verdict == result_pb2.VERDICT_FAILED:
            self.failed += count
        elif verdict != result_pb2.VERDICT_SKIPPED:
            self.errors += count

    def merge(self, other: "EvaluatorCounts") -> None:
        """Add other counts."""
        if other.kind != _METRIC:
            self.kind = other.kind
        self.enforced = self.enforced or other.enforced
        self.passed += other.passed
        self.failed += other.failed
        self.errors += other.errors
        self.values += other.values
        self.sum += other.sum

    def fill(self, totals: evaluation_service_pb2.EvaluatorTotals) -> None:
        """Set the fields of a message. The mean is left out without values, and if it exceeds a double."""
        totals.kind = self.kind  # type: ignore[assignment]
        totals.enforcement = (
            evaluator_pb2.ENFORCEMENT_ENFORCED if self.enforced else evaluator_pb2.ENFORCEMENT_SHADOW
        )
        totals.passed_count, totals.failed_count = self.passed, self.failed
        totals.error_count = self.errors
        if self.values and math.isfinite(self.sum):
            totals.mean_value = self.sum / self.values
