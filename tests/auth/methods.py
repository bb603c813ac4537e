"""All methods, from the descriptors, and calls that send only their headers."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

import evald.plugin.v1
import evald.v1

from ..rpc.live import Live, Refusal
from .keyring import Metadata

# Plugins serve it, not the server.
OF_PLUGINS = "evald.plugin.v1.EvaluatorPluginService"
REFLECTION_V1 = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


def _descriptors() -> Iterator[Any]:
    for package in (evald.v1, evald.plugin.v1):
        for module in pkgutil.iter_modules(package.__path__):
            if module.name.endswith("_pb2"):
                yield importlib.import_module(f"{package.__name__}.{module.name}").DESCRIPTOR
    yield health_pb2.DESCRIPTOR
    yield reflection_pb2.DESCRIPTOR


# The server need not have it: the package of the health service has it from 1.84 on.
NOT_SERVED = {"/grpc.health.v1.Health/List"}

EVERY_METHOD = sorted(
    NOT_SERVED
    | {
        f"/{service.full_name}/{method.name}"
        for file in _descriptors()
        for service in file.services_by_name.values()
        for method in service.methods
        if service.full_name != OF_PLUGINS
    }
)


async def opened(live: Live, method: str, metadata: Metadata = ()) -> Refusal:
    """How a call ends of which nothing but the headers is sent: whoever waits for its message waits for ever."""
    call: Any = live.channel.stream_stream(method)(metadata=metadata, timeout=20)
    try:
        await call.read()
    except grpc.aio.AioRpcError as error:
        return Refusal(error)
    finally:
        call.cancel()
    raise AssertionError(f"{method} was not refused")
