"""Connections are bounded, and those that say nothing do not last: they keep nobody out for long."""

import asyncio
import resource
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from evald.v1 import evaluation_service_pb2

from ..loop import run
from ..processes import ServerProcess, server_process
from .live import CONTAINS, EVALUATION, request, until

# A process has about 30 open before the first connection.
DESCRIPTORS = 128


@contextmanager
def silent_sockets(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Connections that are opened and never used."""
    host, _, port = address.rpartition(":")
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            opened.append(socket.create_connection((host, int(port)), timeout=30))
        yield opened
    finally:
        for one in opened:
            one.close()


def connect(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(
        address,
        options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 500)],
    )


async def passes(channel: grpc.aio.Channel, **call: object) -> bool:
    data = evaluation_service_pb2.EvaluateUnaryRequest(request=request(CONTAINS)).SerializeToString()
    answer = await channel.unary_unary(EVALUATION + "EvaluateUnary")(data, timeout=30, **call)
    return evaluation_service_pb2.EvaluateUnaryResponse.FromString(answer).summary.success


def read(address: str, path: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        return answer.status, answer.read()


def descriptors(server: ServerProcess) -> int:
    return sum(1 for _ in Path(f"/proc/{server.pid}/fd").iterdir())


def test_silent_sockets_stop_neither_calls_nor_metrics_and_are_closed() -> None:
    async def main(server: ServerProcess) -> None:
        async with connect(server.grpc) as before:
            assert await passes(before)
            with silent_sockets(server.grpc, 2 * DESCRIPTORS):
                assert await passes(before)
                for path in ("/healthz", "/readyz", "/metrics"):
                    status, _ = await asyncio.to_thread(read, server.http, path)
                    assert status == 200
                assert descriptors(server) < DESCRIPTORS - 10
                # Who comes new waits until the silent ones are closed.
                async with connect(server.grpc) as new:
                    assert await passes(new, wait_for_ready=True)
            assert await passes(before)

    with server_process(descriptors=(DESCRIPTORS, DESCRIPTORS), EVALD_HANDSHAKE_TIMEOUT="2") as server:
        run(main(server))
        server.process.terminate()
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.log()


def test_no_more_connections_are_taken_than_the_setting_allows() -> None:
    async def main(server: ServerProcess) -> None:
        channels = [connect(server.grpc) for _ in range(3)]
        assert await passes(channels[0])
        assert await passes(channels[1])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await passes(channels[2])
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await channels[0].close()
        assert await passes(channels[2], wait_for_ready=True)
        for channel in channels[1:]:
            await channel.close()

    with server_process(EVALD_MAX_CONNECTIONS="2") as server:
        run(main(server))


def test_a_connection_without_a_call_is_closed_and_opened_again() -> None:
    async def main(server: ServerProcess) -> None:
        async with connect(server.grpc) as channel:
            assert await passes(channel)
            await until(lambda: channel.get_state() is grpc.ChannelConnectivity.IDLE)
            assert await passes(channel)

    with server_process(EVALD_MAX_CONNECTION_IDLE="0.5") as server:
        run(main(server))


def test_a_server_allows_itself_all_the_descriptors_that_it_may_have() -> None:
    with server_process(descriptors=(256, 512)) as server:
        assert resource.prlimit(server.pid, resource.RLIMIT_NOFILE) == (512, 512)
