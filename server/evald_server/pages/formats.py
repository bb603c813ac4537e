"""Formats of verdicts, numbers and times in reports, on pages and in the terminal."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from evald.fields import snake
from evald.records import read_usage, read_verdict
from evald.result import Verdict

if TYPE_CHECKING:
    from google.protobuf.descriptor import EnumDescriptor

    from evald.v1 import suite_service_pb2


class Mark(NamedTuple):
    """The display of a verdict, never by colour alone.

    word: for a case or a suite. short: for one evaluator's result. style: class in the style sheet.
    """

    sign: str
    word: str
    short: str
    style: str


_MARKS: Final = {
    Verdict.PASSED: Mark("✓", "Passed", "Pass", "pass"),
    Verdict.FAILED: Mark("✗", "Failed", "Fail", "fail"),
    Verdict.ERROR: Mark("!", "Inconclusive", "Error", "error"),
    Verdict.SKIPPED: Mark("–", "Skipped", "Skipped", "skip"),  # noqa: RUF001 - a dash
}


def mark(verdict: int) -> Mark:
    """Return the mark of a verdict. An unknown verdict is shown as an error."""
    return _MARKS[read_verdict(verdict)]


_COMPARISON_MARKS: Final = {
    1: Mark("✓", "PASS", "PASS", "pass"),
    2: Mark("!", "WARN", "WARN", "error"),
    3: Mark("✗", "BLOCK", "BLOCK", "fail"),
}


def comparison_mark(verdict: int) -> Mark:
    """Return the mark of a comparison's verdict. An unknown verdict is shown as inconclusive."""
    return _COMPARISON_MARKS.get(verdict, Mark("?", "INCONCLUSIVE", "INCONCLUSIVE", "error"))


def number(value: float | None) -> str:
    """Format a measurement: whole numbers without decimals, others with four digits or one decimal, None as ""."""
    if value is None:
        return ""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


_PERCENT: Final = "\u202f%"  # with a narrow no-break space


def rounded_percent(share: float) -> float:
    """Return a share in percent with one decimal. Only exactly 0 and 1 become 0 and 100."""
    rounded = round(share * 100, 1)
    return min(max(rounded, 0.1), 99.9) if 0 < share < 1 else rounded


def percent(share: float) -> str:
    """Format a share as a percentage. Only exactly 0 and 1 become 0 % and 100 %."""
    rounded = rounded_percent(share)
    return (f"{rounded:.1f}" if rounded % 1 else f"{rounded:.0f}") + _PERCENT


def between(estimate: "suite_service_pb2.Estimate") -> str:
    """Format an interval of shares: "90.1 to 93.4 %"."""
    return f"{percent(estimate.low).removesuffix(_PERCENT)} to {percent(estimate.high)}"


def score(value: float) -> str:
    """Format a score from 0 to 1 with two decimals. Only exactly 0 and 1 become 0.00 and 1.00."""
    return f"{min(max(value, 0.01), 0.99) if 0 < value < 1 else value:.2f}"


def points(change: float) -> str:
    """Format a change of a share in percentage points, with its sign. A small change never becomes 0."""
    if abs(change) < 1e-9:  # the rounding error of a difference
        return "±0"
    sign = "+" if change > 0 else "\u2212"
    return f"{sign}{max(abs(change) * 100, 0.1):.1f}"


def signed(change: float) -> str:
    """Format a change with its sign."""
    return "±0" if not change else f"{change:+.3g}".replace("-", "\u2212")


def p_value(p: float) -> str:
    """Format a p-value."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def seconds(value: float) -> str:
    """Format a duration: "812 ms", "8.4 s", "3 min 20 s"."""
    if value < 1:
        return f"{value * 1000:.0f}\u202fms"
    if value < 60:
        return f"{value:.1f}\u202fs"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}\u202fh {minutes}\u202fmin" if hours else f"{minutes}\u202fmin {rest}\u202fs"


def money(pb: Any) -> str:
    """Format a Cost message."""
    currency = "$" if pb.currency_code in ("", "USD") else f"{pb.currency_code} "
    return f"{currency}{pb.amount:,.2f}" if pb.amount >= 1 else f"{currency}{pb.amount:.2g}"


def tokens(pb: Any) -> int | None:
    """Return the total of a TokenUsage: as reported, or the sum of input and output; None if nothing is known."""
    return read_usage(pb).total


def moment(pb: Any) -> str:
    """Format a Timestamp: "2026-11-22 16:48 UTC"."""
    return datetime.fromtimestamp(pb.seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def words(enum: "EnumDescriptor") -> dict[Any, str]:
    """Return the words for a protobuf enum's values, without the zero value: 1 is "Queued"."""
    prefix = f"{snake(enum.name).upper()}_"
    return {one.number: one.name.removeprefix(prefix).capitalize() for one in enum.values if one.number}


def evaluator_title(name: str, type_name: str, label: str) -> str:
    """Return an evaluator's display name: the name that the caller gave it, else its label."""
    base, _, number = name.partition("#")
    if base in (type_name, "") and label:
        return f"{label} #{number}" if number else label
    return name


def cached_answers(run: "suite_service_pb2.SuiteRun") -> str:
    """Say how many answers of judges came from the cache."""
    return f"{count(run.cached_answer_count, 'judge answer')} came from the cache"


def count(amount: int, noun: str) -> str:
    """Format a number with a noun: "1 case", "1,204 cases"."""
    return f"{amount:,} {noun}" if amount == 1 else f"{amount:,} {noun}s"
