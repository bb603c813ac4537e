"""Adaptive limit on concurrent requests to an endpoint."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

# OpenAI's lowest tier allows 500 requests a minute: 8 concurrent requests of one second each.
_INITIAL_LIMIT: Final = 8

# The longest pause. An endpoint that asks for a longer one is asked again after five minutes: one of its servers, or a
# proxy, may be wrong, and the judges must not be unavailable for a day because of that.
_MAX_PAUSE_SECONDS: Final = 300.0


@dataclass(slots=True)
class LimiterSlot:
    """A slot for one concurrent request. Set `succeeded` once the endpoint has answered."""

    limiter: "AdaptiveLimiter"
    round: int
    succeeded: bool = False

    def overloaded(self, pause_seconds: float) -> None:
        """Report that the endpoint refused the request because of too many requests: halve the limit, then pause."""
        self.limiter.slow_down(self.round, pause_seconds)


class AdaptiveLimiter:
    """Limits concurrent requests to the number that the endpoint accepts; waiters are served in FIFO order.

    As in TCP, the limit doubles each round until the endpoint first refuses a request, then halves, and from then on
    grows by one in each round of successes. It never exceeds `max_limit`.
    """

    def __init__(
        self,
        max_limit: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.inflight = 0
        self._max_limit = max_limit
        self._limit = float(min(max_limit, _INITIAL_LIMIT))
        self._refused = False
        self._round = 0
        self._resume_at = 0.0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._clock = clock
        self._sleep = sleep

    @property
    def limit(self) -> int:
        """The current limit on concurrent requests."""
        return int(self._limit)

    @property
    def queued(self) -> int:
        """The number of requests that wait for a slot."""
        return len(self._waiters)

    @property
    def pause_seconds(self) -> float:
        """The seconds left of the pause that the endpoint asked for; 0 when there is none."""
        return max(0.0, self._resume_at - self._clock())

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[LimiterSlot]:
        """Wait for a slot and for the end of a pause, and hold the slot for one request."""
        await self._acquire()
        try:
            while (pause := self.pause_seconds) > 0:
                await self._sleep(pause)
            slot = LimiterSlot(self, self._round)
            yield slot
            # Success below the limit shows nothing about what the endpoint accepts.
            if slot.succeeded and self.inflight >= self.limit:
                growth = 1 / self._limit if self._refused else 1
                self._limit = min(float(self._max_limit), self._limit + growth)
        finally:
            self._release()

    def slow_down(self, round_number: int, pause_seconds: float) -> None:
        """Halve the limit, once for all requests of a round, and pause."""
        self._resume_at = max(self._resume_at, self._clock() + min(pause_seconds, _MAX_PAUSE_SECONDS))
        if round_number == self._round:
            self._round += 1
            self._refused = True
            self._limit = max(1.0, self._limit / 2)

    async def _acquire(self) -> None:
        if self.inflight < self.limit and not self._waiters:
            self.inflight += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._release()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def _release(self) -> None:
        self.inflight -= 1
        while self._waiters and self.inflight < self.limit:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.inflight += 1
                waiter.set_result(None)
