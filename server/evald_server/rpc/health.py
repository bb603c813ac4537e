"""The services that every gRPC tool expects: grpc.health.v1 and reflection, v1 and v1alpha."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from .server import Handler, abort

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION_ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"
REFLECTION: Final = "grpc.reflection.v1.ServerReflection"

_Status = health_pb2.HealthCheckResponse
_SERVING, _NOT_SERVING = _Status.SERVING, _Status.NOT_SERVING


class Health:
    """Health of the server, "", and of each service: all serve or none does.

    Answers also under overload and while draining: it waits for nothing and
    takes no place.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(("", *services))
        self._serving = False
        self._changed: set[asyncio.Event] = set()

    @property
    def serving(self) -> bool:
        """What it answers."""
        return self._serving

    def serve(self, serving: bool) -> None:
        """Change the answer, and tell those who watch."""
        self._serving = serving
        for changed in self._changed:
            changed.set()

    def handlers(self, endless: Callable[[Any], Any]) -> dict[str, Handler]:
        """Handlers by method name. endless: wraps those of streams that end when the caller likes."""
        return {
            "Check": grpc.unary_unary_rpc_method_handler(
                self._check,
                request_deserializer=_lenient(health_pb2.HealthCheckRequest),
                response_serializer=_Status.SerializeToString,
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(
                endless(self._watch),
                request_deserializer=_lenient(health_pb2.HealthCheckRequest),
                response_serializer=_Status.SerializeToString,
            ),
        }

    async def _check(self, request: Any, context: Any) -> Any:
        if request is None:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "not a HealthCheckRequest")
        if request.service not in self._services:
            await abort(context, grpc.StatusCode.NOT_FOUND, f"no service {request.service[:100]!r} here")
        return _Status(status=_SERVING if self._serving else _NOT_SERVING)

    async def _watch(self, request: Any, context: Any) -> None:
        if request is None:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "not a HealthCheckRequest")
        changed = asyncio.Event()
        self._changed.add(changed)
        try:
            while True:
                changed.clear()
                status = _SERVING if self._serving else _NOT_SERVING
                if request.service not in self._services:
                    status = _Status.SERVICE_UNKNOWN
                await context.write(_Status(status=status))
                await changed.wait()
        finally:
            self._changed.discard(changed)


def reflection_handlers(
    services: Iterable[str], endless: Callable[[Any], Any]
) -> dict[str, dict[str, Handler]]:
    """Handlers by service and method name. Both versions speak the same messages on the wire.

    endless: wraps handlers of streams that end when the caller likes."""
    _add_v1_descriptor()
    servicer = reflection.aio.ReflectionServicer(services)

    async def info(requests: Any, context: Any) -> None:
        async for response in servicer.ServerReflectionInfo(requests, context):
            await context.write(response)

    handler = grpc.stream_stream_rpc_method_handler(
        endless(info),
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return {name: {"ServerReflectionInfo": handler} for name in (REFLECTION, REFLECTION_ALPHA)}


def _lenient(kind: Any) -> Callable[[bytes], Any]:
    """None for garbage, so that the handler can refuse it with a status that says so."""

    def parse(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except Exception:  # noqa: BLE001 - DecodeError, and whatever else a runtime raises for garbage
            return None

    return parse


def _add_v1_descriptor() -> None:
    """Make the v1 service known by name: grpcio-reflection ships v1alpha only."""
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
