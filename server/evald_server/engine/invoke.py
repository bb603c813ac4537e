"""Calls one evaluator and makes its result: with a time limit, in a thread if it is foreign code, and whatever it returns
or raises."""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable
from copy import copy
from typing import Any, Final

from evald import contract
from evald.blocks import TooMany, UnreadableContent
from evald.context import EvaluatorContext, OutOfTime
from evald.contract import ContractViolation
from evald.evaluator import to_result
from evald.foreign import EvaluatorRaised
from evald.result import Result, Verdict, errored, reaches, skipped, unproven
from evald.scope import SCOPE, Scope
from evald.strict_json import TooLarge
from evald.threads import Busy, Threads
from evald_server.evaluators.results import UnreadableAnswer
from evald_server.logs import log_incident

from .planned_evaluator import PlannedEvaluator
from .registry import Origin

# Name of the threads that run plain evaluators after the call's slice of the event loop is used up.
_PLAIN: Final = "plain evaluators"

# Maximum number of these threads. More would slow down the event loop, because all share one interpreter. With only one,
# a call that runs until its deadline would delay all other plain evaluators.
_PLAIN_AT_ONCE: Final = 2

# A tenth of the call's time is reserved for sending the summary, but at least this.
RESERVE_SECONDS: Final = 0.05

NOT_FINAL: Final = skipped("Skipped (not final turn)")
FAIL_FAST: Final = skipped("Skipped (the call has already failed and fail_fast is set)")

_PASSED, _FAILED = Verdict.PASSED, Verdict.FAILED

_log = logging.getLogger("evald.engine")


def budget(seconds: float | None) -> float | None:
    """Return how many of a call's remaining seconds its evaluators may use."""
    return None if seconds is None else seconds - max(RESERVE_SECONDS, seconds / 10)


async def invoke(
    evaluator: PlannedEvaluator,
    ctx: EvaluatorContext,
    threads: Threads,
    seconds: float | None,
    scope: Scope,
    pending: Awaitable[Result] | None = None,
) -> Result:
    """Invoke one evaluator with a time limit and return its result. Raises only CancelledError.

    scope: of the call; the evaluator gets it with the deadline. pending: the awaitable that the evaluator's function
    returned, if it was already called.
    """
    if evaluator.timeout is not None and (seconds is None or evaluator.timeout < seconds):
        seconds = evaluator.timeout
    if seconds is not None:
        if seconds <= 0:
            discard(pending)
            return errored("TIMEOUT", "No time was left to run the evaluator")
        scope = scope.until(time.monotonic() + seconds)
    outer = SCOPE.set(scope)
    limit: asyncio.Timeout | None = None
    try:
        if evaluator.origin is Origin.REMOTE:
            # The remote enforces the deadline itself, so that its error can name the late instance.
            outcome = await evaluator.evaluate(ctx)  # type: ignore[misc]
        else:
            async with asyncio.timeout(seconds) as limit:
                outcome = await _call(evaluator, ctx, threads, pending)
    except OutOfTime:
        return _late(seconds)
    except TimeoutError as problem:
        return _late(seconds) if limit is not None and limit.expired() else crashed(evaluator, problem)
    except asyncio.CancelledError:
        # A cancellation by the evaluator itself is a crash; one by the caller is not.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return crashed(evaluator, EvaluatorRaised("the evaluator cancelled itself"))
    except Busy as problem:
        return errored("EVALUATOR_BUSY", str(problem))
    except Exception as problem:  # noqa: BLE001 - foreign code, which is guarded
        return crashed(evaluator, problem)
    finally:
        SCOPE.reset(outer)
    return checked(evaluator, outcome)


async def _call(
    evaluator: PlannedEvaluator, ctx: EvaluatorContext, threads: Threads, pending: Awaitable[Result] | None
) -> Any:
    foreign, name = evaluator.origin is Origin.PLUGIN, evaluator.definition.type
    outcome: Any = pending
    if outcome is None:
        if foreign and not evaluator.is_async:
            outcome = await threads.run(name, evaluator.evaluate, ctx)
        elif evaluator.inline:
            # Deferred, because the call's slice of the event loop was used up.
            outcome = await threads.run(_PLAIN, evaluator.evaluate, ctx, at_once=_PLAIN_AT_ONCE)
        else:
            outcome = evaluator.evaluate(ctx)
    if not inspect.isawaitable(outcome):
        return outcome
    return await (threads.run_async(name, outcome) if foreign else outcome)  # type: ignore[arg-type]


def _late(seconds: float | None) -> Result:
    if seconds is None:
        return errored("TIMEOUT", "No result before the call ended")
    return errored("TIMEOUT", f"No result within {seconds:.3g}s", seconds=f"{seconds:.3g}")


def discard(pending: Awaitable[Result] | None) -> None:
    """Close a coroutine that never started."""
    if inspect.iscoroutine(pending) and inspect.getcoroutinestate(pending) == "CORO_CREATED":
        pending.close()


def crashed(evaluator: PlannedEvaluator, problem: Exception) -> Result:
    """Return the result of an evaluator that raised: a fixed text and an incident id, which is also logged."""
    match problem:
        case ContractViolation():
            return _broken(evaluator, problem)
        case TooLarge() | TooMany():
            return errored("INPUT_TOO_LARGE", str(problem))
        case RecursionError() if evaluator.origin is Origin.BUILT_IN:
            return errored("INPUT_TOO_LARGE", "The input is nested too deep for this evaluator")
        case UnreadableAnswer() if evaluator.inverted is False:
            return unproven(str(problem))
        case UnreadableAnswer() | UnreadableContent():  # the fault of the caller's messages
            return errored("UNREADABLE_CONTENT", str(problem))
    incident = log_incident(_log, f"evaluator {evaluator.definition.type} raised", problem)
    text = f"The evaluator raised an exception {incident.note}"
    return errored("EVALUATOR_EXCEPTION", text, incident=incident.id)


def checked(evaluator: PlannedEvaluator, outcome: Any) -> Result:
    """Convert an evaluator's outcome to a result. Results of plugins and remotes are already validated."""
    if outcome.__class__ is Result:
        # Also false for NaN, which would be below no threshold.
        if outcome.score is None or 0 <= outcome.score <= 1:
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


def adjust(evaluator: PlannedEvaluator, result: Result) -> Result:
    """Apply the evaluator's threshold and negation. Errors and skips stay as they are."""
    verdict, score, reason = result.verdict, result.score, result.reason
    if verdict not in (_PASSED, _FAILED) or result.unproven:
        return result
    if evaluator.threshold is not None and score is not None:
        verdict = _PASSED if reaches(score, evaluator.threshold) else _FAILED
        if verdict is not result.verdict:
            relation = "reaches" if verdict is _PASSED else "is below"
            reason = f"{reason} (score {score:.4g} {relation} the threshold {evaluator.threshold:.4g})"
    if evaluator.negate:
        verdict = _FAILED if verdict is _PASSED else _PASSED
        score = None if score is None else 1 - score
        reason = f"Negated: {reason}"
    adjusted = copy(result)  # evaluators may share results
    adjusted.verdict, adjusted.score, adjusted.reason = verdict, score, reason
    adjusted.pending = result.pending and verdict is _FAILED
    adjusted.alternative = None if result.alternative is None else adjust(evaluator, result.alternative)
    return adjusted
