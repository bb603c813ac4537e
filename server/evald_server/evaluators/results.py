"""Results and texts that several evaluators share: missing data, oversized input, quoted texts."""

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field

from evald.context import EvaluatorContext, Which
from evald.fields import MOST_WEIGHT, WEIGHTS, is_weight
from evald.result import Check, Result, errored, passed, skipped, unproven

Item = TypeVar("Item")

OnMissing = Annotated[
    Literal["fail", "pass", "skip", "error"],
    Field(description="Verdict if the data is missing; error: ERROR with code MISSING_DATA."),
]

MessageChoice = Annotated[
    Which,
    Field(
        description="Which assistant message of the turn is read. last, first: the last or first one with text. all: "
        "all with text, joined by newlines."
    ),
]


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A limit or tolerance: a finite number, 0 or more."""

Threshold = Annotated[float, Field(gt=0, le=1)]
"""The minimum score that passes. Every score would reach 0."""


def _weight(value: float) -> float:
    if not is_weight(value):
        raise ValueError(f"got {value:g}, wanted {WEIGHTS}")
    return value


Weight = Annotated[
    float, Field(ge=0, le=MOST_WEIGHT, description="Weight in the weighted mean."), AfterValidator(_weight)
]


def one_required(*keys: str) -> ConfigDict:
    """Return the model config of an evaluator whose JSON Schema requires at least one of these keys."""
    return ConfigDict(json_schema_extra={"anyOf": [{"required": [key]} for key in keys]})


MAX_NAMED: Final = 20
"""Maximum number of texts, tools or differences in a reason."""

MAX_CHECKS: Final = 100
"""Maximum number of checks in a result, and of names in its metadata."""


class UnreadableAnswer(Exception):
    """The answer can be read in several ways or in none, so that the check proves nothing.

    The evaluator fails with this reason. Where its failure could make the call pass, because it is negated, the result
    is ERROR.
    """


def no_answer(ctx: EvaluatorContext) -> Result:
    """Return the failure for a turn without an answer; the reason says what the turn has instead."""
    return unproven(ctx.missing_answer)


def missing(on_missing: OnMissing, reason: str) -> Result:
    """Return the result that the config demands for missing data. reason: names the data."""
    if on_missing == "fail":
        return unproven(reason)
    if on_missing == "skip":
        return skipped(reason)
    if on_missing == "error":
        return errored("MISSING_DATA", reason)
    return passed(reason, 1.0)


def too_large(what: str, got: int, limit: int) -> Result:
    """Return the ERROR for input that would block the server."""
    return errored(
        "INPUT_TOO_LARGE", f"{what}: got {got}, this evaluator accepts at most {limit}", limit=str(limit)
    )


def quoted(text: str) -> str:
    """Return the text in double quotes, escaped as in JSON, cut at 200 characters."""
    return json.dumps(text if len(text) <= 200 else f"{text[:200]}...", ensure_ascii=False)


def joined(items: Sequence[Item], shown: Callable[[Item], str]) -> str:
    """Return the first items and the number of the others, as text."""
    more = f", and {len(items) - MAX_NAMED:,} more" if len(items) > MAX_NAMED else ""
    return ", ".join(map(shown, items[:MAX_NAMED])) + more


def first_checks(checks: Sequence[Check]) -> Sequence[Check]:
    """Return at most MAX_CHECKS checks; if there are more, unmet ones first."""
    if len(checks) <= MAX_CHECKS:
        return checks
    return [*(c for c in checks if not c.met), *(c for c in checks if c.met)][:MAX_CHECKS]
