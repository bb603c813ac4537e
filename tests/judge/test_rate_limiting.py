"""An endpoint gets as many requests at a time as it can take: of each principal first come first served, in turns."""

import asyncio
from itertools import pairwise

import pytest

from evald_server.auth.current_call import PRINCIPAL
from evald_server.auth.principal import Principal
from evald_server.judge.rate_limiting import AdaptiveLimiter


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
    """A request that lasts until it is told how it ends. who: its principal; "" for that of all callers."""

    def __init__(self, limiter: AdaptiveLimiter, who: str = "") -> None:
        self.running = False
        self._end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run(limiter, who))

    async def _run(self, limiter: AdaptiveLimiter, who: str) -> None:
        if who:
            PRINCIPAL.set(Principal(who, frozenset()))
        async with limiter.slot() as slot:
            self.running = True
            if await self._end:
                slot.succeeded = True
            else:
                slot.overloaded(0.0)

    async def end(self, *, good: bool = True) -> None:
        self._end.set_result(good)
        await self.task


async def round_of(limiter: AdaptiveLimiter, *, good: bool = True) -> int:
    """As many requests at a time as there are places, and how many that were."""
    requests = [Request(limiter) for _ in range(limiter.limit)]
    await settle()
    for request in requests:
        await request.end(good=good)
    return len(requests)


async def test_places_double_until_the_endpoint_refuses_then_halve_and_grow_by_one_a_round() -> None:
    limiter = AdaptiveLimiter(1000)
    first = [await round_of(limiter) for _ in range(3)]
    assert first[0] == 8
    assert all(later > before for before, later in pairwise(first))
    before = limiter.limit
    await round_of(limiter, good=False)
    halved = limiter.limit
    assert halved == before // 2, "one round of refusals halves once"
    grown = [limiter.limit]
    for _ in range(40):
        await round_of(limiter)
        grown.append(limiter.limit)
    assert all(0 <= later - before <= 1 for before, later in pairwise(grown))
    assert grown[-1] > halved


async def test_there_are_never_more_places_than_configured_nor_less_than_one() -> None:
    limiter = AdaptiveLimiter(10)
    for _ in range(10):
        assert await round_of(limiter) <= 10
    assert limiter.limit == 10
    for _ in range(10):
        await round_of(limiter, good=False)
    assert limiter.limit == 1
    assert await round_of(limiter) == 1


async def test_requests_that_use_few_places_prove_nothing() -> None:
    limiter = AdaptiveLimiter(100)
    for _ in range(50):
        await Request(limiter).end()
    assert limiter.limit == 8


async def test_who_came_first_is_served_first() -> None:
    limiter = AdaptiveLimiter(2)
    requests = [Request(limiter) for _ in range(5)]
    await settle()
    assert [one.running for one in requests] == [True, True, False, False, False]
    assert limiter.queued == 3
    await requests[1].end()
    await settle()
    assert [one.running for one in requests] == [True, True, True, False, False]
    for one in (requests[0], requests[2], *requests[3:]):
        await one.end()
    assert (limiter.inflight, limiter.queued) == (0, 0)


async def test_nobody_gets_past_those_who_wait() -> None:
    limiter = AdaptiveLimiter(1)
    first, second = Request(limiter), Request(limiter)
    await settle()
    first._end.set_result(True)
    third = Request(limiter)
    await settle()
    assert (second.running, third.running) == (True, False)
    await second.end()
    await third.end()


async def test_principals_take_turns() -> None:
    limiter = AdaptiveLimiter(1)
    first = Request(limiter, "a")
    await settle()
    waiting = [Request(limiter, who) for who in "aab"]
    await settle()
    await first.end()
    await settle()
    assert [one.running for one in waiting] == [True, False, False]
    await waiting[0].end()
    await settle()
    assert [one.running for one in waiting] == [True, False, True]
    await waiting[2].end()
    await waiting[1].end()


async def test_places_also_grow_for_one_principal_which_may_have_three_quarters_of_them() -> None:
    limiter = AdaptiveLimiter(64)
    requests = [Request(limiter, "a") for _ in range(400)]
    await settle()
    assert (limiter.inflight, limiter.limit) == (6, 8)
    for request in requests[:300]:
        await request.end()
    await settle()
    assert (limiter.inflight, limiter.limit) == (48, 64)
    other = Request(limiter, "b")
    await settle()
    assert other.running
    for request in (*requests[300:], other):
        await request.end()
    assert (limiter.inflight, limiter.queued) == (0, 0)


async def test_places_that_are_lost_are_not_handed_on() -> None:
    limiter = AdaptiveLimiter(8)
    requests = [Request(limiter) for _ in range(12)]
    await settle()
    await requests[0].end(good=False)
    await settle()
    assert (limiter.limit, limiter.inflight, limiter.queued) == (4, 7, 4)
    for request in requests[1:]:
        await request.end()
    assert (limiter.inflight, limiter.queued) == (0, 0)


@pytest.mark.parametrize("waiting", [True, False])
async def test_a_cancelled_request_leaves_no_place_behind(waiting: bool) -> None:
    limiter = AdaptiveLimiter(1)
    first, second = Request(limiter), Request(limiter)
    await settle()
    gone, stays = (second, first) if waiting else (first, second)
    gone.task.cancel()
    await asyncio.gather(gone.task, return_exceptions=True)
    await settle()
    assert (stays.running, limiter.inflight, limiter.queued) == (True, 1, 0)
    await stays.end()
    assert limiter.inflight == 0


async def test_a_request_that_is_cancelled_as_it_gets_its_place_gives_it_on() -> None:
    limiter = AdaptiveLimiter(1)
    first, second, third = Request(limiter), Request(limiter), Request(limiter)
    await settle()
    first._end.set_result(True)
    await asyncio.sleep(0)  # the place is handed on, and the second request has not seen it yet
    second.task.cancel()
    await settle()
    assert (third.running, limiter.inflight) == (True, 1)
    await third.end()


async def test_while_the_endpoint_asks_for_silence_nothing_is_sent() -> None:
    time = Time()
    limiter = AdaptiveLimiter(10, clock=time.clock, sleep=time.sleep)
    async with limiter.slot() as slot:
        slot.overloaded(5.0)
    assert limiter.pause_seconds == 5.0
    async with limiter.slot():
        assert time.now == 105.0
    assert limiter.pause_seconds == 0


async def test_no_pause_is_longer_than_five_minutes() -> None:
    limiter = AdaptiveLimiter(10, clock=lambda: 100.0)
    async with limiter.slot() as slot:
        slot.overloaded(86_400.0)
    assert limiter.pause_seconds == 300.0
