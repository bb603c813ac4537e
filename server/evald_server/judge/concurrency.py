"""How many requests an endpoint gets at a time: as many as it can take, found out by trying."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

# What every endpoint can be expected to take: OpenAI's lowest tier, 500 requests a minute, is 8 at a time
# of a second each.
_FIRST_PLACES: Final = 8


# An endpoint that asks for more is asked again after five minutes: one of its servers, or a proxy, may have been
# wrong about it, and a whole day without judges is too much to pay for that.
_LONGEST_PAUSE: Final = 300.0


class Place:
    """One of the requests at a time. `limited` is to be called when the endpoint says that it was one too many."""

    __slots__ = ("_gate", "_round", "good")

    def __init__(self, gate: "Gate", number: int) -> None:
        self._gate = gate
        self._round = number
        self.good = False

    def limited(self, pause_seconds: float) -> None:
        """Halve the places, and send nothing for so long."""
        self._gate.slow_down(self._round, pause_seconds)


class Gate:
    """Places at an endpoint, taken in the order of arrival.

    As TCP does it: the number of places doubles while all goes well until the endpoint first refuses,
    then it halves, and from there grows by one for every round of good answers.

    most: never more places than this.
    """

    def __init__(
        self,
        most: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.inflight = 0
        self._most = most
        self._limit = float(min(most, _FIRST_PLACES))
        self._refused = False
        self._round = 0
        self._resume = 0.0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._clock = clock
        self._sleep = sleep

    @property
    def places(self) -> int:
        """How many requests there may be at a time, at present."""
        return int(self._limit)

    @property
    def queued(self) -> int:
        """How many wait for a place."""
        return len(self._waiters)

    @property
    def paused(self) -> float:
        """Seconds for which the endpoint has asked to be left alone; 0 when it has not."""
        return max(0.0, self._resume - self._clock())

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        """A place for one request. Set `good` once the endpoint has answered it."""
        await self._enter()
        try:
            while (pause := self.paused) > 0:
                await self._sleep(pause)
            place = Place(self, self._round)
            yield place
            if place.good:
                self._grow()
        finally:
            self.inflight -= 1
            self._admit()

    def slow_down(self, number: int, pause_seconds: float) -> None:
        """Halve the places, once for all requests that were under way together; number: of their round."""
        self._resume = max(self._resume, self._clock() + min(pause_seconds, _LONGEST_PAUSE))
        if number == self._round:
            self._round += 1
            self._refused = True
            self._limit = max(1.0, self._limit / 2)

    async def _enter(self) -> None:
        if self.inflight < self.places and not self._waiters:
            self.inflight += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.inflight -= 1
                self._admit()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def _admit(self) -> None:
        while self._waiters and self.inflight < self.places:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.inflight += 1
                waiter.set_result(None)

    def _grow(self) -> None:
        # Places that nobody needs prove nothing about the endpoint.
        if self.inflight >= self.places:
            self._limit = min(float(self._most), self._limit + (1 / self._limit if self._refused else 1))
