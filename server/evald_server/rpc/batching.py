"""Batch concurrent calls: run the functions of calls that arrive together back to back.

Under load, each call is held for the fraction of a millisecond in which gRPC receives the others anyway. Then all of
them run one after the other. It is the pause that gains: responses leave together, so the next requests come back
together, and gRPC's threads wake up once for several calls instead of once for each. Without a pause, calls back to back
gain nothing. So a held function should be the whole call, from request bytes to response bytes. Sequential calls are
not held. `python -m benchmarks unary` and `open-loop` measure the gain and what it costs one call.
Source of the idea: Larus and Parkes, "Using Cohort Scheduling to Enhance Server Performance", USENIX 2002.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")

# The maximum batch size, and the minimum for which calls are held.
_MOST: Final = 16
_FEWEST: Final = 4

# A batch runs when no further call has arrived for _QUIET_NANOS. No call is held for longer than _LONGEST_NANOS.
_QUIET_NANOS: Final = 200_000
_LONGEST_NANOS: Final = 2_000_000

# Number of batches, or of calls while none are held, until the next probe for a larger batch: after a batch that was
# smaller than expected, and the maximum.
_SOON: Final = 4
_RARELY: Final = 1024

# After this time the rest of a batch waits for the next iteration of the event loop.
_ROUND_NANOS: Final = 1_000_000


# A function, its arguments, its context, and the future of its result.
_Held: TypeAlias = "tuple[Callable[..., Any], tuple[Any, ...], Context, asyncio.Future[Any]]"


class CallBatcher:
    """Runs functions of concurrent calls in batches if at least 4 arrive together. Not thread-safe.

    The batch size adapts by probing. A probe holds calls until no further one arrives, and their number becomes the
    expected size. A smaller batch lowers it at once. Below 4, only probes hold calls: one call in a thousand, for
    0.2 ms.

    discard: called with the result of a call that was cancelled before it received the result. clock: monotonic
    nanoseconds.
    """

    def __init__(
        self,
        discard: Callable[[Any], object] = lambda _: None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._discard = discard
        self._clock = clock
        self._held: list[_Held] = []
        self._first = self._last = 0  # when the first and the last held call arrived
        self._watching = False
        self._expected = 1
        self._wanted = 1  # number of held calls that starts a batch; 1: none is held
        self._pause = 1
        self._left = 1

    async def result(self, result: "asyncio.Future[T]") -> T:
        """Return the result of a held call. If that is cancelled, `discard` gets the result."""
        try:
            return await result
        except asyncio.CancelledError:
            if not result.cancelled() and result.exception() is None:
                self._discard(result.result())
            raise

    def submit(self, function: Callable[..., T], *args: Any) -> "T | asyncio.Future[T]":
        """Return the result of the function, or a future of it if the call is held."""
        if self._wanted == 1:
            self._left -= 1
            if self._left <= 0:
                self._wanted = _MOST  # the next calls are a probe
            return function(*args)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        # In a copy of its context, so that context variables set by foreign code stay with the call.
        self._held.append((function, args, copy_context(), answer))
        if len(self._held) >= self._wanted:
            self._go()
            return answer
        self._last = self._clock()
        if len(self._held) == 1:
            self._first = self._last
        if not self._watching:
            self._watching = True
            # Poll in each iteration, because the loop's timers have a resolution of milliseconds.
            loop.call_soon(self._watch, loop)
        return answer

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._held:
            now = self._clock()
            if now - self._last < _QUIET_NANOS and now - self._first < _LONGEST_NANOS:
                loop.call_soon(self._watch, loop)
                return
            self._go()
        self._watching = False

    def _go(self) -> None:
        held, self._held = self._held, []
        came = len(held) if len(held) >= _FEWEST else 1
        if self._wanted > self._expected:
            self._pause = 1 if came > self._expected else min(2 * self._pause, _RARELY)
            self._expected, self._left = came, self._pause
        elif came < self._expected:
            self._pause = self._left = _SOON
            self._expected = came
        self._left -= 1
        self._wanted = _MOST if self._left <= 0 else self._expected
        self._run(iter(held))

    def _run(self, held: Iterator[_Held]) -> None:
        began = self._clock()
        for function, args, context, answer in held:
            if answer.done():
                continue  # the call was cancelled
            try:
                result = context.run(function, *args)
            except StopIteration as problem:
                # A future does not accept StopIteration, and the other calls must still run.
                answer.set_exception(RuntimeError(repr(problem)))
            except BaseException as problem:  # noqa: BLE001 - it is the caller's
                answer.set_exception(problem)
            else:
                answer.set_result(result)
            if self._clock() - began > _ROUND_NANOS:
                asyncio.get_running_loop().call_soon(self._run, held)
                return
