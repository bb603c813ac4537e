"""Tables of results. Everything in them that comes from outside goes through `clean`."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from .plain import clean
from .totals import Count, EvaluatorTotals, title

if TYPE_CHECKING:
    from evald import Evaluation, EvaluatorResult

_MARKS = {
    "PASSED": ("✓", "Pass", "green"),
    "FAILED": ("✗", "Fail", "red"),
    "ERROR": ("!", "Error", "yellow"),
    "SKIPPED": ("-", "Skipped", "dim"),
}
_UNKNOWN = ("?", "Unknown", "yellow")

# A rate as a bar of this many characters; more says nothing that the number does not.
_BAR = 10

# A report of 120 columns has room for so many evaluators with headings this wide beside a reason.
_MOST_COLUMNS = 7
_CELL = 10


def mark(verdict: str) -> Text:
    """A verdict as one coloured sign."""
    sign, _, style = _MARKS.get(verdict, _UNKNOWN)
    return Text(sign, style)


def verdict_text(verdict: str) -> tuple[str, str]:
    """A verdict's name with its style."""
    return verdict, f"bold {_MARKS.get(verdict, _UNKNOWN)[2]}"


def number(value: float | None) -> str:
    """A measurement: whole numbers as such, others with four digits, nothing for None."""
    if value is None:
        return ""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def table_of(*columns: str | tuple[str, str]) -> Table:
    """A table. columns: headings; with a second text, aligned to that side. The last one takes what room
    there is, the others are not broken."""
    table = Table(box=box.ROUNDED, header_style="bold")
    for position, column in enumerate(columns, start=1):
        name, side = column if isinstance(column, tuple) else (column, "left")
        justify: JustifyMethod = "right" if side == "right" else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=position < len(columns))
    return table


def _titled(*tables: tuple[str, Table]) -> list[RenderableType]:
    """Headings and tables; those without rows are left out."""
    return [part for heading, table in tables if table.row_count for part in (Text(heading, "bold"), table)]


def _outcome(result: "EvaluatorResult") -> Text:
    sign, word, style = _MARKS.get(result.verdict.name, _UNKNOWN)
    text = Text(f"{sign} {word}", style)
    for flag, present in (("pending", result.pending), ("shadow", result.shadow), ("cached", result.cached)):
        if present:
            text.append(f" ({flag})", "dim")
    return text


def reason_of(result: "EvaluatorResult") -> str:
    """Why, on one line; the code comes first when the evaluator broke."""
    if result.error is not None:
        return clean(f"{result.error.code}: {result.error.message or result.reason}")
    return clean(result.reason)


def result_tables(results: Sequence["EvaluatorResult"]) -> list[RenderableType]:
    """The Assertions and the Metrics of one turn; a table without rows is left out."""
    assertions = table_of("Evaluator", "Result", ("Score", "right"), "Reason")
    metrics = table_of("Metric", ("Value", "right"), "Reason")
    for result in results:
        name = clean(title(result), 40)
        if result.kind.name == "METRIC":
            value: RenderableType = number(result.value)
            if result.verdict.name in ("ERROR", "SKIPPED"):
                value = _outcome(result)
            elif result.measurement is None:
                value = Text("n/a", "dim")
            metrics.add_row(name, value, reason_of(result))
        else:
            score = "" if result.score is None else f"{result.score:.2f}"
            assertions.add_row(name, _outcome(result), score, reason_of(result))
    return _titled(("Assertions", assertions), ("Metrics", metrics))


def running(results: Sequence["EvaluatorResult"], waiting: Iterable[str]) -> Group:
    """The tables so far, and what has not answered yet."""
    parts = result_tables(results)
    names = ", ".join(clean(name, 40) for name in waiting)
    if names:
        parts.append(Text(f"waiting for {names}", "dim"))
    return Group(*parts)


def turn_table(evaluations: Sequence["Evaluation | str"]) -> Table:
    """A row a turn: a sign an assertion, a number a metric. A text stands for a turn that was refused."""
    columns: dict[str, str] = {}
    for evaluation in evaluations:
        if not isinstance(evaluation, str):
            for result in evaluation.results:
                columns.setdefault(result.name, clean(title(result), 24))
    headings = ["\n".join(textwrap.wrap(name, _CELL)) for name in columns.values()]
    if len(columns) > _MOST_COLUMNS:
        headings = ["Checks"]
    table = table_of(("Turn", "right"), "Verdict", *headings, "Why")
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
    """A metric's number, where there is one, else the sign of the verdict."""
    if result.kind.name != "METRIC" or result.verdict.name != "PASSED":
        return mark(result.verdict.name)
    return Text("n/a", "dim") if result.measurement is None else Text(number(result.measurement))


def _rate(count: Count) -> Text:
    if count.pass_rate is None:
        return Text("n/a", "dim")
    filled, percent = round(count.pass_rate * _BAR), round(count.pass_rate * 100, 1)
    # Neither may look like all or nothing where it is not.
    if count.failed:
        filled, percent = min(filled, _BAR - 1), min(percent, 99.9)
    if count.passed:
        filled, percent = max(filled, 1), max(percent, 0.1)
    return Text.assemble(
        (f"{percent:5.1f}% ", "bold"), ("█" * filled, "green"), ("░" * (_BAR - filled), "dim")
    )


def total_tables(evaluators: Iterable[EvaluatorTotals]) -> list[RenderableType]:
    """The pass rate of every assertion and the mean of every metric."""
    counts = ("Passed", "Failed", "Errors", "Skipped")
    assertions = table_of("Evaluator", "Pass rate", *((name, "right") for name in counts))
    metrics = table_of("Metric", *((name, "right") for name in ("Mean", "Lowest", "Highest", "Measured")))
    for totals in evaluators:
        name = clean(totals.title, 40) + (" (shadow)" if totals.shadow else "")
        count = totals.count
        if totals.is_metric:
            measured = (totals.mean, totals.low, totals.high) if totals.measured else (None, None, None)
            metrics.add_row(name, *map(number, measured), number(totals.measured))
        else:
            numbers = (count.passed, count.failed, count.errors, count.skipped)
            assertions.add_row(name, _rate(count), *map(number, numbers))
    return _titled(("Assertions", assertions), ("Metrics", metrics))


def unpassed_table(rows: Sequence[tuple[str, str, str]], hidden: int) -> list[RenderableType]:
    """Conversations that did not pass: id, verdict, reason. hidden: how many more there are."""
    table = table_of("Conversation", "Verdict", "Why")
    for identity, verdict, reason in rows:
        table.add_row(clean(identity, 60), Text(*verdict_text(verdict)), clean(reason, 300))
    if hidden:
        table.add_row(f"and {hidden:,} more", "", "")
    return _titled(("Not passed", table))
