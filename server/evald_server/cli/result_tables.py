"""Totals over many evaluations, and tables of results. All their untrusted text passes through `clean`."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evald.records import read_verdict
from evald.v1 import suite_service_pb2
from evald_server.pages.formats import number, rounded_percent, score

from ..pages.formats import evaluator_title
from ..suites.reports.case_view import is_red
from ..suites.reports.failures import answer_lines, failure_lines
from .console import new_table
from .exit_codes import ExitCode
from .sanitize import clean

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


_MARKS = {
    "PASSED": ("✓", "Pass", "green"),
    "FAILED": ("✗", "Fail", "red"),
    "ERROR": ("!", "Error", "yellow"),
    "SKIPPED": ("-", "Skipped", "dim"),
}
_UNKNOWN = ("?", "Unknown", "yellow")

# Width of the bar that shows a pass rate.
_BAR = 10

# Maximum number and width of evaluator columns that fit into 120 columns beside a reason.
_MOST_COLUMNS = 7
_CELL = 10


def mark(verdict: str) -> Text:
    """Return a verdict as one coloured sign."""
    sign, _, style = _MARKS.get(verdict, _UNKNOWN)
    return Text(sign, style)


def verdict_text(verdict: str) -> tuple[str, str]:
    """Return a verdict's name with its style."""
    return verdict, f"bold {_MARKS.get(verdict, _UNKNOWN)[2]}"


def titled(*tables: tuple[str, Table]) -> list[RenderableType]:
    """Return the tables that have rows, each after its heading."""
    return [part for heading, table in tables if table.row_count for part in (Text(heading, "bold"), table)]


def _outcome(result: "EvaluatorResult") -> Text:
    sign, word, style = _MARKS.get(result.verdict.name, _UNKNOWN)
    text = Text(f"{sign} {word}", style)
    for flag, present in (("pending", result.pending), ("shadow", result.shadow), ("cached", result.cached)):
        if present:
            text.append(f" ({flag})", "dim")
    return text


def _reason(result: "EvaluatorResult") -> str:
    """Return the reason as one line. The reason of an error starts with the error code."""
    if result.error is not None:
        return clean(f"{result.error.code}: {result.error.message or result.reason}")
    return clean(result.reason)


def result_tables(results: Sequence["EvaluatorResult"]) -> list[RenderableType]:
    """Return the non-empty tables of assertions and metrics of one turn."""
    assertions = new_table("Evaluator", "Result", ("Score", "right"), "Reason")
    metrics = new_table("Metric", ("Value", "right"), "Reason")
    for result in results:
        name = clean(title(result), 40)
        if result.kind.name == "METRIC":
            value: RenderableType = number(result.value)
            if result.verdict.name in ("ERROR", "SKIPPED"):
                value = _outcome(result)
            elif result.measurement is None:
                value = Text("n/a", "dim")
            metrics.add_row(name, value, _reason(result))
        else:
            shown = "" if result.score is None else score(result.score)
            assertions.add_row(name, _outcome(result), shown, _reason(result))
    return titled(("Assertions", assertions), ("Metrics", metrics))


def running_tables(results: Sequence["EvaluatorResult"], waiting: Iterable[str]) -> Group:
    """Return the tables of the results so far, and the names of evaluators that are still running."""
    parts = result_tables(results)
    names = ", ".join(clean(name, 40) for name in waiting)
    if names:
        parts.append(Text(f"waiting for {names}", "dim"))
    return Group(*parts)


