"""A refused call gets its status, however much is sent and however many are refused at once."""

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from evald.plugin.v1 import registry_service_pb2, registry_service_pb2_grpc
from evald.worker.session import send_hello
from evald_server.auth.principal import Role

from ..processes import server_process
from ..rpc.live import EVALUATION
from .keyring import bearer, guarded, make_key

DENIED = grpc.StatusCode.PERMISSION_DENIED

SMALL, LARGE = bytes(3000), bytes(16 << 20)


async def test_calls_refused_at_once_get_their_status_and_those_given_up_harm_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ops", Role.ADMIN)
    codes: Counter[grpc.StatusCode] = Counter()
    async with guarded(path) as live:
        refused = live.channel.unary_unary(f"{EVALUATION}EvaluateUnary")

        async def call(number: int) -> None:
            made: Any = refused(LARGE if number % 20 == 0 else SMALL, metadata=bearer(key), timeout=20)
            if number % 3 == 0:
                await asyncio.sleep(0)
                made.cancel()
            code = await made.code()
            if code is not grpc.StatusCode.CANCELLED:
                codes[code] += 1

        with caplog.at_level(logging.ERROR, "evald.rpc"):
            for _ in range(4):  # a connection has 100 calls at a time
                await asyncio.gather(*map(call, range(60)))
    assert set(codes) == {DENIED}
    assert codes[DENIED] > 100
    assert not [record for record in caplog.records if record.name == "evald.rpc"]


async def test_a_worker_that_is_refused_while_it_sends_hears_why(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ops", Role.ADMIN)
    hello = registry_service_pb2.WorkerHello(instance_id="x")
    codes: Counter[grpc.StatusCode] = Counter()
    # In a process with the client nothing happens during a write.
    with server_process(stderr=None, EVALD_KEYS_FILE=str(path)) as server:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            stub = registry_service_pb2_grpc.RegistryServiceStub(channel)

            async def connect() -> None:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await send_hello(stub.Attach(metadata=bearer(key)), hello)
                codes[refused.value.code()] += 1

            for _ in range(10):
                await asyncio.gather(*(connect() for _ in range(16)))
    assert codes == {DENIED: 160}
