"""The number in the answer against an expected one."""

import re
from collections.abc import Iterator, Mapping
from math import isfinite, ulp
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from evald.context import EvaluatorContext, Which
from evald.evaluator import Evaluator
from evald.result import ASSERTION, Kind, Result, failed, passed
from evald.scenario import Expected

from .missing import NOTHING_SAID, OnMissing, missing
from .texts import too_large

# Possessive throughout, so that no text makes it try twice.
_NUMBER = re.compile(
    r"""
    (?<![\w.])                       # not inside a word ("GPT4") or a longer number
    ((?<![)\]}%])[-+\u2212])?+       # "(3)-4" and "BK-12" have a hyphen, not a minus
    [$\u20ac\u00a3\u00a5]?+          # "-$5"
    (
        (?:
            [0-9]{1,3}+(?:,[0-9]{3}(?![0-9]))++
          | [0-9]++
          | (?=\.[0-9])              # ".5"
        )
        (?:\.[0-9]++)?+
        (?:[eE][-+]?+[0-9]{1,3}+(?![0-9]))?+
    )
    (?!\.[0-9])                      # "1.2.3" is a version
    """,
    re.VERBOSE,
)

# Takes 100 ns a character of prose, 300 of nothing but numbers: 5 to 15 ms.
MAX_SCANNED = 50_000

Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def numbers_in(text: str) -> Iterator[float]:
    """The numbers of a text, in order.

    A comma separates thousands where three digits follow ("1,234.5"), else it
    ends a number; the decimal sign is a dot. "60%" is 60, "$5" is 5, "5kg" is
    5, "1e3" is 1000. Digits inside a word ("GPT4") and versions ("1.2.3") are
    no numbers, nor is what does not fit into a double ("1e999").
    """
    for found in _NUMBER.finditer(text):
        sign, digits = found.groups()
        number = float(digits.replace(",", ""))
        if isfinite(number):
            yield -number if sign in {"-", "\u2212"} else number


def is_within(actual: float, expected: float, allowed: float) -> bool:
    """The difference is at most `allowed`, up to the rounding of binary fractions: 1.1 is within 0.1 of 1."""
    return abs(actual - expected) <= allowed + 4 * ulp(max(abs(actual), abs(expected)))


def closeness(actual: float, expected: float) -> float:
    """1 - difference / sum of both absolute values: 1 when equal, 0 when the signs differ or one is 0."""
    total = abs(actual) + abs(expected)
    return max(0.0, 1 - abs(actual - expected) / total) if total else 1.0


class Numeric(Evaluator):
    """The number in the answer is the expected one, within a tolerance.

    Without `expected` it compares with the context's expected data, when that
    is a number, else with the last number of its expected text. A comma
    separates thousands ("1,234.5"), the decimal sign is a dot, and percent and
    currency signs do not change a number: "60%" is 60. Score: 1 when passed,
    else 1 - difference / (|answer| + |expected|).
    """

    type: ClassVar[str] = "numeric"
    kind: ClassVar[Kind] = ASSERTION
    aliases: ClassVar[Mapping[str, Mapping[str, Any]]] = {"numeric-diff": {}}
    inline: ClassVar[bool] = True

    expected: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        None, description="Expected number. Left out: the context's."
    )
    tolerance: Tolerance = Field(0.0, description="Largest difference that passes.")
    relative: Tolerance = Field(
        0.0, description="The same as a share of the expected number: 0.01 is 1 %. The larger of both counts."
    )
    extract: Literal["first", "last", "any"] = Field(
        "last", description='Which number of the answer counts; "any" takes the one closest to the expected.'
    )
    message: Which = "last"
    on_missing: OnMissing = "fail"

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Compare. value: the number found in the answer."""
        answer = ctx.answer_of(self.message)
        if answer is None:
            return NOTHING_SAID
        if len(answer) > MAX_SCANNED:
            return too_large("characters to look through for a number", len(answer), MAX_SCANNED)
        expected = _expected_number(ctx.expected) if self.expected is None else self.expected
        if expected is None:
            return missing(self.on_missing, "No expected number to compare with")
        actual = self._pick(answer, expected)
        if actual is None:
            return failed(f"No number found in the response, expected {expected:.15g}", 0.0)
        allowed = max(self.tolerance, self.relative * abs(expected))
        reason = f"got {actual:.15g}, expected {expected:.15g}, tolerance {allowed:.15g}"
        if is_within(actual, expected, allowed):
            return passed(f"Number is within tolerance: {reason}", 1.0, actual)
        return failed(f"Number is not within tolerance: {reason}", closeness(actual, expected), actual)

    def _pick(self, answer: str, expected: float) -> float | None:
        numbers = numbers_in(answer)
        if self.extract == "first":
            return next(numbers, None)
        if self.extract == "any":
            return min(numbers, key=lambda number: abs(number - expected), default=None)
        return _last(numbers)


def _expected_number(expected: Expected) -> float | None:
    if expected.has_data:
        data = expected.data
        if isinstance(data, int | float) and not isinstance(data, bool) and isfinite(data):
            return float(data)
    text = expected.text
    if text is None or len(text) > MAX_SCANNED:
        return None
    return _last(numbers_in(text))


def _last(numbers: Iterator[float]) -> float | None:
    last = None
    for number in numbers:
        last = number
    return last
