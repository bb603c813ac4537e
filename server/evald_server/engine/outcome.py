"""What becomes of an evaluator's answer before it counts."""

import logging
import secrets
from typing import Any, Final

from evald.contract import violation
from evald.evaluator import ContractViolation, to_result
from evald.result import Result, Verdict, errored, skipped
from evald.strict_json import TooLarge

from .plan import Use
from .registry import Origin

_log = logging.getLogger("evald.engine")

_PASSED, _FAILED = Verdict.PASSED, Verdict.FAILED

NOT_FINAL: Final = skipped("Skipped (not final turn)")
FAIL_FAST: Final = skipped("Skipped (the call has failed already and fail_fast is on)")


def crashed(use: Use, problem: BaseException) -> Result:
    """The result of an evaluator that raised: fixed text, and an incident id that is also in the log."""
    if isinstance(problem, TooLarge):
        return errored("INPUT_TOO_LARGE", str(problem))
    if isinstance(problem, RecursionError) and use.origin is Origin.BUILT_IN:
        return errored("INPUT_TOO_LARGE", "The input is nested too deep for this evaluator")
    incident = secrets.token_hex(6)
    _log.error(
        "evaluator %s raised, incident %s: Evaluator error: %s",
        use.definition.type,
        incident,
        problem,
        exc_info=problem,
    )
    if isinstance(problem, ContractViolation):
        return errored("CONTRACT_VIOLATION", f"The evaluator's answer breaks the contract: {problem}")
    return errored(
        "EVALUATOR_EXCEPTION",
        f"The evaluator raised an exception (incident {incident}; the server's log has the details)",
        incident=incident,
    )


def adjust(use: Use, result: Result) -> Result:
    """The result under the use's own threshold and negation. Errors and skips stay as they are."""
    verdict, score = result.verdict, result.score
    if verdict not in (_PASSED, _FAILED) or result.unproven:
        return result
    reason, pending = result.reason, result.pending
    if use.threshold is not None and score is not None:
        verdict = _PASSED if score >= use.threshold else _FAILED
        if verdict is not result.verdict:
            relation = "reaches" if verdict is _PASSED else "is below"
            reason = f"{reason} (score {score:.4g} {relation} the threshold {use.threshold:.4g})"
    if use.negate:
        verdict = _FAILED if verdict is _PASSED else _PASSED
        score = None if score is None else 1 - score
        reason, pending = f"Negated: {reason}", False
    return Result(
        verdict,
        reason,
        score,
        result.value,
        result.metadata,
        result.checks,
        pending and verdict is _FAILED,
        None,
        result.token_usage,
        result.cost_usd,
        result.raw_request,
        cached=result.cached,
        instance_id=result.instance_id,
    )


def checked(use: Use, outcome: Any) -> Result:
    """The outcome of foreign code as a result that holds to the contract."""
    if use.trusted and outcome.__class__ is Result:
        return outcome
    try:
        result = to_result(use.definition.kind, outcome, use.definition.description)
        problem = violation(use.definition.kind, result)
    except Exception as error:  # noqa: BLE001 - foreign data
        problem = str(error)
    if problem is None:
        return result
    _log.error("evaluator %s broke the contract: %s", use.definition.type, problem)
    return errored("CONTRACT_VIOLATION", f"The evaluator's answer breaks the contract: {problem}")
