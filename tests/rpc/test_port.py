"""A gRPC port whatever is sent to it."""

import asyncio
import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from evald.v1 import evaluation_service_pb2
from evald_server.auth.principal import Role

from ..auth.keyring import bearer, guarded, make_key
from ..processes import server_process
from . import raw_http2
from .live import CONTAINS, EVALUATION, request, until
from .test_sessions import opened, turn

NO_PATH = b"/evald.v1\xff.EvaluationService/EvaluateUnary"
NO_TEXT = b"Bearer canary-\xff\xfe"


async def _answers(address: str, credentials: grpc.ChannelCredentials | None = None) -> bool:
    """Whether a new connection has its call answered."""
    made: Any = (
        grpc.aio.insecure_channel(address)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials)
    )
    async with made as channel:
        call = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            return await call(b"", timeout=5) == b"\x08\x01"
        except grpc.aio.AioRpcError:
            return False


# In a process of its own: gRPC's server leaves a task behind whose exception nobody can retrieve.
async def test_a_path_that_is_not_utf8_closes_neither_the_port_nor_what_is_open() -> None:
    with server_process() as server:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            session: Any = channel.stream_stream(f"{EVALUATION}EvaluateSession")()
            await session.write(opened(CONTAINS).SerializeToString())
            for number in range(6):
                # The first turn shows that the server has the session: a call that it has not yet taken up would end.
                await session.write(turn(number, "hello").SerializeToString())
                answer = evaluation_service_pb2.EvaluateSessionResponse.FromString(await session.read())
                assert (answer.turn_id, answer.event.summary.success) == (number, True)
                with closing(await asyncio.to_thread(raw_http2.call, server.grpc, NO_PATH)) as connection:
                    await asyncio.to_thread(raw_http2.wait, connection)
                    await until(lambda: _answers(server.grpc))
            await session.done_writing()
            while (last := await session.read()) is not grpc.aio.EOF:
                assert last
            assert await session.code() is grpc.StatusCode.OK
        server.process.terminate()
        assert await asyncio.to_thread(server.process.wait, 30) == 0


async def test_values_of_headers_that_are_not_utf8_are_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ci", Role.CALLER)
    method = f"{EVALUATION}EvaluateUnary".encode()
    with caplog.at_level(logging.DEBUG):
        async with guarded(path) as live:
            for headers in (
                {"authorization": NO_TEXT},
                {"authorization": key.encode() + b"\xff"},
                {"x-key": NO_TEXT},
            ):
                with closing(
                    await asyncio.to_thread(raw_http2.call, live.app.address, method, headers)
                ) as connection:
                    await asyncio.to_thread(raw_http2.wait, connection)
            await until(lambda: caplog.text.count("refused principal") == 3)
            assert (await live.unary(request(CONTAINS), metadata=bearer(key))).summary.success
    said = caplog.text + "".join(str(vars(record)) for record in caplog.records)
    assert "canary" not in said
    assert key[19:62] not in said
