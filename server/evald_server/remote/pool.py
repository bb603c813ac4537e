"""The instances of one evaluator type in one version: which one gets the next task, and how many may wait."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from .budget import RetryBudget
from .instance import Instance, State
from .limits import Limits
from .offer import Offer

# Of many instances so many are looked at: the least loaded of 32 is hardly more loaded than that of 500.
_ENOUGH: Final = 32


class NoPlace(Exception):
    """No instance takes the task. code: of evald.errorcodes."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Slot(NamedTuple):
    """A place on an instance. probe: the task tries whether the instance works again."""

    instance: Instance
    probe: bool


class _Waiting(NamedTuple):
    place: "asyncio.Future[Slot]"
    avoid: Instance | None
    patient: bool


class Pool:
    """Shares the tasks of one type out.

    The bulkhead: so many tasks at a time, so many calls that wait for a short while, the rest refused at
    once, so that one slow type cannot take the places that all types share.
    """

    def __init__(self, offer: Offer, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.offer = offer
        self.budget = RetryBudget()
        self.instances: list[Instance] = []
        self.inflight = 0
        self.since = clock()  # the last change of the instances
        self.mode = ""  # by which way the last instance came
        # When the type leaves the catalogue, by the pool's clock: its last instance has said goodbye.
        self.leaves_at: float | None = None
        self._limits = limits
        self._clock = clock
        self._live: set[Instance] = set()
        self._waiting: deque[_Waiting] = deque()
        self._turns = itertools.count()

    @property
    def live(self) -> int:
        """How many instances get tasks, or would if their circuit were closed."""
        return len(self._live)

    @property
    def waiting(self) -> int:
        """How many calls wait for a place."""
        return len(self._waiting)

    def add(self, instance: Instance) -> None:
        """One more instance."""
        self.leaves_at = None
        self.instances.append(instance)
        self.mode = instance.mode.name.lower()
        self.since = self._clock()
        self.note(instance)

    def leave_after(self, seconds: float) -> None:
        """The last instance has said goodbye: the type leaves in so many seconds, unless one comes."""
        if not self.instances:
            self.leaves_at = self._clock() + seconds

    def has_left(self) -> bool:
        """Whether its time to leave has come."""
        return self.leaves_at is not None and self.leaves_at <= self._clock() and not self.inflight

    def note(self, instance: Instance) -> None:
        """The state of an instance may be another one."""
        if instance.state is State.ACTIVE:
            self._live.add(instance)
        else:
            self._live.discard(instance)

    def discard(self, instance: Instance) -> None:
        """One less."""
        if instance in self.instances:
            self.instances.remove(instance)
            self._live.discard(instance)
            self.since = self._clock()

    def enter(self, avoid: Instance | None = None) -> Slot | None:
        """A place, or None when all are taken at the moment. Raises NoPlace when waiting would not help."""
        instance = self._choose(avoid)
        if instance is None or self._waiting or self.inflight >= self._limits.inflight:
            self._check_hope(avoid)
            return None
        return self._take(instance)

    async def wait(self, seconds: float, avoid: Instance | None = None, *, patient: bool = False) -> Slot:
        """A place as soon as there is one. patient: an instance may still come. Raises NoPlace."""
        if len(self._waiting) >= self._limits.queued:
            raise NoPlace(
                "EVALUATOR_BUSY",
                f"{self.inflight} tasks of this remote evaluator run and {len(self._waiting)} calls wait, "
                "which is the limit",
            )
        place: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(place, avoid, patient)
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(min(seconds, self._limits.queue_seconds)):
                return await place
        except TimeoutError:
            self._abandon(waiting)
            raise NoPlace(
                "EVALUATOR_BUSY", "No instance of this remote evaluator had a place in time"
            ) from None
        except BaseException:
            self._abandon(waiting)
            raise

    def leave(self, slot: Slot, *, worked: bool | None, used: bool = True) -> None:
        """Give a place back.

        worked: whether the instance did its part; None when that is not known. used: a task was sent.
        """
        instance, probe = slot
        self.inflight -= 1
        instance.give_back(used=used)
        if instance.breaker.end(probe=probe, worked=worked):
            instance.circuit_changed()
        # The instance may have had no room for tasks of its other types either.
        for pool in instance.pools:
            pool.wake()
        self.wake()

    def wake(self) -> None:
        """Give places to those who wait, as far as there are any, and no hope to those who have none."""
        if not self._waiting:
            return
        still: deque[_Waiting] = deque()
        for waiting in self._waiting:
            if waiting.place.done():
                continue
            instance = self._choose(waiting.avoid) if self.inflight < self._limits.inflight else None
            if instance is not None:
                waiting.place.set_result(self._take(instance))
                continue
            try:
                if not waiting.patient:
                    self._check_hope(waiting.avoid)
            except NoPlace as problem:
                waiting.place.set_exception(problem)
                continue
            still.append(waiting)
        self._waiting = still

    def _take(self, instance: Instance) -> Slot:
        self.inflight += 1
        instance.claim()
        return Slot(instance, instance.breaker.begin())

    def _choose(self, avoid: Instance | None) -> Instance | None:
        """The least loaded instance that may get a task. In turn where several are equal."""
        instances = self.instances
        if len(instances) == 1:
            instance = instances[0]
            return instance if instance is not avoid and _is_ready(instance) else None
        best: Instance | None = None
        lowest = float("inf")
        turn = next(self._turns)
        for position in range(len(instances)):
            instance = instances[(turn + position) % len(instances)]
            if instance is avoid or not _is_ready(instance):
                continue
            load = instance.load
            if load < lowest:
                best, lowest = instance, load
            if not lowest or (position >= _ENOUGH and best is not None):
                break
        return best

    def _check_hope(self, avoid: Instance | None) -> None:
        """Raise NoPlace when no instance will have a place soon."""
        if len(self._live) <= (avoid in self._live):
            raise NoPlace("REMOTE_UNAVAILABLE", "No live instance of this remote evaluator")
        if not any(instance.breaker.allows() for instance in self._live if instance is not avoid):
            raise NoPlace(
                "REMOTE_CIRCUIT_OPEN",
                "Every instance of this remote evaluator failed too often and is left alone for a while",
            )

    def _abandon(self, waiting: _Waiting) -> None:
        """A call no longer waits. A place that it was given in the same moment goes to the next one."""
        place = waiting.place
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        if not place.done():
            place.cancel()
        elif not place.cancelled() and place.exception() is None:
            self.leave(place.result(), worked=None, used=False)


def _is_ready(instance: Instance) -> bool:
    return instance.state is State.ACTIVE and instance.free and instance.breaker.allows()
