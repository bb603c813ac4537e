"""What an evaluator reads of answers that begin with the model's reasoning.

An evaluator reads the answer. One that checks for absence reads the answer and the whole text, and counts what it
finds in either: a secret in the reasoning has leaked too. Lengths and judges read the answer only, negated or not.
"""

import inspect
from collections.abc import Awaitable
from copy import copy
from typing import Any, Final

from evald.context import EvaluatorContext
from evald.evaluator import Evaluate
from evald.result import Result, Verdict, reaches

from .planned_evaluator import PlannedEvaluator
from .postprocess import checked

# They measure or judge the answer; a text that contains more is not a leak.
_OF_THE_ANSWER: Final = frozenset(("length-within", "llm-judge"))

_DECIDED: Final = (Verdict.PASSED, Verdict.FAILED)


def keeping_reasoning(evaluate: Evaluate) -> Evaluate:
    """Return the function that evaluates the whole text."""

    def evaluate_whole(ctx: EvaluatorContext) -> Any:
        return evaluate(ctx.with_reasoning())

    return evaluate_whole


def finding_leaks(planned: PlannedEvaluator, *, inverted: bool | None, forbids: bool) -> Evaluate:
    """Return the evaluator's function, which also reads the whole text if it checks for absence.

    inverted: whether a high score counts against the call; None for unknown, within a formula. forbids: whether the
    evaluator itself passes when it finds nothing.
    """
    if planned.is_metric or planned.definition.type in _OF_THE_ANSWER or inverted is forbids:
        return planned.evaluate
    return _Both(planned, only_alternative=inverted is None, forbids=forbids).evaluate


class _Both:
    """An evaluator on the answer and on the whole text.

    only_alternative: the result is the answer's, with that of the whole text as its alternative.
    """

    def __init__(self, planned: PlannedEvaluator, *, only_alternative: bool, forbids: bool) -> None:
        self._planned = planned
        self._evaluate = planned.evaluate
        self._only_alternative = only_alternative
        self._forbids = forbids

    def evaluate(self, ctx: EvaluatorContext) -> Any:
        """Evaluate the answer, and the whole text if it differs and the answer does not decide."""
        whole = ctx.with_reasoning()
        outcome = self._evaluate(ctx)
        if whole is ctx:
            return outcome
        return self._later(outcome, whole) if inspect.isawaitable(outcome) else self._go_on(outcome, whole)

    async def _later(self, outcome: Awaitable[Any], whole: EvaluatorContext) -> Result:
        found = self._go_on(await outcome, whole)
        result: Result = await found if inspect.isawaitable(found) else found
        return result

    def _go_on(self, outcome: Any, whole: EvaluatorContext) -> Any:
        answer = checked(self._planned, outcome)
        if not _is_decided(answer) or (self._finds(answer)[0] and not self._only_alternative):
            return answer
        other = self._evaluate(whole)
        return self._finish(answer, other) if inspect.isawaitable(other) else self._combined(answer, other)

    async def _finish(self, answer: Result, other: Awaitable[Any]) -> Result:
        return self._combined(answer, await other)

    def _combined(self, answer: Result, outcome: Any) -> Result:
        whole = checked(self._planned, outcome)
        if _is_decided(whole) and self._finds(whole) <= self._finds(answer):
            return answer
        whole = copy(whole)  # evaluators share results
        whole.reason += " (in the text with its reasoning)"
        if not self._only_alternative:
            return whole
        answer = copy(answer)
        answer.alternative = whole
        return answer

    def _finds(self, result: Result) -> tuple[bool, float]:
        """Return whether the result says that the searched text is there, and how much of it."""
        passes, score = _standing(result, self._planned.threshold)
        return (not passes, 1 - score) if self._forbids else (passes, score)


def _is_decided(result: Result) -> bool:
    return result.verdict in _DECIDED and not result.unproven


def _standing(result: Result, threshold: float | None = None) -> tuple[bool, float]:
    """Return whether a result passes, and its score."""
    passes = result.verdict is Verdict.PASSED
    score = float(passes) if result.score is None else result.score
    if threshold is not None and result.score is not None:
        passes = reaches(score, threshold)
    return passes, score


def is_worse(result: Result, other: Result, *, inverted: bool) -> bool:
    """Return whether a result is worse for the call than another. inverted: whether passing counts against it."""
    if not _is_decided(result) or not _is_decided(other):
        return _is_decided(other)
    a, b = _standing(result), _standing(other)
    return a > b if inverted else a < b
