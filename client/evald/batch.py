"""What comes back from a batch: an answer for each item, and what the whole comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .evaluation import Evaluation
from .evaluator_result import EvaluatorError
from .records import present
from .result import Verdict

if TYPE_CHECKING:
    from .v1 import evaluation_service_pb2


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The answer to one item of a batch: an evaluation, or the error that kept it from being evaluated.

    True when the item passed, else false.
    """

    id: str
    evaluation: Evaluation | None = None
    error: EvaluatorError | None = None

    @property
    def verdict(self) -> Verdict:
        """That of the evaluation; ERROR without one."""
        return Verdict.ERROR if self.evaluation is None else self.evaluation.verdict

    @property
    def reason(self) -> str:
        """That of the evaluation; without one, what kept the item from being evaluated."""
        if self.evaluation is not None:
            return self.evaluation.reason
        return self.error.message if self.error is not None else ""

    @property
    def passed(self) -> bool:
        """True for PASSED alone."""
        return self.verdict is Verdict.PASSED

    def __bool__(self) -> bool:
        """Same as `passed`, so that `assert` fails for what did not pass."""
        return self.passed

    def to_dict(self) -> dict[str, Any]:
        """As JSON data in camelCase."""
        return present(
            {
                "id": self.id,
                "verdict": self.verdict.name,
                "evaluation": None if self.evaluation is None else self.evaluation.to_dict(),
                "error": self.error.to_dict() if self.error else None,
            }
        )

    @classmethod
    def from_pb(cls, pb: "evaluation_service_pb2.BatchAnswer") -> "BatchAnswer":
        """Read from a server's message."""
        if pb.HasField("summary"):
            return cls(pb.item_id, Evaluation.from_pb(pb.summary))
        if pb.HasField("error"):
            return cls(pb.item_id, None, EvaluatorError.from_pb(pb.error))
        return cls(
            pb.item_id,
            None,
            EvaluatorError.of_code(
                "CONTRACT_VIOLATION", "the server's answer is of a kind this client does not know"
            ),
        )


class EvaluatorTotals(NamedTuple):
    """One evaluator over a batch.

    mean_value: mean of the measured values, unavailable ones left out; None when there are none.
    """

    passed_count: int = 0
    failed_count: int = 0
    error_count: int = 0
    mean_value: float | None = None

    @property
    def pass_rate(self) -> float | None:
        """Passed out of passed and failed, 0 to 1; None when there are none."""
        decided = self.passed_count + self.failed_count
        return self.passed_count / decided if decided else None


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """What a whole batch comes to. Counts are of items; error_count has those that could not be evaluated.

    evaluators: totals by name of the evaluator.
    """

    item_count: int = 0
    passed_count: int = 0
    failed_count: int = 0
    error_count: int = 0
    skipped_count: int = 0
    evaluators: Mapping[str, EvaluatorTotals] = field(default_factory=dict)

    @property
    def pass_rate(self) -> float | None:
        """Passed out of passed and failed, 0 to 1; None when there are none. Errors and skips stay out."""
        decided = self.passed_count + self.failed_count
        return self.passed_count / decided if decided else None

    @classmethod
    def from_pb(cls, pb: "evaluation_service_pb2.BatchSummary", refused_here: int = 0) -> "BatchSummary":
        """Read from a server's message. refused_here: items that never left this process."""
        return cls(
            pb.item_count + refused_here,
            pb.passed_count,
            pb.failed_count,
            pb.error_count + refused_here,
            pb.skipped_count,
            {
                name: EvaluatorTotals(
                    totals.passed_count,
                    totals.failed_count,
                    totals.error_count,
                    totals.mean_value if totals.HasField("mean_value") else None,
                )
                for name, totals in pb.evaluators.items()
            },
        )
