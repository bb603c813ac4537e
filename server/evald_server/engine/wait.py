"""Calls of evaluators that may wait: with a time limit, and in threads where they are foreign."""

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

from .outcome import checked, crashed
from .plan import Use
from .registry import Origin

# Names the threads in which plain evaluators go on after their slice of the event loop.
_PLAIN: Final = "plain evaluators"

# More would not be done sooner, because they share one interpreter with the event loop, and would only slow
# that down; with one, a call that goes on for its whole deadline would hold up all others of its kind.
_PLAIN_AT_ONCE: Final = 2

# What of the call's time is kept back to send the summary: a tenth, but not less than this.
RESERVE_SECONDS: Final = 0.05


def budget(seconds: float | None) -> float | None:
    """What evaluators may use of the time that a call has left."""
    if seconds is None:
        return None
    return seconds - max(RESERVE_SECONDS, seconds / 10)


async def call(
    use: Use,
    ctx: EvaluatorContext,
    threads: Threads,
    seconds: float | None,
    scope: Scope,
    pending: Awaitable[Result] | None = None,
) -> Result:
    """The result of one use that may wait, within so many seconds. Never raises but when cancelled.

    scope: of the call; with the deadline, it is what the use's function is told.
    """
    if use.timeout is not None and (seconds is None or use.timeout < seconds):
        seconds = use.timeout
    if seconds is not None:
        if seconds <= 0:
            discard(pending)
            return errored("TIMEOUT", "No time was left to run the evaluator")
        scope = scope.until(time.monotonic() + seconds)
    outer = SCOPE.set(scope)
    limit: asyncio.Timeout | None = None
    try:
        if use.origin is Origin.REMOTE:
            # It keeps to its deadline by itself, and then knows which instance was late.
            outcome = await use.evaluate(ctx)  # type: ignore[misc]
        else:
            async with asyncio.timeout(seconds) as limit:
                outcome = await _begin(use, ctx, threads, pending)
    except OutOfTime:
        return _late(seconds)
    except TimeoutError as problem:
        if limit is None or not limit.expired():
            return crashed(use, problem)
        return _late(seconds)
    except asyncio.CancelledError:
        # Foreign code that cancels itself is a crash; a caller that went away is not.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return crashed(use, EvaluatorRaised("the evaluator cancelled itself"))
    except Busy:
        return errored("EVALUATOR_BUSY", "Earlier calls of this evaluator are stuck in all of its threads")
    except Exception as problem:  # noqa: BLE001 - foreign code, which is guarded
        return crashed(use, problem)
    finally:
        SCOPE.reset(outer)
    return checked(use, outcome)


def _late(seconds: float | None) -> Result:
    if seconds is None:
        return errored("TIMEOUT", "No result before the call was over")
    return errored("TIMEOUT", f"No result within {seconds:.3g}s", seconds=f"{seconds:.3g}")


def discard(pending: Awaitable[Result] | None) -> None:
    """Close a coroutine that was made and never begun."""
    if inspect.iscoroutine(pending) and inspect.getcoroutinestate(pending) == "CORO_CREATED":
        pending.close()


async def _begin(use: Use, ctx: EvaluatorContext, threads: Threads, pending: Awaitable[Result] | None) -> Any:
    """The outcome. pending: what the use's function has returned, where it was called already."""
    foreign = use.origin is Origin.PLUGIN
    outcome: Any
    if pending is not None:
        outcome = pending
    elif foreign and not use.is_async:
        outcome = await threads.run(use.definition.type, use.evaluate, ctx)
    elif use.inline:
        # It was not done when the call's slice of the event loop was used up.
        outcome = await threads.run(_PLAIN, use.evaluate, ctx, at_once=_PLAIN_AT_ONCE)
    else:
        outcome = use.evaluate(ctx)
    if not inspect.isawaitable(outcome):
        return outcome
    return await (threads.run_async(use.definition.type, outcome) if foreign else outcome)  # type: ignore[arg-type]
