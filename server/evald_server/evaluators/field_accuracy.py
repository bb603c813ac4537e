"""Assertion that the fields of a JSON answer are right: equal, near enough, or the same day."""

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from functools import cached_property
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, Field

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import ASSERTION, Check, Result, failed, passed, unproven
from evald.strict_json import TooLarge

from .json_answers import Reference
from .json_values import (
    CHECK_EVERY,
    MISSING,
    CheckTime,
    Path,
    PlaceText,
    equal,
    is_number,
    lookup,
    parse_place,
    shown,
    unlimited,
    within,
)
from .results import MAX_NAMED, Amount, Weight, first_checks, missing

_MAX_FIELDS: Final = 1000
# Per look, one field or CHECK_EVERY values of one field are compared.
_MAX_STEPS: Final = 4_000


class FieldRule(BaseModel):
    """One field of `field-accuracy`."""

    model_config = Evaluator.model_config

    path: PlaceText = Field(description='Path of the value, for example "invoice.items[0].price".')
    match: Literal["exact", "numeric", "date"] = Field(
        "exact",
        description="How the values are compared. exact: equal JSON values. numeric: numbers, or strings with a "
        "number, that differ by at most the tolerance. date: the same calendar day; the notations may "
        "differ.",
    )
    tolerance: Amount = Field(0.0, description="Maximum difference between two numbers, for match numeric.")
    relative: bool = Field(
        False, description="The tolerance is a fraction of the expected number: 0.01 is 1 %."
    )
    day_first: bool = Field(False, description="Read 04/05/2026 as 4 May 2026; if false, as 5 April 2026.")
    required: bool = Field(
        True,
        description="A value that is missing in the answer counts as wrong; if false, it does not count.",
    )
    weight: Weight = 1.0

    @cached_property
    def steps(self) -> Path:
        """The parsed path."""
        return parse_place(self.path)

    def is_comparable(self, wanted: Any) -> bool:
        """Return whether an expected value is of the kind that the rule compares."""
        if self.match == "numeric":
            return _number(wanted) is not None
        return self.match == "exact" or read_date(wanted, day_first=self.day_first) is not None

    def difference(self, got: Any, wanted: Any, check: CheckTime = unlimited) -> str:
        """Return the difference as text, "" if the values agree."""
        if self.match == "exact":
            right = equal(got, wanted, 0, check)
        elif self.match == "numeric":
            mine, known = _number(got), _number(wanted)
            if mine is None or known is None:
                return f"{shown(wanted if known is None else got)} is not a number"
            right = within(mine, known, self.tolerance, relative=self.relative)
        else:
            day, known_day = (read_date(value, day_first=self.day_first) for value in (got, wanted))
            if day is None or known_day is None:
                return f"{shown(wanted if known_day is None else got)} is not a date"
            right = day == known_day
        return "" if right else f"got {shown(got)}, expected {shown(wanted)}{self._allowance}"

    @property
    def _allowance(self) -> str:
        if self.match != "numeric" or not self.tolerance:
            return ""
        return f" +- {self.tolerance:.6g}{' times the expected number' if self.relative else ''}"


def _number(value: Any) -> float | None:
    """Return the value as a number, None if it is none. A text may be a number, with commas between thousands."""
    if is_number(value):
        return _finite(value)
    if (
        isinstance(value, str)
        and len(value) <= 100
        and "_" not in value  # Python reads 1_000
        and ("," not in value or _THOUSANDS.fullmatch(value))
    ):
        text = value.replace(",", "")
        for read in (int, float):  # a long whole number is no double
            with suppress(ValueError):
                return _finite(read(text))
    return None


def _finite(number: float) -> float | None:
    return number if abs(number) < 1e308 else None


# "1,5" means 1.5 in many countries; here it is not a number.
_THOUSANDS: Final = re.compile(r"\s*[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?\s*", re.ASCII)

_MONTHS: Final = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_TIME = r"\d{1,2}(?::?\d\d){0,2}(?:[.,]\d+)?(?: ?[AP]M)?(?: ?(?:[A-Z]{1,5}|[-+]\d\d(?::?\d\d)?))?"
_YEAR_FIRST = re.compile(rf"(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}})(?:[T ]{_TIME})?", re.ASCII)
_YEAR_LAST = re.compile(r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})", re.ASCII)
_DAY_NAME = re.compile(r"(\d{1,2})[- ]([a-z]{3,9})\.?[-, ] ?(\d{4})", re.ASCII | re.IGNORECASE)
_NAME_DAY = re.compile(r"([a-z]{3,9})\.? (\d{1,2}),? (\d{4})", re.ASCII | re.IGNORECASE)


