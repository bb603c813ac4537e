"""Calls that are over leave nothing behind, however they ended.

gRPC counts a call as open until the last reference to it is gone, and refuses all further calls of a
connection with too many open: a call that waits for the garbage collector would keep its caller out.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from evald.evaluator import define_evaluator
from evald.result import Kind
from evald.v1 import evaluation_service_pb2
from tests.thorough import first_of

from .live import (
    CATALOG,
    CONTAINS,
    EVALUATION,
    Live,
    no_collector,
    open_calls,
    refusal,
    request,
    serving,
    spec,
    until,
)

_Frame = evaluation_service_pb2.EvaluateSessionRequest

# More than the server allows on one connection at a time.
_CALLS, _LIMIT = 40, 20


async def _sleeping(_ctx: Any) -> bool:
    await asyncio.sleep(60)
    return True


async def _breaking(_ctx: Any) -> bool:
    raise RuntimeError("broken on purpose")


def _raising(_ctx: Any) -> bool:
    raise RuntimeError("broken on purpose")


def _lying(_ctx: Any) -> Any:
    return object()


EVALUATORS = [
    define_evaluator(type=name, kind=Kind.ASSERTION, evaluate=function)
    for name, function in (("sleeping", _sleeping), ("breaking", _breaking), ("breaking-thread", _raising))
] + [
    define_evaluator(type=name, kind=Kind.ASSERTION, evaluate=function, inline=True)
    for name, function in (("breaking-inline", _raising), ("lying-inline", _lying))
]


async def answered(live: Live) -> None:
    assert (await live.unary(request(CONTAINS))).summary.success


async def streamed(live: Live) -> None:
    assert (await live.stream(request(CONTAINS)))[-1].summary.success


async def refused(live: Live) -> None:
    assert (await refusal(live.unary(request(spec("contain"))))).code is grpc.StatusCode.NOT_FOUND


async def unreadable(live: Live) -> None:
    code = (await refusal(live.raw(EVALUATION + "Evaluate", b"\xff"))).code
    assert code is grpc.StatusCode.INVALID_ARGUMENT


async def not_there(live: Live) -> None:
    code = (await refusal(live.raw(EVALUATION + "Evaluat", b""))).code
    assert code is grpc.StatusCode.UNIMPLEMENTED


async def broken(live: Live) -> None:
    (result,) = (await live.unary(request(spec("breaking")))).summary.results
    assert result.error.code == "EVALUATOR_EXCEPTION"


async def broken_in_a_thread(live: Live) -> None:
    (result,) = (await live.unary(request(spec("breaking-thread")))).summary.results
    assert result.error.code == "EVALUATOR_EXCEPTION"


async def broken_inline(live: Live) -> None:
    (result,) = (await live.unary(request(spec("breaking-inline")))).summary.results
    assert result.error.code == "EVALUATOR_EXCEPTION"


async def lying_inline(live: Live) -> None:
    (result,) = (await live.unary(request(spec("lying-inline")))).summary.results
    assert result.error.code == "CONTRACT_VIOLATION"


async def too_late(live: Live) -> None:
    (answer,) = await asyncio.gather(
        live.unary(request(spec("sleeping")), timeout=0.03), return_exceptions=True
    )
    # Whichever clock is faster, the server's or the caller's.
    if isinstance(answer, grpc.aio.AioRpcError):
        assert answer.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    else:
        assert answer.summary.results[0].error.code == "TIMEOUT"


async def cancelled(live: Live) -> None:
    call = live.channel.unary_unary(EVALUATION + "EvaluateUnary")(
        evaluation_service_pb2.EvaluateUnaryRequest(request=request(spec("sleeping"))).SerializeToString()
    )
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


def _opened() -> bytes:
    frame = _Frame()
    frame.open.evaluators.append(CONTAINS)
    return frame.SerializeToString()


def _turn() -> bytes:
    frame = _Frame()
    frame.turn.turn_id = 1
    frame.turn.new_messages.add(role="assistant", text="hello")
    return frame.SerializeToString()


async def session(live: Live) -> None:
    stream = live.channel.stream_stream(EVALUATION + "EvaluateSession")(iter([_opened(), _turn()]))
    assert len([data async for data in stream]) == 2


async def refused_session(live: Live) -> None:
    stream = live.channel.stream_stream(EVALUATION + "EvaluateSession")(iter([_turn()]))
    code = (await refusal(stream.read())).code
    assert code is grpc.StatusCode.INVALID_ARGUMENT


async def cancelled_session(live: Live) -> None:
    stream = live.channel.stream_stream(EVALUATION + "EvaluateSession")()
    await stream.write(_opened())
    await stream.write(_turn())
    await stream.read()
    stream.cancel()


async def cancelled_watch(live: Live) -> None:
    stream = live.channel.unary_stream(CATALOG + "WatchEvaluatorTypes")(b"")
    await stream.read()
    stream.cancel()


async def health_of_nobody(live: Live) -> None:
    asked = health_pb2.HealthCheckRequest(service="nobody").SerializeToString()
    code = (await refusal(live.raw("/grpc.health.v1.Health/Check", asked))).code
    assert code is grpc.StatusCode.NOT_FOUND


async def refused_batch(live: Live) -> None:
    stream = live.channel.stream_stream(EVALUATION + "EvaluateBatch")(iter([b"\xff"]))
    assert (await refusal(stream.read())).code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "way",
    first_of(
        [
            answered,
            refused,
            broken,
            cancelled,
            session,
            streamed,
            unreadable,
            not_there,
            broken_in_a_thread,
            broken_inline,
            lying_inline,
            too_late,
            refused_session,
            cancelled_session,
            cancelled_watch,
            health_of_nobody,
            refused_batch,
        ],
        5,
    ),
)
async def test_a_call_that_is_over_is_gone(way: Callable[[Live], Awaitable[None]]) -> None:
    async with serving(EVALUATORS, max_concurrent_streams=_LIMIT) as live:
        with no_collector():
            before = open_calls()
            for _ in range(_CALLS):
                await way(live)
            await until(lambda: open_calls() <= before + 1)  # the server hears of the last one's end
