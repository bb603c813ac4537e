"""How many evaluations may wait for something at a time, and who has to stand in line."""

import asyncio
import time
from collections import deque

from .errors import CallError


class Admission:
    """A bounded number of places and a bounded line before them.

    Evaluations that wait for nothing need no place: they are over before the
    next one begins. `leave` gives the place to whoever has waited longest.
    """

    def __init__(self, places: int, line: int, patience_seconds: float) -> None:
        self.inflight = 0
        self._places = places
        self._line = line
        self._patience = patience_seconds
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def queued(self) -> int:
        """How many stand in line."""
        return len(self._waiters)

    def enter(self) -> bool:
        """Take a place if there is one and nobody waits for it. Whether it did."""
        if self.inflight >= self._places or self._waiters:
            return False
        self.inflight += 1
        return True

    async def wait(self, *, patient: bool = False) -> None:
        """Stand in line for a place. Raises CallError OVERLOADED when the line is full or does not move in
        time.

        patient: wait however long it takes, as an item of a batch does, whose
        sender is held up by it anyway.
        """
        if not patient and len(self._waiters) >= self._line:
            raise self._overloaded("places and line are full")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        began = time.monotonic()
        try:
            await asyncio.wait_for(waiter, None if patient else self._patience)
        except TimeoutError:
            raise self._overloaded(f"no place within {time.monotonic() - began:.3g}s") from None
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.leave()
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def leave(self) -> None:
        """Give the place back."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.inflight -= 1

    def _overloaded(self, why: str) -> CallError:
        return CallError(
            "OVERLOADED",
            f"the server is at its limit of {self._places} waiting evaluations: {why}; "
            f"try again after the delay in RetryInfo",
            limit=str(self._places),
        )
