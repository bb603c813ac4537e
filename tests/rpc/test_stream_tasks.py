"""Turns of the event loop, and the tasks of a stream, by themselves."""

import asyncio
import time
from typing import Any

import pytest

from evald_server.monitoring import Telemetry
from evald_server.rpc.health import HEALTH
from evald_server.rpc.server import RpcServer, RpcStream
from evald_server.rpc.stream_tasks import StreamTasks


async def test_a_task_that_was_cancelled_by_foreign_code_ends_the_stream_as_a_fault() -> None:
    tasks, some = StreamTasks(), set[asyncio.Task[None]]()

    async def cancelled() -> None:
        raise asyncio.CancelledError

    tasks.spawn(some, cancelled())
    with pytest.raises(RuntimeError, match="cancelled"):
        await tasks.any_of(some)
    assert not some


async def test_tasks_that_closing_has_cancelled_are_no_fault() -> None:
    tasks, some = StreamTasks(), set[asyncio.Task[None]]()
    tasks.spawn(some, asyncio.sleep(60))
    await asyncio.sleep(0)
    await tasks.close()
    assert not some
    assert not tasks._all
    tasks.check()


def rpc_server() -> RpcServer:
    return RpcServer(Telemetry(), max_message_bytes=1000, max_streams=30)


async def test_pieces_that_yield_to_calls_are_done_one_at_a_time() -> None:
    rpc, rounds = rpc_server(), 0
    seen: list[int] = []

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def piece() -> None:
        await rpc.yield_to_calls()
        seen.append(rounds)

    counting = asyncio.create_task(count())
    gone, *pieces = [asyncio.create_task(piece()) for _ in range(64)]
    gone.cancel()
    await asyncio.wait_for(asyncio.gather(*pieces), 30)
    counting.cancel()
    assert len(set(seen)) == 63  # each in an iteration of its own
    assert seen == sorted(seen)


async def test_beside_calls_there_is_time_for_one_between_two_pieces() -> None:
    rpc = rpc_server()

    async def check(_request: Any) -> bytes:
        return b"data"

    called: Any = rpc.service(HEALTH, {"Check": check})["Check"].unary_unary
    assert await called(b"", None) == b"data"
    began = time.perf_counter()
    await asyncio.gather(*(rpc.yield_to_calls() for _ in range(20)))
    assert time.perf_counter() - began > 0.015


async def test_of_watches_that_begin_at_once_one_sends_at_a_time() -> None:
    rpc, iteration = rpc_server(), 0
    senders: dict[int, set[int]] = {}

    class Caller:
        def __init__(self, number: int) -> None:
            self.number = number

        async def write(self, _message: bytes) -> None:
            senders.setdefault(iteration, set()).add(self.number)

    async def watch(_request: Any, stream: RpcStream) -> None:
        for _ in range(20):
            await stream.send(b"event")

    handler: Any = rpc.service(HEALTH, {"Watch": watch})["Watch"]
    watches = [asyncio.create_task(handler.unary_stream(b"", Caller(number))) for number in range(30)]
    while not all(task.done() for task in watches):
        iteration += 1
        await asyncio.sleep(0)
    await asyncio.gather(*watches)
    assert set().union(*senders.values()) == set(range(30))
    assert all(len(numbers) == 1 for numbers in senders.values()), senders
