"""Admission of pending evaluations: slots, a queue, and deadlines."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from evald.scope import Scope
from evald_server.call_errors import CallError
from evald_server.engine.invoke import RESERVE_SECONDS, budget
from evald_server.engine.plan import Plan
from evald_server.engine.run import EvaluationRun

from .server import Context

# Source: https://www.w3.org/TR/trace-context/.
_TRACE_HEADERS: Final = frozenset(("traceparent", "tracestate", "baggage"))


def scope_of(context: Context, evaluation_id: str) -> Scope:
    """Return the id and the trace headers of a call for its pending evaluators."""
    headers = {
        key: value
        for key, value in context.invocation_metadata() or ()
        if key in _TRACE_HEADERS and isinstance(value, str)
    }
    return Scope(evaluation_id=evaluation_id, trace_context=headers)


def check_deadline(plan: Plan, seconds: float | None) -> None:
    """Raise CallError if a call has too little time left. seconds: until its deadline; None: no deadline."""
    if seconds is None:
        return
    if seconds <= 0:
        raise CallError(
            "DEADLINE_TOO_SHORT", "the call's deadline had passed before the call began; set a later deadline"
        )
    if plan.waits and seconds <= RESERVE_SECONDS:
        raise _too_short(seconds)


class Admission:
    """A limited number of slots with a limited queue, first come, first served.

    An evaluation without waiting evaluators needs no slot: it ends before the next one begins.

    slots: maximum concurrent waiting evaluations. queue: maximum evaluations in the queue. queue_seconds: maximum
    time in the queue. concurrency: maximum concurrent waiting evaluators of one evaluation.
    default_timeout: seconds for calls without a deadline. max_timeout: maximum seconds for all calls.

    inflight: number of evaluations in a slot. queued: number of those in the queue.
    """

    def __init__(
        self,
        slots: int,
        queue: int,
        queue_seconds: float,
        *,
        concurrency: int = 16,
        default_timeout: float = 60.0,
        max_timeout: float = 60.0,
    ) -> None:
        self.inflight = self.queued = 0
        self._patient = 0  # those in the queue without a time limit
        self._most = slots
        self._slots = asyncio.Semaphore(slots)
        self._queue = queue
        self._queue_seconds = queue_seconds
        self._concurrency = concurrency
        self._default_timeout = default_timeout
        self._max_timeout = max_timeout

    async def run_pending(
        self,
        run: EvaluationRun,
        scope: Scope,
        time_remaining: Callable[[], float | None] | None = None,
    ) -> AsyncGenerator[list[int]]:
        """Acquire a slot and run the pending evaluators of a run. Yields as `EvaluationRun.run_pending` does.

        time_remaining: returns the seconds until the call's deadline, None without one; called once, at the start.
        If omitted, the run queues without a limit, and that time does not count against the time limit. Use this
        for items of batches and for turns of sessions and runs: it slows down their senders.
        Raises CallError if there is no time or no slot.
        """
        patient = time_remaining is None
        seconds = None if time_remaining is None else time_remaining()
        left = self.seconds_for(run.plan, seconds)
        try:
            if left is not None and left <= 0:
                raise _too_short(seconds or 0)
            waited = await self._acquire(patient=patient)
        except BaseException:
            run.abandon()
            raise
        self.inflight += 1
        if left is not None and not patient:
            left -= waited
        try:
            async with aclosing(run.run_pending(left, self._concurrency, scope)) as steps:
                async for finished in steps:
                    yield finished
        finally:
            self.inflight -= 1
            self._slots.release()

    async def finish(
        self,
        run: EvaluationRun,
        scope: Scope,
        time_remaining: Callable[[], float | None] | None = None,
    ) -> None:
        """Run the pending evaluators of a run to their end, as `run_pending` does."""
        async with aclosing(self.run_pending(run, scope, time_remaining)) as steps:
            async for _ in steps:
                run.take_progress()

    def seconds_for(self, plan: Plan, seconds: float | None = None) -> float | None:
        """Return the time limit of all of a plan's evaluators together, in seconds; None for no limit.

        seconds: until the call's deadline; None without one.
        """
        left = budget(self._default_timeout if seconds is None else min(seconds, self._max_timeout))
        if plan.timeout is None or left is None:
            return left
        return min(left, plan.timeout)

    async def _acquire(self, *, patient: bool) -> float:
        """Take a slot. Returns the seconds in the queue. Raises CallError OVERLOADED.

        patient: queue without a limit, in number and in time.
        """
        if not self._slots.locked():
            await self._slots.acquire()
            return 0.0
        if not patient and self.queued - self._patient >= self._queue:
            raise self._overloaded("all slots and the queue are full")
        began = time.monotonic()
        self.queued += 1
        self._patient += patient
        try:
            async with asyncio.timeout(None if patient else self._queue_seconds):
                await self._slots.acquire()
        except TimeoutError:
            raise self._overloaded(f"no slot within {time.monotonic() - began:.3g}s") from None
        finally:
            self.queued -= 1
            self._patient -= patient
        return time.monotonic() - began

    def _overloaded(self, why: str) -> CallError:
        return CallError(
            "OVERLOADED",
            f"the server is at its limit of {self._most} waiting evaluations: {why}; "
            f"try again after the delay in RetryInfo",
            limit=str(self._most),
        )


def _too_short(seconds: float) -> CallError:
    return CallError(
        "DEADLINE_TOO_SHORT",
        f"the call has {seconds * 1000:.0f} ms left, and {RESERVE_SECONDS * 1000:.0f} ms of them are reserved for "
        f"sending the response, so no time is left for evaluators that wait; set a later deadline",
    )
