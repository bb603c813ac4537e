"""Convert an evaluator's return value or exception to the output of a task."""

import logging
import secrets
from typing import Any

from ..contract import ContractViolation, cut
from ..errorcodes import CODES
from ..evaluator import EvaluatorDefinition
from ..foreign import EvaluatorRaised, raised_by
from ..plugin.v1 import task_pb2
from ..result import Result, errored
from ..strict_json import TooLarge
from ..structs import dict_to_struct

_log = logging.getLogger("evald.worker")


def output_of(definition: EvaluatorDefinition, outcome: Any) -> task_pb2.EvaluationOutput:
    """Convert the return value of a guarded evaluator."""
    if type(outcome) is Result:
        return _to_pb(outcome)
    return broken(definition, f"got {type(outcome).__name__}, wanted a Result")


def broken(definition: EvaluatorDefinition, problem: object) -> task_pb2.EvaluationOutput:
    """Return the output for a return value that breaks the contract, and log it."""
    _log.error("evaluator %s broke the contract: %s", definition.type, problem)
    return error_output("CONTRACT_VIOLATION", f"The evaluator's answer breaks the contract: {problem}")


def crashed(definition: EvaluatorDefinition, problem: Exception) -> task_pb2.EvaluationOutput:
    """Return the output for an exception. For an unexpected one: a fixed text with an incident id, also in the log."""
    if isinstance(problem, ContractViolation):
        return broken(definition, problem)
    if isinstance(problem, TooLarge):
        return error_output("INPUT_TOO_LARGE", str(problem))
    incident = secrets.token_hex(6)
    raised = problem if isinstance(problem, EvaluatorRaised) else raised_by(problem)
    _log.error(
        "evaluator %s raised, incident %s: Evaluator error: %s\n%s",
        definition.type,
        incident,
        raised,
        raised.trace,
    )
    return error_output(
        "EVALUATOR_EXCEPTION",
        f"The evaluator raised an exception (incident {incident}; the plugin's log has the details)",
        incident=incident,
    )


def error_output(code: str, message: str, **details: str) -> task_pb2.EvaluationOutput:
    """Return an output with the verdict ERROR. code: one of `errorcodes.CODES`."""
    return _to_pb(errored(code, message, **details))


def _to_pb(result: Result) -> task_pb2.EvaluationOutput:
    pb = task_pb2.EvaluationOutput(
        verdict=int(result.verdict),  # type: ignore[arg-type]
        value=result.value,
        reason=cut(result.reason),
        score=result.score,
        pending=result.pending,
        unproven=result.unproven,
    )
    if result.metadata:
        dict_to_struct(result.metadata, pb.metadata)
    for check in result.checks:
        pb.checks.add(text=check.text, met=check.met, evidence=check.evidence)
    if result.token_usage is not None:
        for name in ("input_tokens", "output_tokens", "total_tokens"):
            count = getattr(result.token_usage, name)
            if count is not None:
                setattr(pb.token_usage, name, count)
    if result.cost_usd is not None:
        pb.cost.currency_code, pb.cost.amount = "USD", result.cost_usd
    if result.error is not None:
        info = CODES[result.error.code]
        pb.error.code, pb.error.retryable = result.error.code, info.retryable
        pb.error.category = int(info.category)  # type: ignore[assignment]
        pb.error.message = cut(result.error.message)
        for key, value in result.error.details.items():
            pb.error.metadata[key] = value
    return pb
