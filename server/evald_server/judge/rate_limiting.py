"""How fast an endpoint is asked: an adaptive limit on concurrent requests."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

# OpenAI's lowest tier, 500 requests a minute, is 8 concurrent requests of a second each.
_INITIAL_LIMIT: Final = 8

# An endpoint that asks for a longer pause is asked again after five minutes: one of its servers, or a
# proxy, may have been wrong, and a whole day without judges is too much to pay for that.
_MAX_PAUSE_SECONDS: Final = 300.0


@dataclass(slots=True)
class LimiterSlot:
    """One of the concurrent requests. Set `succeeded` once the endpoint has answered."""

    limiter: "AdaptiveLimiter"
    round: int
    succeeded: bool = False

    def overloaded(self, pause_seconds: float) -> None:
        """Report that the endpoint refused the request as one too many: halve the limit, then pause."""
        self.limiter.slow_down(self.round, pause_seconds)


class AdaptiveLimiter:
    """Limits concurrent requests to what the endpoint accepts; waiters are served in FIFO order.

    As in TCP, the limit doubles each round until the endpoint first refuses, then halves, and from there
    grows by one each round of successes. It never exceeds `max_limit`.
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
        """Most concurrent requests, at present."""
        return int(self._limit)

    @property
    def queued(self) -> int:
        """Number of requests that wait for a slot."""
        return len(self._waiters)

    @property
    def pause_seconds(self) -> float:
        """Seconds left of the pause that the endpoint asked for; 0 when there is none."""
        return max(0.0, self._resume_at - self._clock())

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[LimiterSlot]:
        """Wait for a slot, and for the end of a pause, and hold the slot for one request."""
        await self._acquire()
        try:
            while (pause := self.pause_seconds) > 0:
                await self._sleep(pause)
            slot = LimiterSlot(self, self._round)
            yield slot
            # A limit that is not reached proves nothing about the endpoint.
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
