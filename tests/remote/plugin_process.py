"""A plugin as a process of its own: python -m tests.remote.plugin_process WAY SERVER TYPE

WAY is `connect`, or `register`, which keeps its lease alive and registers again when told that it has
expired, but never by itself. Prints a line when it is known to the server, and one for every time after that.
"""

import asyncio
import os
import sys
from contextlib import suppress
from typing import Any

import grpc

from evald.plugin.v1 import registry_service_pb2 as registry_pb2

from .scripted import REGISTRY, Listening, Worker

_OPTIONS = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]


def _say(*words: object) -> None:
    print(*words, flush=True)


async def _connect(server: str, name: str) -> None:
    while True:
        async with grpc.aio.insecure_channel(server, _OPTIONS) as channel:
            worker = Worker(channel, name, instance_id=f"connect-{os.getpid()}", credit=16)
            with suppress(grpc.aio.AioRpcError, AssertionError, asyncio.InvalidStateError):
                await worker.start()
                _say("connected", worker.welcome.server_id)
                await worker.ended()
            await worker.stop()
        await asyncio.sleep(0.2)


async def _register(server: str, name: str) -> None:
    plugin = Listening(name)
    await plugin.start()
    request = registry_pb2.RegisterRequest(
        plugin=plugin.info, instance_id=f"register-{os.getpid()}", target=plugin.address
    )
    request.ttl.seconds = 3
    async with grpc.aio.insecure_channel(server, _OPTIONS) as channel:
        call: Any = channel.unary_unary(f"{REGISTRY}Register")
        renew: Any = channel.unary_unary(f"{REGISTRY}RenewLease")
        lease_id, server_id = "", ""
        while True:
            with suppress(grpc.aio.AioRpcError):
                if not lease_id:
                    data = await call(request.SerializeToString(), timeout=3)
                    lease_id = registry_pb2.RegisterResponse.FromString(data).lease_id
                    _say("registered", lease_id)
                asked = registry_pb2.RenewLeaseRequest(lease_id=lease_id)
                answer = registry_pb2.RenewLeaseResponse.FromString(
                    await renew(asked.SerializeToString(), timeout=1)
                )
                if answer.state != registry_pb2.LEASE_STATE_ACTIVE:
                    lease_id = ""
                    continue
                if answer.server_id != server_id:
                    server_id = answer.server_id
                    _say("renewed", lease_id, server_id)
            await asyncio.sleep(0.3)


if __name__ == "__main__":
    way, server, name = sys.argv[1:]
    asyncio.run({"connect": _connect, "register": _register}[way](server, name))
