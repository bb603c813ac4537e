"""The standard gRPC services: grpc.health.v1, and reflection in v1 and v1alpha."""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from evald_server.call_errors import CallError

from .server import Methods, RpcStream, parse

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION_ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"
REFLECTION: Final = "grpc.reflection.v1.ServerReflection"

_Status = health_pb2.HealthCheckResponse


class Health:
    """The health service. The server ("") and all services have the same status, but for those that need the store.

    stored: the services that are NOT_SERVING while the store cannot be used.

    Not grpc_health.v1.health.aio.HealthServicer: its Watch writes while it holds the lock that `set` needs
    (_async.py, `async with condition: ... await context.write(...)`). One peer with a flow-control window of 0
    then blocks all other watchers and the change to NOT_SERVING, and Check still returns SERVING.
    """

    def __init__(self, services: Iterable[str], stored: Iterable[str] = (), max_watches: int = 100) -> None:
        """max_watches: more are refused, because strangers need no credentials for them."""
        self._max_watches = max_watches
        self._stored = frozenset(stored)
        self._services = frozenset(("", *services))
        self._is_degraded = self._serving = False
        self._watchers: set[asyncio.Event] = set()

    @property
    def serving(self) -> bool:
        """Whether the server accepts calls."""
        return self._serving

    def set_serving(self, serving: bool) -> None:
        """Change the status at once and notify all watchers."""
        self._serving = serving
        self._notify()

    def set_degraded(self, degraded: bool) -> None:
        """Change the status of the services that need the store, and notify all watchers."""
        self._is_degraded = degraded
        self._notify()

    def methods(self) -> Methods:
        """Return the methods by name."""
        return {"Check": self._check, "Watch": self._watch}

    async def _check(self, request: Any) -> Any:
        if request.service not in self._services:
            raise CallError("RESOURCE_NOT_FOUND", f"unknown service {request.service[:100]!r}")
        return _Status(status=self._status(request.service))

    async def _watch(self, request: Any, stream: RpcStream) -> None:
        if len(self._watchers) >= self._max_watches:
            text = f"{self._max_watches} watches of the health are open, which is the limit; use Check"
            raise CallError("TOO_MANY_STREAMS", text, limit=str(self._max_watches))
        changed, sent = asyncio.Event(), None
        self._watchers.add(changed)
        try:
            while True:
                changed.clear()
                status = self._status(request.service)
                if status != sent:
                    await stream.send(_Status(status=status).SerializeToString())
                    sent = status
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return _Status.SERVICE_UNKNOWN
        serving = self._serving and not (self._is_degraded and service in self._stored)
        return _Status.SERVING if serving else _Status.NOT_SERVING

    def _notify(self) -> None:
        for changed in self._watchers:
            changed.set()


def reflection_methods(services: Iterable[str]) -> Methods:
    """Return the methods of reflection. Both versions use the same messages on the wire."""
    pool = descriptor_pool.Default()
    try:
        pool.FindServiceByName(REFLECTION)
    except KeyError:  # grpcio-reflection ships only v1alpha
        alpha = descriptor_pb2.FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(alpha)
        text = text_format.MessageToString(alpha).replace("v1alpha", "v1")
        pool.AddSerializedFile(
            text_format.Parse(text, descriptor_pb2.FileDescriptorProto()).SerializeToString()
        )
    servicer = reflection.aio.ReflectionServicer(services)

    async def info(stream: RpcStream) -> None:
        requests = (parse(reflection_pb2.ServerReflectionRequest, data) async for data in stream)
        async with aclosing(servicer.ServerReflectionInfo(requests, stream.context)) as responses:
            async for response in responses:
                await stream.send(response.SerializeToString())

    return {"ServerReflectionInfo": info}
