"""Invokes evaluators that may wait: with a time limit, and in threads if they are foreign code."""

import asyncio
import inspect
import time
from collections.abc import Awaitable
from typing import Any, Final

from evald.context import EvaluatorContext, OutOfTime
from evald.foreign import EvaluatorRaised
from evald.result import Result, errored
from evald.scope import SCOPE, Scope
from evald.threads import Busy, Threads

from .planned_evaluator import PlannedEvaluator
from .postprocess import checked, crashed
from .registry import Origin

# Name of the threads that run plain evaluators after the call's slice of the event loop is used up.
_PLAIN: Final = "plain evaluators"

# Maximum number of these threads. More would slow down the event loop, because all share one interpreter. With only one,
# a call that runs until its deadline would delay all other plain evaluators.
_PLAIN_AT_ONCE: Final = 2

# A tenth of the call's time is reserved for sending the summary, but at least this.
RESERVE_SECONDS: Final = 0.05


def budget(seconds: float | None) -> float | None:
    """Return how many of a call's remaining seconds its evaluators may use."""
    if seconds is None:
        return None
    return seconds - max(RESERVE_SECONDS, seconds / 10)


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
                outcome = await _begin(evaluator, ctx, threads, pending)
    except OutOfTime:
        return _late(seconds)
    except TimeoutError as problem:
        if limit is None or not limit.expired():
            return crashed(evaluator, problem)
        return _late(seconds)
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


def _late(seconds: float | None) -> Result:
    if seconds is None:
        return errored("TIMEOUT", "No result before the call ended")
    return errored("TIMEOUT", f"No result within {seconds:.3g}s", seconds=f"{seconds:.3g}")


def discard(pending: Awaitable[Result] | None) -> None:
    """Close a coroutine that never started."""
    if inspect.iscoroutine(pending) and inspect.getcoroutinestate(pending) == "CORO_CREATED":
        pending.close()


async def _begin(
    evaluator: PlannedEvaluator, ctx: EvaluatorContext, threads: Threads, pending: Awaitable[Result] | None
) -> Any:
    """Call the evaluator and return its outcome."""
    foreign = evaluator.origin is Origin.PLUGIN
    outcome: Any
    if pending is not None:
        outcome = pending
    elif foreign and not evaluator.is_async:
        outcome = await threads.run(evaluator.definition.type, evaluator.evaluate, ctx)
    elif evaluator.inline:
        # Deferred, because the call's slice of the event loop was used up.
        outcome = await threads.run(_PLAIN, evaluator.evaluate, ctx, at_once=_PLAIN_AT_ONCE)
    else:
        outcome = evaluator.evaluate(ctx)
    if not inspect.isawaitable(outcome):
        return outcome
    return await (threads.run_async(evaluator.definition.type, outcome) if foreign else outcome)  # type: ignore[arg-type]
