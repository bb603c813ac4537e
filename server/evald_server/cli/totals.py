"""Totals over many evaluations: verdict counts, pass rates, means of metrics."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..pages.formats import evaluator_title
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from evald import Evaluation, EvaluatorResult


@dataclass
class VerdictCount:
    """Number of results by verdict."""

    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0

    def add(self, verdict: str) -> None:
        """Count a verdict by name. An unknown verdict counts as an error."""
        name = {"PASSED": "passed", "FAILED": "failed", "SKIPPED": "skipped"}.get(verdict, "errors")
        setattr(self, name, getattr(self, name) + 1)

    @property
    def total(self) -> int:
        """The number of all verdicts."""
        return self.passed + self.failed + self.errors + self.skipped

    @property
    def pass_rate(self) -> float | None:
        """Passed / (passed + failed); None if nothing passed or failed."""
        judged = self.passed + self.failed
        return self.passed / judged if judged else None

    @property
    def verdict(self) -> str:
        """The overall verdict: failed outranks error, error outranks passed, skipped is ignored."""
        if self.failed:
            return "FAILED"
        if self.errors:
            return "ERROR"
        return "PASSED" if self.passed else "SKIPPED"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the overall verdict: 0 only if something passed and nothing failed or was an error."""
        return {"PASSED": ExitCode.PASSED, "FAILED": ExitCode.FAILED}.get(self.verdict, ExitCode.INCONCLUSIVE)

    @property
    def rest(self) -> str:
        """The counts besides passed, for the end of a line: ", 2 failed, 1 skipped"; "" if all are 0."""
        numbers = ((self.failed, "failed"), (self.errors, "inconclusive"), (self.skipped, "skipped"))
        return "".join(f", {number} {word}" for number, word in numbers if number)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON data."""
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
class EvaluatorRunTotals:
    """The results of one evaluator over many turns. measured: number of values of a metric."""

    title: str
    type: str
    is_metric: bool
    shadow: bool
    count: VerdictCount = field(default_factory=VerdictCount)
    measured: int = 0
    sum: float = 0.0
    low: float = 0.0
    high: float = 0.0

    def add(self, result: "EvaluatorResult") -> None:
        """Add one result."""
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
        """The mean of the measured values; None if there are none."""
        return self.sum / self.measured if self.measured else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON data."""
        data: dict[str, Any] = {"type": self.type, "kind": "metric" if self.is_metric else "assertion"}
        if self.shadow:
            data["shadow"] = True
        data |= self.count.to_dict()
        if self.is_metric:
            data.pop("passRate", None)  # a metric never fails
        if self.measured:
            data |= {"meanValue": self.mean, "minValue": self.low, "maxValue": self.high}
        return data


class RunTotals:
    """Totals of a command: conversations, turns, and evaluators by name.

    unanswered: number of conversations whose last message of the user has no answer.
    """

    def __init__(self) -> None:
        self.conversations = VerdictCount()
        self.turns = 0
        self.unanswered = 0
        self.evaluators: dict[str, EvaluatorRunTotals] = {}

    def add(self, verdict: str, evaluations: Iterable["Evaluation"]) -> None:
        """Add a conversation with the evaluations of its turns."""
        self.conversations.add(verdict)
        for evaluation in evaluations:
            self.turns += 1
            for result in evaluation.results:
                self._of(result).add(result)

    def _of(self, result: "EvaluatorResult") -> EvaluatorRunTotals:
        found = self.evaluators.get(result.name)
        if found is None:
            is_metric = result.kind.name == "METRIC"
            found = EvaluatorRunTotals(title(result), result.type, is_metric, result.shadow)
            self.evaluators[result.name] = found
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the summary, the last line of `--json`."""
        return {
            "record": "summary",
            "verdict": self.conversations.verdict,
            "exitCode": int(self.conversations.exit_code),
            "conversationCount": self.conversations.total,
            "turnCount": self.turns,
            "unansweredCount": self.unanswered,
            **self.conversations.to_dict(),
            "evaluators": {name: totals.to_dict() for name, totals in self.evaluators.items()},
        }


def title(result: "EvaluatorResult") -> str:
    """Return the evaluator's display name."""
    return evaluator_title(result.name, result.type, result.label)
