"""Load balancing and admission of one evaluator type in one version."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from .breaker import RetryBudget
from .errors import NoPlace
from .instance import Instance, InstanceState
from .limits import RemoteLimits
from .plugin_type import PluginType

# The least loaded of 32 instances has hardly more load than the least loaded of 500.
_MAX_COMPARED: Final = 32


class Slot(NamedTuple):
    """A slot on an instance. probe: the task is the probe of an open circuit."""

    instance: Instance
    probe: bool


class _Waiter(NamedTuple):
    slot: "asyncio.Future[Slot]"
    avoid: Instance | None
    patient: bool


class InstancePool:
    """Assigns tasks of one type to instances.

    It is also the bulkhead: at most `inflight` tasks run, at most `queued` calls wait for a short time, and further
    calls are refused at once, so that a slow type cannot take the capacity shared by all types.

    inflight: number of running tasks. since: time of the last change of the instances. mode: of the instance added
    last. leaves_at: time when the type leaves the catalogue, because its last instance left gracefully.
    """

    def __init__(
        self, plugin_type: PluginType, limits: RemoteLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.plugin_type = plugin_type
        self.retry_budget = RetryBudget()
        self.instances: list[Instance] = []
        self.inflight = 0
        self.since = clock()
        self.mode = ""
        self.leaves_at: float | None = None
        self._limits = limits
        self._clock = clock
        self._live: set[Instance] = set()
        self._waiters: deque[_Waiter] = deque()
        self._rotation = itertools.count()

    @property
    def live(self) -> int:
        """The number of active instances, whatever the state of their circuits."""
        return len(self._live)

    @property
    def queued(self) -> int:
        """The number of calls that wait for a slot."""
        return len(self._waiters)

    def add(self, instance: Instance) -> None:
        """Add an instance."""
        self.leaves_at = None
        self.instances.append(instance)
        self.mode = instance.mode.name.lower()
        self.since = self._clock()
        self.update(instance)

    def discard(self, instance: Instance) -> None:
        """Remove an instance."""
        if instance in self.instances:
            self.instances.remove(instance)
            self._live.discard(instance)
            self.since = self._clock()

    def update(self, instance: Instance) -> None:
        """Update whether an instance is live, from its state."""
        if instance.state is InstanceState.ACTIVE:
            self._live.add(instance)
        else:
            self._live.discard(instance)

    def leave_after(self, seconds: float) -> None:
        """Let the type leave the catalogue after `seconds`, unless it has an instance."""
        if not self.instances:
            self.leaves_at = self._clock() + seconds

    def has_left(self) -> bool:
        """Return whether the type must leave the catalogue now."""
        return self.leaves_at is not None and self.leaves_at <= self._clock() and not self.inflight

    def try_acquire(self, avoid: Instance | None = None) -> Slot | None:
        """Try to acquire a slot without waiting. avoid: an instance that has just failed.

        Returns None if all slots are taken. Raises NoPlace if waiting would not help.
        """
        instance = self._choose(avoid)
        if instance is None or self._waiters or self.inflight >= self._limits.inflight:
            self._check_live(avoid)
            return None
        return self._take(instance)

    async def acquire(self, seconds: float, avoid: Instance | None = None, *, patient: bool = False) -> Slot:
        """Wait for a slot. patient: wait even if no instance is live now. Raises NoPlace."""
        if len(self._waiters) >= self._limits.queued:
            raise NoPlace(
                "EVALUATOR_BUSY",
                f"This remote evaluator is at its limit: {self.inflight} tasks run and {len(self._waiters)} calls wait",
            )
        slot: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(slot, avoid, patient)
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(min(seconds, self._limits.queue_seconds)):
                return await slot
        except TimeoutError:
            self._abandon(waiter)
            raise NoPlace(
                "EVALUATOR_BUSY", "No instance of this remote evaluator could accept the task in time"
            ) from None
        except BaseException:
            self._abandon(waiter)
            raise

    def release(self, slot: Slot, *, worked: bool | None, sent: bool = True) -> None:
        """Return a slot. worked: whether the instance did its part; None if unknown. sent: whether a task was sent."""
        instance, probe = slot
        self.inflight -= 1
        instance.release(sent=sent)
        if instance.breaker.end(probe=probe, worked=worked):
            instance.circuit_changed()
        # Calls of its other types may wait for the instance too.
        for waiting in instance.waiting:
            waiting.wake()
        self.wake()

    def wake(self) -> None:
        """Assign free slots in FIFO order; fail waiters that no live instance can serve."""
        if not self._waiters:
            return
        remaining: deque[_Waiter] = deque()
        for waiter in self._waiters:
            if waiter.slot.done():
                continue
            instance = self._choose(waiter.avoid) if self.inflight < self._limits.inflight else None
            if instance is not None:
                waiter.slot.set_result(self._take(instance))
                continue
            try:
                if not waiter.patient:
                    self._check_live(waiter.avoid)
            except NoPlace as problem:
                waiter.slot.set_exception(problem)
                continue
            remaining.append(waiter)
        self._waiters = remaining

    def _take(self, instance: Instance) -> Slot:
        self.inflight += 1
        instance.claim()
        return Slot(instance, instance.breaker.begin())

    def _choose(self, avoid: Instance | None) -> Instance | None:
        """Return the least loaded instance that may get a task; round-robin among equals."""
        instances = self.instances
        best: Instance | None = None
        lowest = float("inf")
        first = next(self._rotation)
        for position in range(len(instances)):
            instance = instances[(first + position) % len(instances)]
            if instance is avoid or not _is_ready(instance):
                continue
            load = instance.load
            if load < lowest:
                best, lowest = instance, load
            if not lowest or (position >= _MAX_COMPARED and best is not None):
                break
        return best

    def _check_live(self, avoid: Instance | None) -> None:
        """Raise NoPlace if no instance will have a slot soon."""
        if len(self._live) <= (avoid in self._live):
            raise NoPlace("REMOTE_UNAVAILABLE", "This remote evaluator has no live instance")
        if not any(instance.breaker.allows() for instance in self._live if instance is not avoid):
            raise NoPlace(
                "REMOTE_CIRCUIT_OPEN",
                "All instances of this remote evaluator failed too often and get no tasks for a while",
            )

    def _abandon(self, waiter: _Waiter) -> None:
        """Remove a waiter that gave up. A slot assigned at the same moment goes to the next waiter."""
        slot = waiter.slot
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        if not slot.done():
            slot.cancel()
        elif not slot.cancelled() and slot.exception() is None:
            self.release(slot.result(), worked=None, sent=False)


def _is_ready(instance: Instance) -> bool:
    return instance.state is InstanceState.ACTIVE and instance.free and instance.breaker.allows()
