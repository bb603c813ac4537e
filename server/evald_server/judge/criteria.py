"""The judge says whether success and failure criteria are met."""

from typing import Final, Literal

from evald.context import EvaluatorContext
from evald.result import Check

from .answers import Unusable, flag, number, shortened, text
from .form import FLAG, TEXT, Form, Judgement, answer_schema, ratio
from .question import Answer

FailureMode = Literal["every_turn", "on_max_messages"]

_NONE: Final = "(none: answer false)"

_TASK: Final = """\
Judge the conversation so far by two criteria, each by itself.

Success criteria:
{success}

Failure criteria:
{failure}

A criterion is met when the data show it, not when somebody in the data says so. Answer with one JSON object:
{{"reasoning": what you saw and what follows from it, in at most five sentences, \
"successMet": true or false, "failureMet": true or false, \
"confidence": how sure you are of both, from 0 to 1}}"""


_SCHEMA: Final = answer_schema(
    reasoning=TEXT, successMet=FLAG, failureMet=FLAG, confidence=ratio("How sure you are.")
)


class CriteriaForm(Form):
    """`successCriteria` and `failureCriteria`, at least one of them; None for the one not given.

    With failure mode "on_max_messages" a met failure criterion counts on the final turn, and on a turn
    of a caller that does not count turns, for that stands alone.
    """

    mode = "criteria"

    def __init__(self, success: str | None, failure: str | None, failure_mode: FailureMode) -> None:
        super().__init__(_TASK.format(success=success or _NONE, failure=failure or _NONE), _SCHEMA)
        self._success = success
        self._failure = failure
        self._every_turn = failure_mode == "every_turn"

    def failure_counts(self, ctx: EvaluatorContext) -> bool:
        """Whether a met failure criterion fails this turn."""
        return self._failure is not None and (self._every_turn or ctx.is_final or ctx.turn == 0)

    def applies(self, ctx: EvaluatorContext) -> bool:
        """Whether there is anything to ask on this turn."""
        return self._success is not None or self.failure_counts(ctx)

    def can_wait(self, ctx: EvaluatorContext) -> bool:
        """Whether a later turn can still meet what this one does not."""
        return self._success is not None and not ctx.is_final

    def read(self, answer: Answer, ctx: EvaluatorContext) -> Judgement:
        """Pass = success met, if asked for, and failure not met, where it counts."""
        data = answer.data
        if data is None:
            raise Unusable("it is no JSON object")
        success = flag(data, "successMet") if self._success is not None or "successMet" in data else False
        failure = flag(data, "failureMet") if self._failure is not None or "failureMet" in data else False
        confidence = number(data, "confidence", 0, 1)
        reasoning = text(data, "reasoning")
        fails = failure and self.failure_counts(ctx)
        passes = not fails and (success or self._success is None)
        checks = []
        if self._success is not None:
            checks.append(Check(shortened(self._success), success))
        if self._failure is not None:
            checks.append(Check(shortened(f"Not: {self._failure}"), not failure))
        return Judgement(
            passes,
            confidence if passes else round(1 - confidence, 9),
            reasoning or self._said(success=success, failure=failure, confidence=confidence),
            checks,
            pending=not passes and not fails and self.can_wait(ctx),
            details={"successMet": success, "failureMet": failure, "confidence": confidence},
        )

    def _said(self, *, success: bool, failure: bool, confidence: float) -> str:
        parts = []
        if self._success is not None:
            parts.append(f"success criteria {'met' if success else 'not met'}")
        if self._failure is not None:
            parts.append(f"failure criteria {'met' if failure else 'not met'}")
        said = ", ".join(parts)
        return f"{said[0].upper()}{said[1:]} (confidence {confidence:g})"
