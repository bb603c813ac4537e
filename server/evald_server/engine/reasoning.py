"""What an evaluator reads of answers that begin with the model's reasoning.

An evaluator reads the answer. One that checks for absence reads the answer and the whole text, and counts what it
finds in either: a secret in the reasoning has leaked too. Lengths and judges read the answer only, negated or not.
"""

import inspect
from collections.abc import Callable
from copy import copy
from typing import Any, Final

from evald.context import EvaluatorContext
from evald.evaluator import Evaluate
from evald.result import Result, Verdict, reaches

from .invoke import checked
from .planned_evaluator import PlannedEvaluator

# They measure or judge the answer; a text that contains more is not a leak.
_OF_THE_ANSWER: Final = frozenset(("length-within", "llm-judge"))


def keeping_reasoning(evaluate: Evaluate) -> Evaluate:
    """Return the function that evaluates the whole text."""
    return lambda ctx: evaluate(ctx.with_reasoning())


def finding_leaks(planned: PlannedEvaluator, *, forbids: bool) -> Evaluate:
    """Return the evaluator's function, which also reads the whole text if it checks for absence.

    Within a formula, whose direction is unknown, its result is the answer's, with that of the whole text as its
    alternative.

    forbids: whether the evaluator itself passes when it finds nothing.
    """
    evaluate, as_alternative = planned.evaluate, planned.inverted is None
    if planned.is_metric or planned.definition.type in _OF_THE_ANSWER or planned.inverted is forbids:
        return evaluate

    def finds(result: Result) -> tuple[bool, float]:
        """Return whether the result says that the searched text is there, and how much of it."""
        passes, score = _standing(result, planned.threshold)
        return (not passes, 1 - score) if forbids else (passes, score)

    def combine(answer: Result, whole: Result) -> Result:
        if _is_decided(whole) and finds(whole) <= finds(answer):
            return answer
        whole = copy(whole)  # evaluators share results
        whole.reason += " (in the text with its reasoning)"
        if not as_alternative:
            return whole
        answer = copy(answer)
        answer.alternative = whole
        return answer

    def evaluate_both(ctx: EvaluatorContext) -> Any:
        """Evaluate the answer, and the whole text if it differs and the answer does not decide."""
        whole = ctx.with_reasoning()
        if whole is ctx:
            return evaluate(ctx)

        def go_on(outcome: Any) -> Any:
            answer = checked(planned, outcome)
            if not _is_decided(answer) or (finds(answer)[0] and not as_alternative):
                return answer
            return _then(evaluate(whole), lambda other: combine(answer, checked(planned, other)))

        return _then(evaluate(ctx), go_on)

    return evaluate_both


def _then(outcome: Any, go_on: Callable[[Any], Any]) -> Any:
    """Return what a function makes of an outcome, which may be awaitable; then so is what this returns."""

    async def later() -> Any:
        result = go_on(await outcome)
        return await result if inspect.isawaitable(result) else result

    return later() if inspect.isawaitable(outcome) else go_on(outcome)


def _is_decided(result: Result) -> bool:
    return result.verdict in (Verdict.PASSED, Verdict.FAILED) and not result.unproven


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
