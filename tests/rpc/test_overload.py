"""A server that has more to do than it takes on."""

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from evald.evaluator import define_evaluator
from evald.result import Kind
from evald.scope import Scope
from evald_server.call_errors import CallError
from evald_server.fair_slots import FairSlots, QueueFull
from evald_server.rpc.admission import Admission, check_deadline

from ..loop import run
from .live import CONTAINS, Live, Refusal, refusal, request, serving, spec, until


class _Held:
    """An evaluator that answers when the test lets it."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.definition = define_evaluator(type="held", kind=Kind.ASSERTION, evaluate=self._evaluate)

    async def _evaluate(self, _ctx: Any) -> bool:
        while not self.released.is_set():  # noqa: ASYNC110 - it runs in another loop than the test
            await asyncio.sleep(0.005)
        return True


def test_overload_is_refused_at_once_with_a_time_to_come_back() -> None:
    async def call(live: Live, held: _Held) -> str:
        try:
            await live.unary(request(spec("held")))
        except grpc.aio.AioRpcError as error:
            refused = Refusal(error)
            assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert refused.retry
            assert not held.released.is_set(), "it was refused before a place was free"
            return refused.reason
        return "OK"

    async def main() -> list[str]:
        held = _Held()
        async with serving([held.definition], max_inflight=4, max_queued=4, max_queue_seconds=30) as live:
            calls = [asyncio.create_task(call(live, held)) for _ in range(20)]
            await until(lambda: sum(task.done() for task in calls) == 12)
            assert (await live.unary(request(CONTAINS))).summary.success, (
                "what waits for nothing needs no place"
            )
            held.released.set()
            return await asyncio.gather(*calls)

    reasons = run(main())
    assert (reasons.count("OK"), reasons.count("OVERLOADED")) == (8, 12)


async def test_who_stands_in_line_for_too_long_is_refused() -> None:
    held = _Held()
    async with serving([held.definition], max_inflight=1, max_queued=1, max_queue_seconds=0.1) as live:
        busy = asyncio.create_task(live.unary(request(spec("held"))))
        await until(lambda: live.app.admission.inflight == 1)
        began = time.monotonic()
        found = await refusal(live.unary(request(spec("held"))))
        assert time.monotonic() - began >= 0.1
        assert found.reason == "OVERLOADED"
        assert "no slot within" in found.message
        held.released.set()
        assert (await busy).summary.success


async def test_a_search_that_is_refused_for_overload_is_not_left_half_begun() -> None:
    # Warnings are errors: one says that a coroutine was never awaited.
    costly = request(spec("regex", {"pattern": "(a|b){1,40}c", "mustMatch": False}))
    costly.context.messages.add(role="assistant", text="a" * 20_000)

    held = _Held()
    async with serving([held.definition], max_inflight=1, max_queued=1, max_queue_seconds=30) as live:
        assert (await live.unary(costly)).summary.success
        busy = [asyncio.create_task(live.unary(request(spec("held")))) for _ in range(2)]
        await until(lambda: live.app.admission.queued)
        assert (await refusal(live.unary(costly))).reason == "OVERLOADED"
        gc.collect()
        held.released.set()
        await asyncio.gather(*busy)


async def test_principals_take_turns() -> None:
    slots, order = FairSlots(1), []

    async def work(principal: str) -> None:
        async with slots.slot(principal):
            order.append(principal)

    async with slots.slot("first"):
        tasks = [asyncio.create_task(work(principal)) for principal in "aaaabbc"]
        await until(lambda: slots.waiting == 7, 60)
        # One that is cancelled and one that is cancelled as it gets the slot take no turn.
        tasks[0].cancel()
        await until(lambda: slots.waiting == 6, 60)
        tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert "".join(order) == "abcab"
    assert (slots.taken, slots.waiting) == (0, 0)


async def test_the_queue_is_limited_for_all_together_and_is_free_again_after_each_wait() -> None:
    slots = FairSlots(1, queue=2)
    for _ in range(3):
        async with slots.slot("first"):
            waiting = [asyncio.create_task(slots.acquire(principal)) for principal in "ab"]
            patient = asyncio.create_task(slots.acquire("a", patient=True))
            await until(lambda: slots.waiting == 3, 60)
            with pytest.raises(QueueFull):
                await slots.acquire("c")
            waiting.pop().cancel()
            await until(lambda: slots.waiting == 2, 60)
        for task in (*waiting, patient):
            await task
            slots.release("a")
        assert (slots.taken, slots.waiting) == (0, 0)


@pytest.mark.parametrize(
    ("seconds", "waits", "text"),
    [
        (None, True, ""),
        (0.06, True, ""),
        (0.05, True, "50 ms left"),
        (0.01, False, ""),
        (0.0, False, "had passed before the call began"),
        (0.0, True, "had passed before the call began"),
    ],
)
def test_a_call_needs_time_for_its_response(seconds: float | None, waits: bool, text: str) -> None:
    plan: Any = SimpleNamespace(waits=waits)
    if not text:
        check_deadline(plan, seconds)
        return
    with pytest.raises(CallError, match=text) as refused:
        check_deadline(plan, seconds)
    assert refused.value.reason == "DEADLINE_TOO_SHORT"


class _Timed:
    """An evaluation run that notes its time limit."""

    def __init__(self) -> None:
        self.plan = SimpleNamespace(timeout=None)
        self.seconds: float | None = None
        self.abandoned = False

    async def run_pending(self, seconds: float | None, *_: Any) -> AsyncIterator[list[int]]:
        self.seconds = seconds
        yield []

    def abandon(self) -> None:
        self.abandoned = True


async def test_the_time_in_the_queue_counts_for_those_who_have_a_deadline() -> None:
    admission = Admission(1, 8, 60.0, default_timeout=20.0)

    async def play(run: Any, *time_remaining: Any) -> None:
        async for _ in admission.run_pending(run, Scope(evaluation_id="1"), *time_remaining):
            pass

    impatient, unlimited, patient, late = (_Timed() for _ in range(4))
    first = admission.run_pending(cast("Any", _Timed()), Scope(evaluation_id="1"))
    assert await anext(first) == []
    waiting = [
        asyncio.create_task(play(impatient, lambda: 10.0)),
        asyncio.create_task(play(unlimited, lambda: None)),
        asyncio.create_task(play(patient)),
    ]
    await until(lambda: admission.queued == 3, 60)
    with pytest.raises(CallError, match="no time is left"):
        await play(late, lambda: 0.01)
    await asyncio.sleep(0.2)
    await first.aclose()
    await asyncio.gather(*waiting)
    assert impatient.seconds is not None
    assert unlimited.seconds is not None
    assert impatient.seconds <= 9.0 - 0.2
    assert unlimited.seconds <= 18.0 - 0.2
    assert patient.seconds == 18.0
    assert (late.abandoned, late.seconds) == (True, None)
    assert (admission.inflight, admission.queued) == (0, 0)


async def test_who_came_first_is_evaluated_first_and_who_left_takes_no_slot() -> None:
    admission, order = Admission(1, 2, 60.0), list[str]()

    async def play(name: str, *time_remaining: Any) -> None:
        async for _ in admission.run_pending(
            cast("Any", _Timed()), Scope(evaluation_id="1"), *time_remaining
        ):
            order.append(name)

    first = admission.run_pending(cast("Any", _Timed()), Scope(evaluation_id="1"))
    await anext(first)
    # Items of batches and turns of sessions wait beside the limited queue.
    ways: list[tuple[Any, ...]] = [(), (), (lambda: 10.0,), (lambda: 10.0,)]
    waiting = [asyncio.create_task(play(name, *way)) for name, way in zip("abcd", ways, strict=True)]
    await until(lambda: admission.queued == 4, 60)
    with pytest.raises(CallError, match="the queue are full"):
        await play("e", lambda: 10.0)
    waiting[1].cancel()
    await first.aclose()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == ["a", "c", "d"]
    assert (admission.inflight, admission.queued) == (0, 0)