def turn_table(evaluations: Sequence["Evaluation | str"]) -> Table:
    """Return a table with a row per turn: signs for assertions, numbers for metrics.

    evaluations: a string is the error message of a refused turn.
    """
    columns: dict[str, str] = {}
    for evaluation in evaluations:
        if not isinstance(evaluation, str):
            for result in evaluation.results:
                columns.setdefault(result.name, clean(title(result), 24))
    headings = ["\n".join(textwrap.wrap(name, _CELL)) for name in columns.values()]
    if len(columns) > _MOST_COLUMNS:
        headings = ["Checks"]
    table = new_table(("Turn", "right"), "Verdict", *headings, "Why")
    for column in table.columns[2:-1]:
        column.justify = "center"
    for position, evaluation in enumerate(evaluations, start=1):
        if isinstance(evaluation, str):
            row = [Text(*verdict_text("ERROR")), *[Text()] * len(headings), Text(clean(evaluation, 200))]
        else:
            cells = dict.fromkeys(columns, Text()) | {r.name: _cell(r) for r in evaluation.results}
            signs = list(cells.values())
            if len(columns) > _MOST_COLUMNS:
                signs = [Text(" ").join(signs)]
            why = "" if evaluation.passed else clean(evaluation.reason, 200)
            row = [Text(*verdict_text(evaluation.verdict.name)), *signs, Text(why)]
        table.add_row(str(position), *row)
    return table


def _cell(result: "EvaluatorResult") -> Text:
    """Return the value of a metric, or the sign of a verdict."""
    if result.kind.name != "METRIC" or result.verdict.name != "PASSED":
        return mark(result.verdict.name)
    return Text("n/a", "dim") if result.measurement is None else Text(number(result.measurement))


def _rate(count: VerdictCount) -> Text:
    if count.pass_rate is None:
        return Text("n/a", "dim")
    filled = round(count.pass_rate * _BAR)
    # Rounding must not turn other rates into 0 or 100 %.
    if count.failed and count.passed:
        filled = min(max(filled, 1), _BAR - 1)
    percent = f"{rounded_percent(count.pass_rate):5.1f}% "
    return Text.assemble((percent, "bold"), ("█" * filled, "green"), ("░" * (_BAR - filled), "dim"))


def total_tables(evaluators: Iterable[EvaluatorRunTotals]) -> list[RenderableType]:
    """Return the tables of assertions with pass rates and of metrics with means."""
    counts = ("Passed", "Failed", "Errors", "Skipped")
    assertions = new_table("Evaluator", "Pass rate", *((name, "right") for name in counts))
    figures = ("Mean", "Lowest", "Highest", "Measured", "Errors")
    metrics = new_table("Metric", *((name, "right") for name in figures))
    for totals in evaluators:
        name = clean(totals.title, 40) + (" (shadow)" if totals.shadow else "")
        count = totals.count
        if totals.is_metric:
            measured = (totals.mean, totals.low, totals.high) if totals.measured else (None, None, None)
            metrics.add_row(name, *map(number, measured), number(totals.measured), number(count.errors))
        else:
            numbers = (count.passed, count.failed, count.errors, count.skipped)
            assertions.add_row(name, _rate(count), *map(number, numbers))
    return titled(("Assertions", assertions), ("Metrics", metrics))


class CaseRow(NamedTuple):
    """A row of a conversation or case. lines: why it did not pass, or its answers."""

    case_id: str
    verdict: str
    lines: list[str]


def case_row(case: suite_service_pb2.CaseResult) -> CaseRow:
    """Return the row of a case with its trials."""
    verdict = read_verdict(case.verdict).name
    lines = failure_lines(case) if is_red(case.verdict) else answer_lines(case)
    if verdict == "SKIPPED" or (is_red(case.verdict) and len(case.trials) > 1):
        lines.insert(0, clean(case.reason, 300))
    return CaseRow(case.case_id, verdict, lines)


def case_tables(what: str, rows: Iterable[CaseRow], hidden: int = 0) -> list[RenderableType]:
    """Return the tables of conversations or cases: what did not pass, with every reason and the answers; other answers.

    hidden: number of those without a row.
    """
    red, green = new_table(what, "Verdict", "Why"), new_table(what, "Verdict", "Answer")
    for case_id, verdict, lines in rows:
        table = green if verdict in ("PASSED", "SKIPPED") else red
        table.add_row(clean(case_id, 60), Text(*verdict_text(verdict)), Text("\n".join(lines)))
    if hidden:
        red.add_row(f"and {hidden:,} more", "", "")
    return titled(("Not passed", red), ("Passed", green))
