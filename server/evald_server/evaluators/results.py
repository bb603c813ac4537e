"""Results and wordings that several evaluators share: missing data, input that is too large, quoted texts."""

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, Field

from evald.context import EvaluatorContext
from evald.fields import MOST_WEIGHT, WEIGHTS, is_weight
from evald.result import Check, Result, errored, passed, skipped, unproven

Item = TypeVar("Item")

OnMissing = Literal["fail", "pass", "skip", "error"]
"""Verdict of an assertion whose data is missing. "error" gives ERROR with code MISSING_DATA."""


def _weight(value: float) -> float:
    if not is_weight(value):
        raise ValueError(f"wanted {WEIGHTS}, got {value:g}")
    return value


Weight = Annotated[float, Field(ge=0, le=MOST_WEIGHT), AfterValidator(_weight)]
"""Share in a weighted mean."""

MAX_NAMED: Final = 20
"""Most texts, tools or differences that a reason names."""

MAX_CHECKS: Final = 100
"""Most checks of a result, and most names in its metadata."""


def no_answer(ctx: EvaluatorContext) -> Result:
    """Return the failure of an assertion about the answer of a turn that has none, with what was there instead."""
    return unproven(ctx.missing_answer)


def missing(on_missing: OnMissing, reason: str) -> Result:
    """Return the verdict that the config asks for when data is missing. `reason` names the data."""
    if on_missing == "fail":
        return unproven(reason)
    if on_missing == "skip":
        return skipped(reason)
    if on_missing == "error":
        return errored("MISSING_DATA", reason)
    return passed(reason, 1.0)


def too_large(what: str, got: int, limit: int) -> Result:
    """Return the ERROR of an evaluator that would hold up the server."""
    return errored(
        "INPUT_TOO_LARGE", f"{what}: got {got}, this evaluator takes at most {limit}", limit=str(limit)
    )


def cut(text: str, limit: int = 100) -> str:
    """Return the text, cut to so many characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def quoted(text: str) -> str:
    """Return the text in double quotes, escaped as in JSON, cut at 200 characters."""
    return json.dumps(text if len(text) <= 200 else f"{text[:200]}...", ensure_ascii=False)


def joined(items: Sequence[Item], shown: Callable[[Item], str]) -> str:
    """Return the first items as text, and how many more there are."""
    more = f", and {len(items) - MAX_NAMED:,} more" if len(items) > MAX_NAMED else ""
    return ", ".join(map(shown, items[:MAX_NAMED])) + more


def first_checks(checks: Sequence[Check]) -> Sequence[Check]:
    """Return all checks; of more than MAX_CHECKS so many, those that are not met first."""
    if len(checks) <= MAX_CHECKS:
        return checks
    return [*(c for c in checks if not c.met), *(c for c in checks if c.met)][:MAX_CHECKS]
