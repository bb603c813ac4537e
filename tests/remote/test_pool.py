"""Who gets the next place, without a server: fairly, and none is ever lost."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from evald_server.auth.current_call import PRINCIPAL
from evald_server.auth.principal import Principal
from evald_server.config import Settings
from evald_server.remote.errors import NoCapacity
from evald_server.remote.instance import Instance, InstanceState, Mode
from evald_server.remote.plugin_type import Plugin, read_plugin
from evald_server.remote.pool import InstancePool, Slot

from .scripted import plugin_info

SETTINGS = Settings(remote_max_inflight=100, remote_max_queued=10, remote_max_queue_seconds=5.0)


class Fake(Instance):
    """An instance with so many places, ready."""

    mode = Mode.STATIC

    def __init__(self, name: str, places: int, pool: InstancePool) -> None:
        super().__init__(name, name, _plugin(places), lambda _: None)
        self.state = InstanceState.ACTIVE
        self.sent: list[bool] = []
        self.waiting = [pool]
        pool.add(self)

    @property
    def reachable(self) -> bool:
        return True

    def release(self, principal: str, *, sent: bool) -> None:
        self.sent.append(sent)
        super().release(principal, sent=sent)

    def become(self, state: InstanceState) -> None:
        """Change the state, as the registry does."""
        self.state = state
        for pool in self.waiting:
            pool.update(self)
            pool.wake()


def _plugin(places: int) -> Plugin:
    return read_plugin(plugin_info("acme.word", max_concurrency=places))


def _pool(*places: int, settings: Settings = SETTINGS) -> tuple[InstancePool, list[Fake]]:
    pool = InstancePool(_plugin(1).types[0], settings)
    return pool, [Fake(f"i{number}", many, pool) for number, many in enumerate(places)]


def _fill(pool: InstancePool) -> list[Slot]:
    slots = []
    while (slot := pool.try_acquire()) is not None:
        slots.append(slot)
    return slots


async def _settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def _names(slots: Sequence[Slot]) -> list[str]:
    return sorted(slot.instance.id for slot in slots)


def test_places_fill_up_evenly_by_share() -> None:
    pool, _ = _pool(1, 2, 4)
    assert _names(_fill(pool)) == ["i0", "i1", "i1", "i2", "i2", "i2", "i2"]
    pool, _ = _pool(2, 4, 8)
    half = [pool.try_acquire() for _ in range(7)]
    assert _names([slot for slot in half if slot]) == ["i0"] + ["i1"] * 2 + ["i2"] * 4


async def test_what_waits_is_served_in_order_and_before_who_comes_later() -> None:
    pool, _ = _pool(1)
    (slot,) = _fill(pool)
    served: list[int] = []

    async def wait(number: int) -> None:
        got = await pool.acquire(5)
        served.append(number)
        await asyncio.sleep(0.01)
        pool.release(got, worked=True)

    waiting = [asyncio.create_task(wait(number)) for number in range(3)]
    await _settle()
    pool.release(slot, worked=True)
    assert pool.try_acquire() is None, "the place belongs to who has waited"
    await asyncio.gather(*waiting)
    assert served == [0, 1, 2]
    assert pool.inflight == 0


async def test_who_stops_waiting_takes_no_place_along() -> None:
    """Also in the very moment in which the place was given."""

    pool, (instance,) = _pool(1)
    (slot,) = _fill(pool)
    waiting = asyncio.create_task(pool.acquire(5))
    await _settle()
    pool.release(slot, worked=True)  # gives the place to `waiting`, which has not run since
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (pool.inflight, instance.active, pool.queued) == (0, 0, 0)
    assert instance.sent == [True, False], "from the second place no task was sent"
    assert pool.try_acquire() is not None


async def test_a_place_that_was_given_to_who_has_gone_goes_to_the_next() -> None:
    pool, _ = _pool(1)
    (slot,) = _fill(pool)
    first, second = (asyncio.create_task(pool.acquire(5)) for _ in range(2))
    await _settle()
    pool.release(slot, worked=True)
    first.cancel()
    assert (await second).instance is slot.instance


async def test_only_so_many_wait() -> None:
    pool, _ = _pool(1)
    _fill(pool)
    waiting = [asyncio.create_task(pool.acquire(5)) for _ in range(10)]
    await _settle()
    with pytest.raises(NoCapacity) as full:
        await pool.acquire(5)
    assert full.value.code == "EVALUATOR_BUSY"
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert pool.queued == 0


async def test_no_more_wait_when_many_principals_do() -> None:
    pool, _ = _pool(1)
    _fill(pool)

    async def wait(number: int) -> None:
        PRINCIPAL.set(Principal(f"p{number}", frozenset()))
        await pool.acquire(5)

    waiting = [asyncio.create_task(wait(number)) for number in range(30)]
    await _settle()
    assert pool.queued == 10
    for one in waiting:
        one.cancel()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [one.code for one in ended if isinstance(one, NoCapacity)] == ["EVALUATOR_BUSY"] * 20


async def test_a_slot_that_is_freed_takes_no_principal_beyond_its_share() -> None:
    pool, _ = _pool(4)

    async def acquire(name: str) -> Slot:
        PRINCIPAL.set(Principal(name, frozenset()))
        return pool.try_acquire() or await pool.acquire(30)

    held = [await asyncio.create_task(acquire(name)) for name in ("greedy", "greedy", "greedy", "other")]
    waiting = asyncio.create_task(acquire("greedy"))
    await _settle()
    pool.release(held.pop(), worked=True)
    await _settle()
    assert not waiting.done()
    pool.release(held.pop(), worked=True)
    assert (await waiting).principal == "greedy"


@pytest.mark.parametrize(("end", "code"), [("gone", "REMOTE_UNAVAILABLE"), ("open", "REMOTE_CIRCUIT_OPEN")])
async def test_who_waits_in_vain_is_told_at_once(end: str, code: str) -> None:
    pool, (instance,) = _pool(5)
    slots = _fill(pool)
    waiting = asyncio.create_task(pool.acquire(5))
    patient = asyncio.create_task(pool.acquire(5, patient=True))
    await _settle()
    if end == "gone":
        instance.become(InstanceState.UNHEALTHY)
    else:
        for slot in slots:
            # Nobody gets the places that come free meanwhile.
            pool._take(instance, slot.principal)
            pool.release(slot, worked=False)
    with pytest.raises(NoCapacity) as problem:
        await waiting
    assert problem.value.code == code
    assert not patient.done()
    patient.cancel()
    await asyncio.gather(patient, return_exceptions=True)


def test_nobody_waits_for_the_instance_to_be_avoided() -> None:
    pool, (only,) = _pool(3)
    with pytest.raises(NoCapacity) as problem:
        pool.try_acquire(only)
    assert problem.value.code == "REMOTE_UNAVAILABLE"
    other = Fake("other", 1, pool)
    slot = pool.try_acquire(only)
    assert slot is not None
    assert slot.instance is other
    assert pool.try_acquire(only) is None


def test_the_bulkhead_counts_all_instances_together() -> None:
    pool, _ = _pool(10, 10, settings=Settings(remote_max_inflight=7))
    assert len(_fill(pool)) == 7


def test_with_five_hundred_instances_a_place_is_found_near_the_least_loaded() -> None:
    pool, instances = _pool(*[10] * 500, settings=Settings(remote_max_inflight=5000))
    slots = [slot for slot in (pool.try_acquire() for _ in range(2500)) if slot]
    assert len(slots) == 2500
    assert max(instance.active for instance in instances) <= 7
    # The one free place among 500 is found, too.
    _fill(pool)
    pool.release(slots[77], worked=True)
    slot = pool.try_acquire()
    assert slot is not None
    assert slot.instance is slots[77].instance


async def test_whatever_happens_every_place_comes_back() -> None:
    draw = random.Random(7)
    pool, instances = _pool(2, 3, 1)

    async def call() -> None:
        try:
            slot = pool.try_acquire() or await pool.acquire(0.02)
        except NoCapacity:
            return
        try:
            await asyncio.sleep(draw.random() / 100)
        finally:
            pool.release(slot, worked=draw.choice((True, True, None)), sent=draw.random() < 0.9)

    calls = []
    for _ in range(400):
        calls.append(asyncio.create_task(call()))
        await asyncio.sleep(draw.random() / 1000)
        if draw.random() < 0.3:
            draw.choice(calls).cancel()
        if draw.random() < 0.1:
            draw.choice(instances).become(draw.choice((InstanceState.ACTIVE, InstanceState.UNHEALTHY)))
    await asyncio.gather(*calls, return_exceptions=True)
    for instance in instances:
        instance.become(InstanceState.ACTIVE)
    assert pool.inflight == pool.queued == 0
    assert [instance.active for instance in instances] == [0, 0, 0]
    assert len(_fill(pool)) == 6
