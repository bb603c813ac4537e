"""Batches of calls, by a clock that the tests turn and over a real channel."""

import asyncio
import logging
from contextvars import ContextVar
from typing import Any

import grpc
import pytest

from evald.evaluator import define_evaluator
from evald.result import Kind
from evald.v1 import evaluation_service_pb2
from evald_server.rpc import batching
from evald_server.rpc.batching import CallBatcher

from ..loop import run
from .live import CONTAINS, Live, refusal, request, serving, spec

_Frame = evaluation_service_pb2.EvaluateSessionRequest

MICROSECOND, MILLISECOND = 1_000, 1_000_000


class Clock:
    """Nanoseconds, which pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Log:
    """What was run, in order, and how many were run without the loop getting a turn."""

    def __init__(self, batcher: CallBatcher, clock: Clock, takes: int = 0) -> None:
        self.batcher = batcher
        self.clock = clock
        self.takes = takes
        self.done: list[Any] = []

    def work(self, name: Any) -> Any:
        self.done.append(name)
        self.clock.now += self.takes
        return name

    def call(self, name: Any) -> Any:
        return self.batcher.submit(self.work, name)


async def quiet(clock: Clock) -> None:
    """Let the time pass after which no further call is waited for."""
    clock.now += MILLISECOND
    for _ in range(3):
        await asyncio.sleep(0)


async def together(log: Log, count: int) -> list[Any]:
    """Have so many calls come at the same time, and go on when all are answered."""
    answers = [log.call(name) for name in range(count)]
    await quiet(log.clock)
    assert len(log.done) >= count, "what is held back is run once nothing more comes"
    return [await answer if isinstance(answer, asyncio.Future) else answer for answer in answers]


async def used_to_sixteen() -> Log:
    """Of a batcher that has learned to wait for sixteen."""
    clock = Clock()
    log = Log(CallBatcher(clock=clock), clock)
    for _ in range(10):
        await together(log, 16)
    return log


async def test_calls_that_come_one_by_one_are_hardly_ever_held_back() -> None:
    clock = Clock()
    log = Log(CallBatcher(clock=clock), clock)
    held = 0
    for name in range(5000):
        answer = log.call(name)
        if isinstance(answer, asyncio.Future):
            held += 1
            assert not answer.done()
            await quiet(clock)
            answer = await answer
        assert answer == name
    # At the calls 1, 3, 6, 11, ..., with twice as many between, and every 1,024 in the end.
    assert 10 < held < 16
    assert log.done == list(range(5000))


async def test_two_or_three_calls_at_a_time_are_not_worth_it() -> None:
    clock = Clock()
    log = Log(CallBatcher(clock=clock), clock)
    for _ in range(20):
        await together(log, 3)
    answers = [log.call(name) for name in range(3)]
    assert answers == [0, 1, 2]


async def test_many_calls_are_run_together_in_the_order_they_came_in() -> None:
    clock = Clock()
    log = Log(CallBatcher(clock=clock), clock)
    for _ in range(10):
        assert await together(log, 16) == list(range(16))
    log.done.clear()
    answers = [log.call(name) for name in range(15)]
    assert log.done == []
    answers.append(log.call(15))
    assert log.done == list(range(16)), "the last one that is waited for runs them all"
    assert [await answer for answer in answers] == list(range(16))


async def test_it_waits_for_as_many_as_came_together_and_learns_when_they_are_fewer_or_more() -> None:
    log = await used_to_sixteen()
    for _ in range(10):
        await together(log, 5)
    log.done.clear()
    for name in range(5):
        log.call(name)
    assert log.done == list(range(5)), "five are enough by now"
    log.done.clear()
    for _ in range(2048):
        await together(log, 9)
    log.done.clear()
    for name in range(8):
        log.call(name)
    assert log.done == [], "nine are wanted by now"
    log.call(8)
    assert log.done == list(range(9))


async def test_no_call_is_held_back_for_ever_while_others_keep_coming() -> None:
    log = await used_to_sixteen()
    log.done.clear()
    began = log.clock.now
    for name in range(15):
        log.call(name)
        log.clock.now += 190 * MICROSECOND
        await asyncio.sleep(0)
        if log.done:
            break
    assert 0 in log.done
    assert log.clock.now - began <= 2.2 * MILLISECOND


async def test_what_goes_wrong_is_the_callers_own() -> None:
    log = await used_to_sixteen()

    def broken() -> None:
        raise ValueError("broken")

    def worse() -> None:
        raise StopIteration

    answers = [
        log.call("before"),
        log.batcher.submit(broken),
        log.batcher.submit(worse),
        log.call("after"),
    ]
    await quiet(log.clock)
    assert await answers[0] == "before"
    assert await answers[3] == "after"
    with pytest.raises(ValueError, match=r"^broken$"):
        await answers[1]
    with pytest.raises(RuntimeError, match=r"^StopIteration\(\)$"):
        await answers[2]


async def test_a_call_that_is_cancelled_while_it_is_held_back_is_not_run() -> None:
    log = await used_to_sixteen()
    log.done.clear()
    first, second = log.call("first"), log.call("second")
    first.cancel()
    await quiet(log.clock)
    assert log.done == ["second"]
    assert await second == "second"


async def test_what_a_call_sets_in_its_context_stays_with_it() -> None:
    own: ContextVar[str] = ContextVar("own", default="nothing")

    log = await used_to_sixteen()

    def leave(word: str) -> str:
        before = own.get()
        own.set(word)
        return before

    answers = []
    for name in range(16):
        token = own.set(f"caller {name}")
        answers.append(log.batcher.submit(leave, "left behind"))
        own.reset(token)
    assert [await answer for answer in answers] == [f"caller {name}" for name in range(16)]
    assert own.get() == "nothing"


async def test_a_caller_that_goes_away_just_after_its_turn_leaves_nothing_behind() -> None:
    discarded: list[str] = []
    log = await used_to_sixteen()
    log.batcher._discard = discarded.append

    async def call(name: int) -> Any:
        return await log.batcher.result(log.batcher.submit(log.work, name))

    calls = [asyncio.ensure_future(call(name)) for name in range(16)]
    log.done.clear()
    await asyncio.sleep(0)
    assert log.done == list(range(16)), "all had their turn"
    calls[3].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers.pop(3), asyncio.CancelledError)
    assert answers == [name for name in range(16) if name != 3]
    assert discarded == [3]


async def test_calls_that_take_long_leave_the_loop_its_turns() -> None:
    log = await used_to_sixteen()
    log.done.clear()
    log.takes = 400 * MICROSECOND
    answers = [log.call(name) for name in range(16)]
    asyncio.get_running_loop().call_soon(log.done.append, "somebody else")
    assert log.done == [0, 1, 2]
    assert [await answer for answer in answers] == list(range(16))
    assert "somebody else" in log.done[3:7]


_CALLERS, _CALLS = 24, 40


def test_callers_at_the_same_time_get_their_own_answers_whatever_the_others_send(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # pytest keeps what is logged, tracebacks and the calls in them included, and gRPC counts those as open.
    caplog.set_level(logging.CRITICAL, "evald.engine")
    sizes: list[int] = []
    go = CallBatcher._go

    def counted(self: CallBatcher) -> None:
        sizes.append(len(self._held))
        go(self)

    monkeypatch.setattr(CallBatcher, "_go", counted)
    # Long enough that calls come together on a slow machine too.
    monkeypatch.setattr(batching, "_QUIET_NANOS", 5_000_000)
    monkeypatch.setattr(batching, "_LONGEST_NANOS", 20_000_000)

    def break_down(ctx: Any) -> bool:
        raise RuntimeError("broken on purpose")

    breaking = define_evaluator(type="breaking", kind=Kind.ASSERTION, evaluate=break_down, inline=True)

    async def unary(live: Live, caller: int) -> None:
        for number in range(_CALLS):
            word = f"{caller}-{number}."
            specs = spec("contains", {"text": word}), spec("contains", {"text": "another"})
            summary = (await live.unary(request(*specs, answer=word))).summary
            assert [result.success for result in summary.results] == [True, False]

    async def streamed(live: Live, caller: int) -> None:
        for number in range(_CALLS):
            word = f"{caller}-{number}."
            (answer,) = await live.stream(request(spec("contains", {"text": word}), answer=word))
            assert answer.summary.success

    async def session(live: Live, caller: int) -> None:
        frames = [_Frame(), *(_Frame() for _ in range(_CALLS))]
        frames[0].open.evaluators.append(spec("contains", {"text": f"{caller}-"}))
        for number, frame in enumerate(frames[1:], 1):
            frame.turn.turn_id = number
            frame.turn.new_messages.add(role="assistant", text=f"{caller}-{number}")
        *answers, last = await live.session(frames)
        assert [answer.turn_id for answer in answers] == list(range(1, _CALLS + 1))
        assert last.session_summary.success

    async def wrong(live: Live, _caller: int) -> None:
        for _ in range(_CALLS):
            assert "contain" in (await refusal(live.unary(request(spec("contain"))))).message

    async def broken(live: Live, _caller: int) -> None:
        for _ in range(_CALLS):
            (result,) = (await live.unary(request(spec("breaking")))).summary.results
            assert result.error.code == "EVALUATOR_EXCEPTION"

    async def leaving(live: Live, _caller: int) -> None:
        # A channel of its own: gRPC's server refuses some calls of a connection that resets many.
        async with grpc.aio.insecure_channel(live.app.address) as channel:
            own = Live(live.app, channel)
            for _ in range(_CALLS):
                call = asyncio.ensure_future(own.unary(request(CONTAINS)))
                await asyncio.sleep(0.001)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)

    async def main() -> None:
        async with serving([breaking]) as live:
            kinds = [unary, streamed, session, wrong, broken, leaving]
            async with asyncio.TaskGroup() as tasks:
                for caller in range(_CALLERS):
                    tasks.create_task(kinds[caller % len(kinds)](live, caller))

    run(main())
    assert max(sizes) > 3, "none was held back: this shows nothing of what it should"
