"""What many evaluations add up to: verdicts, pass rates, means."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .exits import Exit

if TYPE_CHECKING:
    from evald import Evaluation, EvaluatorResult


@dataclass
class Count:
    """How often each verdict came out."""

    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0

    def add(self, verdict: str) -> None:
        """Count a verdict by name. One that is not known has not passed: it counts as an error."""
        name = {"PASSED": "passed", "FAILED": "failed", "SKIPPED": "skipped"}.get(verdict, "errors")
        setattr(self, name, getattr(self, name) + 1)

    @property
    def total(self) -> int:
        """All of them."""
        return self.passed + self.failed + self.errors + self.skipped

    @property
    def pass_rate(self) -> float | None:
        """Passed among those that passed or failed; errors and skips stay out. None when there are none."""
        judged = self.passed + self.failed
        return self.passed / judged if judged else None

    @property
    def verdict(self) -> str:
        """Failed outranks error, error outranks passed, and skipped counts for nothing."""
        if self.failed:
            return "FAILED"
        if self.errors:
            return "ERROR"
        return "PASSED" if self.passed else "SKIPPED"

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        data: dict[str, Any] = {
            "passedCount": self.passed,
            "failedCount": self.failed,
            "errorCount": self.errors,
            "skippedCount": self.skipped,
        }
        if self.pass_rate is not None:
            data["passRate"] = self.pass_rate
        return data


@dataclass
class EvaluatorTotals:
    """One evaluator over many turns. values: of a metric, those that were measured."""

    title: str
    type: str
    is_metric: bool
    shadow: bool
    count: Count = field(default_factory=Count)
    measured: int = 0
    sum: float = 0.0
    low: float = 0.0
    high: float = 0.0

    def add(self, result: "EvaluatorResult") -> None:
        """Count one result."""
        self.count.add(result.verdict.name)
        value = result.measurement
        if value is None:
            return
        self.low = min(self.low, value) if self.measured else value
        self.high = max(self.high, value) if self.measured else value
        self.sum += value
        self.measured += 1

    @property
    def mean(self) -> float | None:
        """Mean of the measured values; None when there are none."""
        return self.sum / self.measured if self.measured else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        data: dict[str, Any] = {"type": self.type, "kind": "metric" if self.is_metric else "assertion"}
        if self.shadow:
            data["shadow"] = True
        data |= self.count.to_dict()
        if self.is_metric:
            data.pop("passRate", None)  # a metric never fails, so its rate says nothing
        if self.measured:
            data |= {"meanValue": self.mean, "minValue": self.low, "maxValue": self.high}
        return data


class Totals:
    """Adds up conversations, their turns, and every evaluator by name."""

    def __init__(self) -> None:
        self.conversations = Count()
        self.turns = 0
        self.evaluators: dict[str, EvaluatorTotals] = {}

    def add(self, verdict: str, evaluations: Iterable["Evaluation"]) -> None:
        """Count a conversation with the evaluations of its turns."""
        self.conversations.add(verdict)
        for evaluation in evaluations:
            self.turns += 1
            for result in evaluation.results:
                self._of(result).add(result)

    def _of(self, result: "EvaluatorResult") -> EvaluatorTotals:
        found = self.evaluators.get(result.name)
        if found is None:
            is_metric = result.kind.name == "METRIC"
            found = EvaluatorTotals(title(result), result.type, is_metric, result.shadow)
            self.evaluators[result.name] = found
        return found

    @property
    def exit_code(self) -> Exit:
        """0 only when something was judged and all of it passed."""
        return {"PASSED": Exit.PASSED, "FAILED": Exit.FAILED}.get(
            self.conversations.verdict, Exit.INCONCLUSIVE
        )

    def to_dict(self) -> dict[str, Any]:
        """The summary that ends `--json`."""
        return {
            "record": "summary",
            "verdict": self.conversations.verdict,
            "exitCode": int(self.exit_code),
            "conversationCount": self.conversations.total,
            "turnCount": self.turns,
            **self.conversations.to_dict(),
            "evaluators": {name: totals.to_dict() for name, totals in self.evaluators.items()},
        }


def title(result: "EvaluatorResult") -> str:
    """The evaluator's name for people: its label, unless the caller named this use of it."""
    name, _, number = result.name.partition("#")
    if name in (result.type, "") and result.label:
        return f"{result.label} #{number}" if number else result.label
    return result.name
