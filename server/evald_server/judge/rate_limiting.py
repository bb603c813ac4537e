"""Adaptive limit on concurrent requests to an endpoint."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from evald_server.fair_slots import FairSlots

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
    """Limits concurrent requests to the number that the endpoint accepts, shared by principals as in FairSlots.

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
        self._max_limit = max_limit
        self._limit = float(min(max_limit, _INITIAL_LIMIT))
        self._slots = FairSlots(self.limit)
        self._refused = False
        self._round = 0
        self._resume_at = 0.0
        self._clock = clock
        self._sleep = sleep

    @property
    def limit(self) -> int:
        """The current limit on concurrent requests."""
        return int(self._limit)

    @property
    def inflight(self) -> int:
        """The number of requests that have a slot."""
        return self._slots.taken

    @property
    def queued(self) -> int:
        """The number of requests that wait for a slot."""
        return self._slots.waiting

    @property
    def pause_seconds(self) -> float:
        """The seconds left of the pause that the endpoint asked for; 0 when there is none."""
        return max(0.0, self._resume_at - self._clock())

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[LimiterSlot]:
        """Wait for a slot and for the end of a pause, and hold the slot for one request of the current caller."""
        async with self._slots.slot():
            while (pause := self.pause_seconds) > 0:
                await self._sleep(pause)
            slot = LimiterSlot(self, self._round)
            yield slot
            # Success below the limit shows nothing about what the endpoint accepts, unless more requests wait: a
            # principal that is alone has only a part of the slots.
            if slot.succeeded and (self.inflight >= self.limit or self.queued):
                growth = 1 / self._limit if self._refused else 1
                self._set_limit(min(float(self._max_limit), self._limit + growth))

    def slow_down(self, round_number: int, pause_seconds: float) -> None:
        """Halve the limit, once for all requests of a round, and pause."""
        self._resume_at = max(self._resume_at, self._clock() + min(pause_seconds, _MAX_PAUSE_SECONDS))
        if round_number == self._round:
            self._round += 1
            self._refused = True
            self._set_limit(max(1.0, self._limit / 2))

    def _set_limit(self, limit: float) -> None:
        self._limit = limit
        self._slots.slots = self.limit
