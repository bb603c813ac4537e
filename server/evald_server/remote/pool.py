"""Load balancing and admission of one evaluator type in one version."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from evald_server.auth.current_call import caller
from evald_server.auth.principal import LOCAL
from evald_server.config import Settings
from evald_server.fair_slots import RoundRobinQueue, count_down, share
from evald_server.store.remote_types import StoredType

from .breaker import RetryBudget
from .errors import NoCapacity
from .instance import Instance, InstanceState
from .plugin_type import Key, PluginType

# The least loaded of 32 instances has hardly more load than the least loaded of 500.
_MAX_COMPARED: Final = 32

# Workers and plugins are usually back within this time after a start of the server.
_RETURN_SECONDS: Final = 10.0
_MAX_RETURN_WAIT: Final = 5.0


class Slot(NamedTuple):
    """A slot on an instance, held by a principal. probe: the task is the probe of an open circuit."""

    instance: Instance
    principal: str
    probe: bool


class _Waiter(NamedTuple):
    slot: "asyncio.Future[Slot]"
    avoid: Instance | None
    patient: bool


class InstancePool:
    """Assigns tasks of one type to instances.

    It is also the bulkhead: at most `inflight` tasks run, at most `queued` calls wait for a short time, and further
    calls are refused at once, so that a slow type cannot take the capacity shared by all types.

    Waiting calls are served in order for each principal, and principals take turns. On a server with credentials, a
    principal gets at most three quarters of the running tasks, of the slots of the instances, and of the queue.

    inflight: number of running tasks. since: time of the last change of the instances. mode: of the instance added
    last. remove_at: time after which another version may supersede this one, because its last instance left
    gracefully. stored: what the store has of the type; None before its first live instance.
    """

    def __init__(
        self,
        plugin_type: PluginType,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        *,
        stored: StoredType | None = None,
    ) -> None:
        self.plugin_type = plugin_type
        self.retry_budget = RetryBudget()
        self.instances: list[Instance] = []
        self.inflight = 0
        self.since = clock()
        self.mode = "remembered"
        self.remove_at: float | None = None
        self.stored = stored
        self._awaited_until = 0.0 if stored is None else clock() + _RETURN_SECONDS
        self._settings = settings
        self._clock = clock
        self._live: set[Instance] = set()
        self._taken_by: Counter[str] = Counter()
        self._waiters: RoundRobinQueue[_Waiter] = RoundRobinQueue()
        self._rotation = itertools.count()

    @property
    def key(self) -> Key:
        """The type and version."""
        return self.plugin_type.key

    @property
    def live(self) -> int:
        """The number of active instances, whatever the state of their circuits."""
        return len(self._live)

    @property
    def queued(self) -> int:
        """The number of calls that wait for a slot."""
        return len(self._waiters)

    def has_others(self, instance: Instance | None) -> bool:
        """Return whether instances besides this one have been live, so that the type's schema is settled."""
        return any(
            other is not instance and other.state is not InstanceState.PENDING for other in self.instances
        )

    def add(self, instance: Instance) -> None:
        """Add an instance."""
        self.remove_at = None
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
            self._awaited_until = 0.0
        else:
            self._live.discard(instance)

    def remove_after(self, seconds: float) -> None:
        """Let another version supersede this one after `seconds`, unless it has an instance."""
        if not self.instances:
            self.remove_at = self._clock() + seconds

    def is_due(self) -> bool:
        """Return whether another version may supersede this one now."""
        return self.remove_at is not None and self.remove_at <= self._clock() and not self.inflight

    def try_acquire(self, avoid: Instance | None = None) -> Slot | None:
        """Try to acquire a slot for the caller of the current call, without waiting.

        avoid: an instance that has just failed.

        Returns None if all slots are taken. Raises NoCapacity if waiting would not help.
        """
        principal = caller().name
        # Calls of other principals that still wait may not have the slot, else `wake` had assigned it.
        if principal in self._waiters.by_principal or not self._may_take(principal):
            instance = None
        else:
            instance = self._choose(principal, avoid)
        if instance is None:
            self._check_live(principal, avoid)
            return None
        return self._take(instance, principal)

    async def acquire_first(self, seconds: float) -> Slot:
        """Acquire a slot for a task that no instance has got yet. seconds: time left for it.

        Soon after a start of the server, wait for the first instance of a remembered type. Raises NoCapacity.
        """
        if self._clock() < self._awaited_until:
            return await self.acquire(min(_MAX_RETURN_WAIT, seconds / 2), patient=True)
        return self.try_acquire() or await self.acquire(min(seconds, self._settings.remote_max_queue_seconds))

    async def acquire(self, seconds: float, avoid: Instance | None = None, *, patient: bool = False) -> Slot:
        """Wait for a slot for the caller of the current call. patient: wait even if no instance is live now.

        Raises NoCapacity.
        """
        principal = caller().name
        # All calls wait for a remembered type; admission limits them.
        if self._clock() >= self._awaited_until:
            self._check_queue(principal)
        slot: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(slot, avoid, patient)
        self._waiters.add(principal, waiter)
        try:
            async with asyncio.timeout(seconds):
                return await slot
        except TimeoutError:
            self._abandon(principal, waiter)
            self._check_live(principal, avoid)
            raise NoCapacity(
                "EVALUATOR_BUSY", "No instance of this remote evaluator could accept the task in time"
            ) from None
        except BaseException:
            self._abandon(principal, waiter)
            raise

    def _check_queue(self, principal: str) -> None:
        """Raise NoCapacity if no more calls of a principal may wait."""
        waiting = len(self._waiters)
        own = len(self._waiters.by_principal.get(principal, ()))
        if waiting >= self._settings.remote_max_queued:
            raise NoCapacity(
                "EVALUATOR_BUSY",
                f"This remote evaluator is at its limit: {self.inflight} tasks run and {waiting} calls wait",
            )
        if own >= share(self._settings.remote_max_queued, principal):
            raise NoCapacity(
                "EVALUATOR_BUSY",
                f"The caller has its share, three quarters, of this remote evaluator's queue: {own} of its calls wait",
            )

    def release(self, slot: Slot, *, worked: bool | None, late: bool = False, sent: bool = True) -> None:
        """Return a slot. worked: whether the instance did its part; None if unknown. late: whether it was late.

        sent: whether a task was sent.
        """
        instance, principal, probe = slot
        self.inflight -= 1
        count_down(self._taken_by, principal)
        instance.release(principal, sent=sent)
        # Without credentials there are no others, who may have more luck.
        unlucky = principal if late and principal != LOCAL.name else ""
        if instance.breakers[self.key].end(probe=probe, worked=worked, late=unlucky):
            instance.circuit_changed(self.key)
        # Calls of its other types may wait for the instance too.
        for waiting in instance.waiting:
            waiting.wake()
        self.wake()

    def wake(self) -> None:
        """Assign free slots, principals taking turns; fail waiters that no live instance can serve."""
        while (found := self._next_served()) is not None:
            principal, waiter, instance = found
            self._waiters.serve(principal, waiter)
            waiter.slot.set_result(self._take(instance, principal))
        for principal, waiters in list(self._waiters.by_principal.items()):
            for waiter in list(waiters):
                try:
                    if not (waiter.patient or waiter.slot.done()):
                        self._check_live(principal, waiter.avoid)
                except NoCapacity as problem:
                    self._waiters.discard(principal, waiter)
                    waiter.slot.set_exception(problem)

    def _next_served(self) -> tuple[str, _Waiter, Instance] | None:
        """Return the next waiter that may have a slot, with its principal and its instance."""
        for principal, waiters in self._waiters.by_principal.items():
            if not self._may_take(principal):
                continue
            for waiter in waiters:
                if not waiter.slot.done() and (instance := self._choose(principal, waiter.avoid)) is not None:
                    return principal, waiter, instance
        return None

    def _may_take(self, principal: str) -> bool:
        """Return whether one more task may run, and whether it may be one of this principal."""
        limit = self._settings.remote_max_inflight
        if self.inflight >= limit or self._taken_by[principal] >= share(limit, principal):
            return False
        if principal == LOCAL.name:
            return True
        # The instances may have fewer slots than the type has, and tasks of their other types hold slots, too.
        slots = held = 0
        for instance in self._live:
            if instance.breakers[self.key].allows(principal):
                slots += instance.slots
                held += instance.held.get(principal, 0)
        return held < share(slots, principal)

    def _take(self, instance: Instance, principal: str) -> Slot:
        self.inflight += 1
        self._taken_by[principal] += 1
        instance.claim(principal)
        return Slot(instance, principal, instance.breakers[self.key].begin(principal))

    def _choose(self, principal: str, avoid: Instance | None) -> Instance | None:
        """Return the least loaded instance that may get a task of a principal; round-robin among equals."""
        instances = self.instances
        best: Instance | None = None
        lowest = float("inf")
        first = next(self._rotation)
        for position in range(len(instances)):
            instance = instances[(first + position) % len(instances)]
            if instance is avoid or not self._is_ready(instance, principal):
                continue
            load = instance.load
            if load < lowest:
                best, lowest = instance, load
            if not lowest or (position >= _MAX_COMPARED and best is not None):
                break
        return best

    def _check_live(self, principal: str, avoid: Instance | None) -> None:
        """Raise NoCapacity if no instance will have a slot for a principal soon."""
        if len(self._live) <= (avoid in self._live):
            raise NoCapacity("REMOTE_UNAVAILABLE", "This remote evaluator has no live instance")
        if not any(
            instance.breakers[self.key].allows(principal) for instance in self._live if instance is not avoid
        ):
            raise NoCapacity(
                "REMOTE_CIRCUIT_OPEN",
                "All instances of this remote evaluator failed too often and get no tasks for a while",
            )

    def _abandon(self, principal: str, waiter: _Waiter) -> None:
        """Remove a waiter that gave up. A slot assigned at the same moment goes to the next waiter."""
        slot = waiter.slot
        self._waiters.discard(principal, waiter)
        if not slot.done():
            slot.cancel()
        elif not slot.cancelled() and slot.exception() is None:
            self.release(slot.result(), worked=None, sent=False)

    def _is_ready(self, instance: Instance, principal: str) -> bool:
        return (
            instance.state is InstanceState.ACTIVE
            and instance.free
            and instance.breakers[self.key].allows(principal)
        )