def read_date(value: object, *, day_first: bool = False) -> date | None:
    """Parse a calendar day. Returns None if the value is not a date. Time of day and zone are ignored.

    Accepts 2025-01-15 with or without a time after it, 15-JAN-2025, 15 January 2025, January 15, 2025, and 01/15/2025
    or 15.01.2025. If both numbers could be the month, `day_first` decides.
    """
    if not isinstance(value, str) or len(value) > 100:
        return None
    text = value.strip()
    try:
        if found := _YEAR_FIRST.fullmatch(text):
            year, month, day = map(int, found.groups())
        elif found := _YEAR_LAST.fullmatch(text):
            first, second, year = map(int, found.groups())
            swapped = second > 12 or (first <= 12 and not day_first)
            month, day = (first, second) if swapped else (second, first)
        elif found := _DAY_NAME.fullmatch(text):
            day, month, year = int(found[1]), _month(found[2]), int(found[3])
        elif found := _NAME_DAY.fullmatch(text):
            month, day, year = _month(found[1]), int(found[2]), int(found[3])
        else:
            return None
        return date(year, month, day)
    except ValueError:
        return None


def _month(name: str) -> int:
    """Return the number of a month by its name or the first letters of it, at least three. Raises ValueError."""
    for number, month in enumerate(_MONTHS, 1):
        if month.startswith(name.lower()):
            return number
    raise ValueError(name)


class _Compared(NamedTuple):
    """A compared field. problem: its difference as text, "" if it is right. is_comparable: as in FieldRule."""

    rule: FieldRule
    problem: str
    is_comparable: bool = True


class FieldAccuracy(Reference, type="field-accuracy", kind=ASSERTION, inline=True):
    """The fields of a JSON answer are correct.

    Each field is compared with the value at the same path of the expected data; a
    field that the expected data lacks is not compared. Score: the weight of the fields
    that are right / the weight of those compared, or 1 or 0 with aggregation
    "all". Passes when everything that has weight is right.
    """

    fields: Annotated[list[FieldRule], Field(min_length=1, max_length=_MAX_FIELDS)] = Field(
        description="Fields to compare."
    )
    aggregation: Literal["weighted", "all"] = Field(
        "weighted",
        description="The score. weighted: weight of the correct fields / weight of the compared fields. all: 1 if "
        "all are correct, else 0.",
    )

    def compare(self, ctx: EvaluatorContext, got: Any, wanted: Any) -> Result:
        """Compare field by field."""
        steps = 0

        def check() -> None:
            nonlocal steps
            steps += 1
            if steps > _MAX_STEPS:
                raise TooLarge(
                    f"the {len(self.fields)} fields hold more than {_MAX_STEPS * CHECK_EVERY} values in total, too "
                    "many to compare"
                )
            ctx.check_time()

        found = list(self._compare(got, wanted, check))
        if not found:
            return missing(self.on_missing, "None of the fields can be compared")
        checks = [
            Check(f"{one.rule.path}: {one.problem}" if one.problem else one.rule.path, not one.problem)
            for one in found
        ]
        total = sum(one.rule.weight for one in found)
        counting = found
        if self.aggregation == "weighted" and total:
            counting = [one for one in found if one.rule.weight]
            score = sum(one.rule.weight for one in found if not one.problem) / total
        else:
            score = float(all(check.met for check in checks))
        wrong = [check.text for check in checks if not check.met]
        reason = f"{len(checks) - len(wrong)} of {len(checks)} field(s) right"
        if wrong:
            reason += f"; wrong: {'; '.join(wrong[:MAX_NAMED])}"
        if len(wrong) > MAX_NAMED:
            reason += f"; and {len(wrong) - MAX_NAMED} more"
        problems = [one for one in counting if one.problem]
        if not problems:
            return passed(reason, score, checks=first_checks(checks))
        if not any(one.is_comparable for one in problems):
            return unproven(reason)
        return failed(reason, score, checks=first_checks(checks))

    def _compare(self, got: Any, wanted: Any, check: CheckTime) -> Iterator["_Compared"]:
        """Yield the fields that count as right or wrong."""
        for rule in self.fields:
            check()
            mine, known = lookup(got, rule.steps), lookup(wanted, rule.steps)
            if known is MISSING:
                continue
            if mine is not MISSING:
                yield _Compared(rule, rule.difference(mine, known, check), rule.is_comparable(known))
            elif rule.required:
                yield _Compared(rule, "missing, but required")
