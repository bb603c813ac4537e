"""One field of a record against the same field of another: equal, near enough, or the same day."""

import re
from datetime import date
from functools import cached_property
from math import isfinite
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from evald.evaluator import Evaluator

from .values import Check, Path, PathText, equal, is_number, parse_path, shown, unlimited, within


class FieldRule(BaseModel):
    """One field of `field-accuracy`."""

    model_config = Evaluator.model_config

    path: PathText = Field(description='Where the value is: "invoice.items[0].price".')
    match: Literal["exact", "numeric", "date"] = Field(
        "exact",
        description="exact: equal JSON. numeric: numbers, also written as text, within the tolerance. "
        "date: the same calendar day, however it is written.",
    )
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    relative: bool = Field(False, description="The tolerance is a part of the expected number.")
    day_first: bool = Field(False, description="04/05/2026 is the fourth of May, not the fifth of April.")
    required: bool = Field(
        True, description="A value missing in the answer counts as wrong, else as not there."
    )
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0

    @cached_property
    def steps(self) -> Path:
        """The path, read."""
        return parse_path(self.path)

    def agrees(self, got: Any, wanted: Any, check: Check = unlimited) -> str:
        """What is wrong, "" when nothing is."""
        if self.match == "exact":
            right = equal(got, wanted, 0, check)
        elif self.match == "numeric":
            mine, known = _number(got), _number(wanted)
            if mine is None or known is None:
                return f"{shown(wanted if known is None else got)} is not a number"
            right = within(mine, known, self.tolerance, relative=self.relative) or mine == known
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
        return f" +- {self.tolerance:.6g}{' of it' if self.relative else ''}"


def _number(value: Any) -> float | None:
    """A number, or a text that is one but for thousands separators; None for others."""
    if is_number(value):
        return float(value) if abs(value) < 1e308 else None
    if isinstance(value, str) and len(value) <= 100:
        try:
            number = float(value.replace(",", ""))
        except ValueError:
            return None
        return number if isfinite(number) else None
    return None


_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_YEAR_FIRST = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ].*)?", re.ASCII)
_YEAR_LAST = re.compile(r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})", re.ASCII)
_DAY_NAME = re.compile(r"(\d{1,2})[- ]([a-z]{3,9})\.?[-, ] ?(\d{4})", re.ASCII | re.IGNORECASE)
_NAME_DAY = re.compile(r"([a-z]{3,9})\.? (\d{1,2}),? (\d{4})", re.ASCII | re.IGNORECASE)


def read_date(value: object, *, day_first: bool = False) -> date | None:
    """The calendar day that a text names; None when it names none. The time of day and its zone are left out.

    Reads 2025-01-15 with or without a time behind it, 15-JAN-2025, 15 January
    2025, January 15, 2025, and 01/15/2025 or 15.01.2025: where both numbers
    could be the month, `day_first` decides.
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
            day, month, year = int(found[1]), _MONTHS.index(found[2][:3].lower()) + 1, int(found[3])
        elif found := _NAME_DAY.fullmatch(text):
            month, day, year = _MONTHS.index(found[1][:3].lower()) + 1, int(found[2]), int(found[3])
        else:
            return None
        return date(year, month, day)
    except ValueError:
        return None
