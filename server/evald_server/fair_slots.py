"""Slots that principals share fairly."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from evald_server.auth.current_call import caller
from evald_server.auth.principal import LOCAL

_Waiter = TypeVar("_Waiter")


class QueueFull(Exception):
    """The queue for a slot, or the principal's part of it, is full."""


class RoundRobinQueue(Generic[_Waiter]):
    """A queue of waiters, served round-robin by principal, and in order within a principal.

    by_principal: an ordered set of waiters by principal. The principal to serve next comes first.
    """

    def __init__(self) -> None:
        self.by_principal: OrderedDict[str, OrderedDict[_Waiter, None]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self.by_principal.values()))

    def add(self, principal: str, waiter: _Waiter) -> None:
        """Add a waiter."""
        self.by_principal.setdefault(principal, OrderedDict())[waiter] = None

    def discard(self, principal: str, waiter: _Waiter) -> None:
        """Remove a waiter without serving it."""
        waiters = self.by_principal.get(principal)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self.by_principal[principal]

    def pop(self) -> _Waiter:
        """Remove and return the next waiter."""
        principal, waiters = next(iter(self.by_principal.items()))
        waiter = next(iter(waiters))
        self.serve(principal, waiter)
        return waiter

    def serve(self, principal: str, waiter: _Waiter) -> None:
        """Remove a waiter and move its principal to the end of the queue."""
        self.discard(principal, waiter)
        if principal in self.by_principal:
            self.by_principal.move_to_end(principal)


class FairSlots:
    """A limited number of slots. Waiters get them round-robin by principal, and in order within a principal.

    On a server with credentials, a principal gets at most three quarters of the slots and of the queue, because it may
    hold them for long.

    slots: their number; a change takes effect when a slot is next taken or released. queue: maximum number of waiters
    that are not patient; None: no limit.
    """

    def __init__(self, slots: int, queue: int | None = None) -> None:
        self.taken = 0
        self.slots = slots
        self._queue = queue
        self._taken_by: Counter[str] = Counter()
        self._waiting: RoundRobinQueue[asyncio.Future[None]] = RoundRobinQueue()
        self._impatient: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """The number of waiters."""
        return len(self._waiting)

    def enter(self, principal: str) -> bool:
        """Try to take a slot without waiting. Returns True on success."""
        waits = principal in self._waiting.by_principal
        if self.taken >= self.slots or waits or not self._may_take(principal):
            return False
        self._take(principal)
        return True

    async def acquire(self, principal: str, *, patient: bool = False) -> None:
        """Wait for a slot. patient: wait even if the queue is full. Raises QueueFull."""
        if self.enter(principal):
            return
        if not patient and self._queue is not None:
            own = self._impatient[principal]
            if self._impatient.total() >= self._queue or own >= share(self._queue, principal):
                raise QueueFull
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(principal, waiter)
        if not patient:
            self._impatient[principal] += 1
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._waiting.discard(principal, waiter)
            else:
                self.release(principal)
            raise
        finally:
            if not patient:
                count_down(self._impatient, principal)

    def release(self, principal: str) -> None:
        """Release a slot, and assign the free slots to waiters."""
        self.taken -= 1
        count_down(self._taken_by, principal)
        waiting = self._waiting.by_principal
        while self.taken < self.slots:
            name = next(filter(self._may_take, waiting), None)
            if name is None:
                return
            waiter = next(iter(waiting[name]))
            if waiter.cancelled():
                self._waiting.discard(name, waiter)
                continue
            self._waiting.serve(name, waiter)
            self._take(name)
            waiter.set_result(None)

    @asynccontextmanager
    async def slot(self, principal: str | None = None, *, patient: bool = False) -> AsyncIterator[None]:
        """Hold a slot. principal: by default the caller of the current call. Raises QueueFull."""
        name = caller().name if principal is None else principal
        await self.acquire(name, patient=patient)
        try:
            yield
        finally:
            self.release(name)

    def _may_take(self, principal: str) -> bool:
        return self._taken_by[principal] < share(self.slots, principal)

    def _take(self, principal: str) -> None:
        self.taken += 1
        self._taken_by[principal] += 1


def count_down(counts: Counter[str], principal: str) -> None:
    """Decrement a principal's count. Remove it at 0, so that counts of former principals do not pile up."""
    counts[principal] -= 1
    if not counts[principal]:
        del counts[principal]


def share(whole: int, principal: str) -> int:
    """Return how much of `whole` one principal may use: three quarters; all of it on a server without credentials."""
    return whole if principal == LOCAL.name else max(1, whole * 3 // 4) if whole else 0
