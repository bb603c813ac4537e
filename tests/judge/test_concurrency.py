"""An endpoint gets as many requests at a time as it can take, first come first served."""

import asyncio
from itertools import pairwise

import pytest

from evald_server.judge.concurrency import Gate

from ..rpc.live import run


class Time:
    """Time that passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


async def settle() -> None:
    """Let all tasks go on as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Request:
    """A request that lasts until it is told how it ends."""

    def __init__(self, gate: Gate) -> None:
        self.running = False
        self._end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run(gate))

    async def _run(self, gate: Gate) -> None:
        async with gate.place() as place:
            self.running = True
            if await self._end:
                place.good = True
            else:
                place.limited(0.0)

    async def end(self, *, good: bool = True) -> None:
        self._end.set_result(good)
        await self.task


async def round_of(gate: Gate, *, good: bool = True) -> int:
    """As many requests at a time as there are places, and how many that were."""
    requests = [Request(gate) for _ in range(gate.places)]
    await settle()
    for request in requests:
        await request.end(good=good)
    return len(requests)


def test_places_double_until_the_endpoint_refuses_then_halve_and_grow_by_one_a_round() -> None:
    async def main() -> None:
        gate = Gate(1000)
        first = [await round_of(gate) for _ in range(3)]
        assert first[0] == 8
        assert all(later > before for before, later in pairwise(first))
        before = gate.places
        await round_of(gate, good=False)
        halved = gate.places
        assert halved == before // 2, "one round of refusals halves once"
        grown = [gate.places]
        for _ in range(40):
            await round_of(gate)
            grown.append(gate.places)
        assert all(0 <= later - before <= 1 for before, later in pairwise(grown))
        assert grown[-1] > halved

    run(main())


def test_there_are_never_more_places_than_configured_nor_less_than_one() -> None:
    async def main() -> None:
        gate = Gate(10)
        for _ in range(10):
            assert await round_of(gate) <= 10
        assert gate.places == 10
        for _ in range(10):
            await round_of(gate, good=False)
        assert gate.places == 1
        assert await round_of(gate) == 1

    run(main())


def test_requests_that_use_few_places_prove_nothing() -> None:
    async def main() -> None:
        gate = Gate(100)
        for _ in range(50):
            await Request(gate).end()
        assert gate.places == 8

    run(main())


def test_who_came_first_is_served_first() -> None:
    async def main() -> None:
        gate = Gate(2)
        requests = [Request(gate) for _ in range(5)]
        await settle()
        assert [one.running for one in requests] == [True, True, False, False, False]
        assert gate.queued == 3
        await requests[1].end()
        await settle()
        assert [one.running for one in requests] == [True, True, True, False, False]
        for one in (requests[0], requests[2], *requests[3:]):
            await one.end()
        assert (gate.inflight, gate.queued) == (0, 0)

    run(main())


def test_nobody_gets_past_those_who_wait() -> None:
    async def main() -> None:
        gate = Gate(1)
        first, second = Request(gate), Request(gate)
        await settle()
        first._end.set_result(True)
        third = Request(gate)
        await settle()
        assert (second.running, third.running) == (True, False)
        await second.end()
        await third.end()

    run(main())


@pytest.mark.parametrize("waiting", [True, False])
def test_a_cancelled_request_leaves_no_place_behind(waiting: bool) -> None:
    async def main() -> None:
        gate = Gate(1)
        first, second = Request(gate), Request(gate)
        await settle()
        gone, stays = (second, first) if waiting else (first, second)
        gone.task.cancel()
        await asyncio.gather(gone.task, return_exceptions=True)
        await settle()
        assert (stays.running, gate.inflight, gate.queued) == (True, 1, 0)
        await stays.end()
        assert gate.inflight == 0

    run(main())


def test_a_request_that_is_cancelled_as_it_gets_its_place_gives_it_on() -> None:
    async def main() -> None:
        gate = Gate(1)
        first, second, third = Request(gate), Request(gate), Request(gate)
        await settle()
        first._end.set_result(True)
        await asyncio.sleep(0)  # the place is handed on, and the second request has not seen it yet
        second.task.cancel()
        await settle()
        assert (third.running, gate.inflight) == (True, 1)
        await third.end()

    run(main())


def test_while_the_endpoint_asks_for_silence_nothing_is_sent() -> None:
    async def main() -> None:
        time = Time()
        gate = Gate(10, clock=time.clock, sleep=time.sleep)
        async with gate.place() as place:
            place.limited(5.0)
        assert gate.paused == 5.0
        async with gate.place():
            assert time.now == 105.0
        assert gate.paused == 0

    run(main())


def test_no_pause_is_longer_than_five_minutes() -> None:
    async def main() -> None:
        gate = Gate(10, clock=lambda: 100.0)
        async with gate.place() as place:
            place.limited(86_400.0)
        assert gate.paused == 300.0

    run(main())
