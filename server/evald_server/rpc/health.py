"""The standard gRPC services: grpc.health.v1, and reflection in v1 and v1alpha."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from evald_server.call_errors import CallError

from .server import Handler, abort, refuse

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION_ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"
REFLECTION: Final = "grpc.reflection.v1.ServerReflection"

_Status = health_pb2.HealthCheckResponse


class Health:
    """The health service. The server ("") and all services have the same status, but for those that need the store.

    stored: the services that are NOT_SERVING while the store cannot be used.
    max_watches: maximum open watches. They need no credentials, so a limit keeps capacity for other calls.

    It needs no admission slot and does not wait, so it responds under overload and while draining.

    Not grpc_health.v1.health.aio.HealthServicer: its Watch writes while it holds the lock that `set` needs
    (_async.py, `async with condition: ... await context.write(...)`). One peer with a flow-control window of 0
    then blocks all other watchers and the change to NOT_SERVING, and Check still returns SERVING.
    """

    def __init__(self, services: Iterable[str], max_watches: int, stored: Iterable[str] = ()) -> None:
        self._max_watches = max_watches
        self._stored = frozenset(stored)
        self._is_degraded = False
        self._services = frozenset(("", *services))
        self._serving = False
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

    def _notify(self) -> None:
        for changed in self._watchers:
            changed.set()

    def handlers(self, endless: Callable[[Any], Any]) -> dict[str, Handler]:
        """Return the handlers by method name. endless: decorator for streams that only the caller ends."""
        return {
            "Check": grpc.unary_unary_rpc_method_handler(
                self._check,
                request_deserializer=_parse_or_none(health_pb2.HealthCheckRequest),
                response_serializer=_Status.SerializeToString,
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(
                endless(self._watch),
                request_deserializer=_parse_or_none(health_pb2.HealthCheckRequest),
                response_serializer=_Status.SerializeToString,
            ),
        }

    async def _check(self, request: Any, context: Any) -> Any:
        if request is None:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "not a HealthCheckRequest")
        if request.service not in self._services:
            await abort(context, grpc.StatusCode.NOT_FOUND, f"unknown service {request.service[:100]!r}")
        return _Status(status=self._status(request.service))

    async def _watch(self, request: Any, context: Any) -> None:
        if request is None:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "not a HealthCheckRequest")
        if len(self._watchers) >= self._max_watches:
            text = f"{self._max_watches} health watches are open, which is the limit; use Check, which is always answered"
            await refuse(context, CallError("TOO_MANY_STREAMS", text, limit=str(self._max_watches)))
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            told = None
            while True:
                changed.clear()
                status = self._status(request.service)
                if status != told:
                    await context.write(_Status(status=status))
                    told = status
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return _Status.SERVICE_UNKNOWN
        serving = self._serving and not (self._is_degraded and service in self._stored)
        return _Status.SERVING if serving else _Status.NOT_SERVING


def reflection_handlers(
    services: Iterable[str], endless: Callable[[Any], Any]
) -> dict[str, dict[str, Handler]]:
    """Return the handlers by service and method name. Both versions use the same messages on the wire.

    endless: decorator for streams that only the caller ends.
    """
    _add_v1_descriptor()
    servicer = reflection.aio.ReflectionServicer(services)

    async def info(requests: Any, context: Any) -> None:
        async with aclosing(servicer.ServerReflectionInfo(requests, context)) as responses:
            async for response in responses:
                await context.write(response)

    handler = grpc.stream_stream_rpc_method_handler(
        endless(info),
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return {name: {"ServerReflectionInfo": handler} for name in (REFLECTION, REFLECTION_ALPHA)}


def _parse_or_none(kind: Any) -> Callable[[bytes], Any]:
    """Return a deserializer that returns None for unreadable bytes, so that the handler can refuse them."""

    def parse(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except Exception:  # noqa: BLE001 - DecodeError, and whatever else a runtime raises for garbage
            return None

    return parse


def _add_v1_descriptor() -> None:
    """Add the v1 service to the descriptor pool, because grpcio-reflection ships only v1alpha."""
    pool = descriptor_pool.Default()
    try:
        pool.FindServiceByName(REFLECTION)
    except KeyError:
        v1 = descriptor_pb2.FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(v1)
        v1.name = "grpc/reflection/v1/reflection.proto"
        v1.package = "grpc.reflection.v1"
        for message in v1.message_type:
            for field in message.field:
                if field.HasField("type_name"):
                    field.type_name = field.type_name.replace(".v1alpha.", ".v1.")
        for method in v1.service[0].method:
            method.input_type = method.input_type.replace(".v1alpha.", ".v1.")
            method.output_type = method.output_type.replace(".v1alpha.", ".v1.")
        pool.AddSerializedFile(v1.SerializeToString())
