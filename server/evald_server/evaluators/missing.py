"""What a built-in evaluator says when the context lacks what it looks at."""

from typing import Literal

from evald.context import EvaluatorContext
from evald.result import Result, errored, passed, skipped, unproven

OnMissing = Literal["fail", "pass", "skip", "error"]
"""Verdict of an assertion whose data is missing. "error" gives ERROR with code MISSING_DATA."""


def nothing_said(ctx: EvaluatorContext) -> Result:
    """The failure of an assertion about the answer of a turn that has none. It says what was there instead."""
    return unproven(ctx.missing_answer)


def missing(on_missing: OnMissing, reason: str) -> Result:
    """The verdict that the config asks for when data is missing. `reason` names the data."""
    if on_missing == "fail":
        return unproven(reason)
    if on_missing == "skip":
        return skipped(reason)
    if on_missing == "error":
        return errored("MISSING_DATA", reason)
    return passed(reason, 1.0)
