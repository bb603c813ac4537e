"""A server that is told to stop: what is in flight finishes within the grace, and everything else is UNAVAILABLE."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from evald.v1 import evaluation_service_pb2

from ..attempts import Attempt, attempts
from ..loop import run
from ..processes import ServerProcess, server_process
from .live import CONTAINS, EVALUATION, Refusal, Request, request, spec, until

CALLERS_OF_A_KIND = 16
# Other tests run beside these.
SECONDS_BEYOND_THE_GRACE = 6

# Each evaluation leaves a file when it begins, and ends when the test lets it.
WAITING = """
import asyncio, pathlib, tempfile
import evald


async def wait(ctx):
    tempfile.mkstemp(dir={begun!r})
    while not pathlib.Path({release!r}).exists():
        await asyncio.sleep(0.02)
    return True

waiting = evald.define_evaluator(type="acme.waiting", kind=evald.ASSERTION, evaluate=wait)
"""

Call = Callable[[grpc.aio.Channel, Request], Awaitable[None]]


async def unary(channel: grpc.aio.Channel, asked: Request) -> None:
    data = evaluation_service_pb2.EvaluateUnaryRequest(request=asked).SerializeToString()
    await channel.unary_unary(EVALUATION + "EvaluateUnary")(data)


async def stream(channel: grpc.aio.Channel, asked: Request) -> None:
    async for _ in channel.unary_stream(EVALUATION + "Evaluate")(asked.SerializeToString()):
        pass


async def session(channel: grpc.aio.Channel, asked: Request) -> None:
    opened = evaluation_service_pb2.EvaluateSessionRequest()
    opened.open.evaluators.extend(asked.evaluators)
    turn = evaluation_service_pb2.EvaluateSessionRequest()
    turn.turn.turn_id = 1
    turn.turn.new_messages.extend(asked.context.messages)
    frames = [opened.SerializeToString(), turn.SerializeToString()]
    async for _ in channel.stream_stream(EVALUATION + "EvaluateSession")(iter(frames)):
        pass


async def batch(channel: grpc.aio.Channel, asked: Request) -> None:
    message = evaluation_service_pb2.EvaluateBatchRequest()
    message.open.evaluators.extend(asked.evaluators)
    message.items.add(item_id="one").context.CopyFrom(asked.context)
    async for _ in channel.stream_stream(EVALUATION + "EvaluateBatch")(iter([message.SerializeToString()])):
        pass


CALLS: tuple[Call, ...] = (unary, stream, session, batch)


def connect(server: ServerProcess) -> grpc.aio.Channel:
    """A connection of its own: by default all channels of a process share one."""
    return grpc.aio.insecure_channel(server.grpc, options=[("grpc.use_local_subchannel_pool", 1)])


async def outcome(call: Call, server: ServerProcess, asked: Request) -> str:
    async with connect(server) as channel:
        try:
            await call(channel, asked)
        except grpc.aio.AioRpcError as error:
            refused = Refusal(error)
            return f"{error.code().name} {refused.reason} retry in {refused.retry}"
    return "OK"


async def health(server: ServerProcess) -> AsyncIterator[int]:
    """What the server says of itself, as it changes; at its end the status code."""
    async with connect(server) as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        try:
            async for data in watch:
                yield health_pb2.HealthCheckResponse.FromString(data).status
        except grpc.aio.AioRpcError as error:
            yield -error.code().value[0]


@pytest.mark.parametrize(
    ("grace", "released", "wanted"),
    [
        pytest.param(30.0, True, "OK", id="those in flight finish within the grace"),
        pytest.param(0.5, False, "UNAVAILABLE DRAINING retry in 1.0", id="the grace is too short for them"),
        pytest.param(0.0, False, "UNAVAILABLE DRAINING retry in 1.0", id="no grace"),
    ],
)
def test_calls_in_flight_finish_or_are_unavailable(
    tmp_path: Path, grace: float, released: bool, wanted: str
) -> None:
    asked = request(spec("acme.waiting"))

    async def main(server: ServerProcess, begun: Path, release: Callable[[], None], attempt: Attempt) -> None:
        states = health(server)
        assert await anext(states) == health_pb2.HealthCheckResponse.SERVING
        calls = [asyncio.create_task(outcome(call, server, asked)) for call in CALLS * CALLERS_OF_A_KIND]
        await until(lambda: len(list(begun.iterdir())) == len(calls))
        server.process.send_signal(signal.SIGTERM)
        assert await anext(states) == health_pb2.HealthCheckResponse.NOT_SERVING
        # A new call is refused by the server itself, which tells when to come back.
        if released:
            assert await outcome(unary, server, asked) == "UNAVAILABLE DRAINING retry in 1.0"
            release()
        with attempt:
            assert Counter(await asyncio.gather(*calls)) == {wanted: len(calls)}
            assert await anext(states) == -grpc.StatusCode.UNAVAILABLE.value[0]
            assert await asyncio.to_thread(server.process.wait, 30) == 0

    for number, attempt in enumerate(attempts(SECONDS_BEYOND_THE_GRACE + (0 if released else grace), most=3)):
        place = tmp_path / str(number)
        begun, release, plugin = place / "begun", place / "release", place / "plugin.py"
        begun.mkdir(parents=True)
        plugin.write_text(WAITING.format(begun=str(begun), release=str(release)))
        with server_process("--plugin", str(plugin), EVALD_DRAIN_GRACE=str(grace)) as server:
            run(main(server, begun, release.touch, attempt))
            assert "Traceback" not in server.log()


@pytest.mark.parametrize("again", [False, True], ids=["callers that stop", "callers that call again at once"])
def test_calls_that_keep_coming_are_answered_or_unavailable(again: bool) -> None:
    async def caller(server: ServerProcess, seen: "Counter[str]") -> None:
        data = evaluation_service_pb2.EvaluateUnaryRequest(request=request(CONTAINS)).SerializeToString()
        async with connect(server) as channel:
            method = channel.unary_unary(EVALUATION + "EvaluateUnary")
            while True:
                try:
                    await method(data)
                    seen["OK"] += 1
                except grpc.aio.AioRpcError as error:
                    refused = Refusal(error)
                    seen[f"{error.code().name} {refused.reason}"] += 1
                    # Without a reason nobody answers any more.
                    if not again or not refused.reason:
                        return

    async def main(server: ServerProcess, attempt: Attempt) -> "Counter[str]":
        seen: Counter[str] = Counter()
        callers = [asyncio.create_task(caller(server, seen)) for _ in range(64)]
        await until(lambda: seen["OK"] > len(callers))
        server.process.send_signal(signal.SIGTERM)
        with attempt:
            assert await asyncio.to_thread(server.process.wait, 30) == 0
        await asyncio.gather(*callers)
        return seen

    for attempt in attempts(SECONDS_BEYOND_THE_GRACE, most=3):
        with server_process() as server:
            seen = run(main(server, attempt))
        assert seen["UNAVAILABLE DRAINING"] >= 1
        assert set(seen) <= {"OK", "UNAVAILABLE DRAINING", "UNAVAILABLE "}, seen
