"""Converts an evaluator's return value or exception to its final result."""

import logging
from copy import copy
from typing import Any, Final

from evald import contract
from evald.blocks import TooMany, UnreadableContent
from evald.contract import ContractViolation
from evald.evaluator import to_result
from evald.result import Result, Verdict, errored, reaches, skipped, unproven
from evald.strict_json import TooLarge
from evald_server.evaluators.results import UnreadableAnswer
from evald_server.logs import log_incident

from .planned_evaluator import PlannedEvaluator
from .registry import Origin

_log = logging.getLogger("evald.engine")

_PASSED, _FAILED = Verdict.PASSED, Verdict.FAILED

NOT_FINAL: Final = skipped("Skipped (not final turn)")
FAIL_FAST: Final = skipped("Skipped (the call has already failed and fail_fast is set)")


def crashed(evaluator: PlannedEvaluator, problem: Exception) -> Result:
    """Return the result of an evaluator that raised: a fixed text and an incident id, which is also logged."""
    if isinstance(problem, ContractViolation):
        return _broken(evaluator, problem)
    if isinstance(problem, TooLarge):
        return errored("INPUT_TOO_LARGE", str(problem))
    if isinstance(problem, UnreadableAnswer):
        reason = str(problem)
        return unproven(reason) if evaluator.inverted is False else errored("UNREADABLE_CONTENT", reason)
    if isinstance(problem, RecursionError) and evaluator.origin is Origin.BUILT_IN:
        return errored("INPUT_TOO_LARGE", "The input is nested too deep for this evaluator")
    if isinstance(problem, UnreadableContent):  # the caller's messages, not the evaluator's fault
        return errored("UNREADABLE_CONTENT", str(problem))
    if isinstance(problem, TooMany):
        return errored("INPUT_TOO_LARGE", str(problem))
    incident = log_incident(_log, f"evaluator {evaluator.definition.type} raised", problem)
    text = f"The evaluator raised an exception {incident.note}"
    return errored("EVALUATOR_EXCEPTION", text, incident=incident.id)


def adjust(evaluator: PlannedEvaluator, result: Result) -> Result:
    """Apply the evaluator's threshold and negation. Errors and skips stay as they are."""
    verdict, score = result.verdict, result.score
    if verdict not in (_PASSED, _FAILED) or result.unproven:
        return result
    reason = result.reason
    if evaluator.threshold is not None and score is not None:
        verdict = _PASSED if reaches(score, evaluator.threshold) else _FAILED
        if verdict is not result.verdict:
            relation = "reaches" if verdict is _PASSED else "is below"
            reason = f"{reason} (score {score:.4g} {relation} the threshold {evaluator.threshold:.4g})"
    if evaluator.negate:
        verdict = _FAILED if verdict is _PASSED else _PASSED
        score = None if score is None else 1 - score
        reason = f"Negated: {reason}"
    adjusted = copy(result)
    adjusted.verdict, adjusted.score, adjusted.reason = verdict, score, reason
    adjusted.pending = result.pending and verdict is _FAILED
    adjusted.alternative = None if result.alternative is None else adjust(evaluator, result.alternative)
    return adjusted


def is_score(score: float | None) -> bool:
    """Return whether a score is valid: None or 0 to 1. NaN would be below no threshold."""
    return score is None or 0 <= score <= 1


def checked(evaluator: PlannedEvaluator, outcome: Any) -> Result:
    """Convert an evaluator's outcome to a result. Results of plugins and remotes are already validated."""
    if outcome.__class__ is Result:
        if is_score(outcome.score):
            return outcome
        return _broken(evaluator, ContractViolation(f"score: {outcome.score:g} is not between 0 and 1"))
    kind = evaluator.definition.kind
    try:
        return contract.checked(kind, to_result(kind, outcome, evaluator.definition.description))
    except ContractViolation as problem:
        return _broken(evaluator, problem)


def _broken(evaluator: PlannedEvaluator, problem: ContractViolation) -> Result:
    _log.error("evaluator %s broke the contract: %s", evaluator.definition.type, str(problem))
    return errored("CONTRACT_VIOLATION", f"The evaluator's answer breaks the contract: {problem}")
