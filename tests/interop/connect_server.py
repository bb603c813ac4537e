"""Serves the service of Connect's conformance suite over the bridge: connect_server.py DESCRIPTORS

https://github.com/connectrpc/conformance: on standard input comes what the suite wants of a server, to standard
output goes where it listens. Headers and trailers of answers are added here, because methods of evald have none.
"""

import asyncio
import json
import signal
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import uvicorn
from google.protobuf import descriptor_pb2, descriptor_pool, json_format
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from evald_server.call_errors import CallError
from evald_server.http.access import WebAccess
from evald_server.http.bridge import Bridge
from evald_server.http.calls import Calls, HttpCaller
from evald_server.http.guards import Bodies
from evald_server.http.streams import StreamedCall
from evald_server.rpc.errors import code_of, details_of

PACKAGE = "connectrpc.conformance.v1"
CODES = {code.value[0]: code for code in grpc.StatusCode}


def message(name: str) -> Any:
    """Return the class of one of the suite's messages."""
    return GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(f"{PACKAGE}.{name}"))


class _Access(WebAccess):
    """An access check that passes all headers on."""

    def caller(self, request: Request, timeout: float | None = None) -> HttpCaller:
        """Return who sent a request."""
        return super().caller(request, timeout)._replace(metadata=tuple(request.headers.items()))


class _ConformanceService:
    """The suite's service, with the interface of evald's gate."""

    def admit(self, method: str, context: Any, certificate: Any) -> Any:
        """Return the handler of a call."""
        name = method.rpartition("/")[2]
        if name == "ServerStream":
            return grpc.unary_stream_rpc_method_handler(self._stream)
        if name in ("Unary", "IdempotentUnary"):
            return grpc.unary_unary_rpc_method_handler(lambda data, context: self._unary(name, data, context))
        return grpc.unary_unary_rpc_method_handler(_unimplemented if name == "Unimplemented" else _unknown)

    async def _unary(self, name: str, data: bytes, context: Any) -> bytes:
        request = message(f"{name}Request").FromString(data)
        wanted = request.response_definition
        await asyncio.sleep(wanted.response_delay_ms / 1000)
        payload = _payload([request], context, wanted.response_data)
        if wanted.HasField("error"):
            await _abort(context, wanted.error, [payload.request_info])
        answer: bytes = message(f"{name}Response")(payload=payload).SerializeToString()
        return answer

    async def _stream(self, data: bytes, context: Any) -> None:
        request = message("ServerStreamRequest").FromString(data)
        wanted = request.response_definition
        for number, one in enumerate(wanted.response_data):
            await asyncio.sleep(wanted.response_delay_ms / 1000)
            payload = _payload([] if number else [request], context, one)
            if number:
                payload.ClearField("request_info")
            await context.write(message("ServerStreamResponse")(payload=payload).SerializeToString())
        if wanted.HasField("error"):
            info = [] if wanted.response_data else [_payload([request], context, b"").request_info]
            await _abort(context, wanted.error, info)


async def _unimplemented(_data: bytes, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not implemented")
    raise AssertionError


async def _unknown(_data: bytes, context: Any) -> bytes:
    problem = CallError("UNKNOWN_METHOD", "no such method")
    details = details_of(problem)
    await context.abort(code_of(problem), problem.message, (("grpc-status-details-bin", details),))
    raise AssertionError


def _payload(requests: Sequence[Any], context: Any, data: bytes) -> Any:
    payload = message("ConformancePayload")(data=data)
    metadata = context.invocation_metadata()
    for name in dict(metadata):
        payload.request_info.request_headers.add(
            name=name, value=[value for key, value in metadata if key == name]
        )
    left = context.time_remaining()
    if left is not None:
        payload.request_info.timeout_ms = round(left * 1000)
    for one in requests:
        payload.request_info.requests.add().Pack(one)
    return payload


async def _abort(context: Any, error: Any, more: Sequence[Any]) -> None:
    status = status_pb2.Status(code=error.code, message=error.message, details=error.details)
    for detail in more:
        status.details.add().Pack(detail)
    details = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(CODES[error.code], error.message, details)


class _ConformanceBridge(Bridge):
    """A bridge that adds the headers and trailers that the suite asks for."""

    async def answer(self, package: str, request: Request) -> Response:
        """Answer a request."""
        response = await super().answer(package, request)
        wanted = await _definition(request)
        for header in wanted.response_headers if wanted else ():
            for value in header.value:
                response.headers.append(header.name, value)
        if isinstance(response, StreamedCall):
            trailers = {one.name: list(one.value) for one in wanted.response_trailers} if wanted else {}
            framing = response._framing
            response._framing = framing._replace(
                end=_with_metadata(framing.end, trailers),
                error=lambda problem: _with_metadata(framing.error(problem), trailers),
            )
        else:
            for trailer in wanted.response_trailers if wanted else ():
                for value in trailer.value:
                    response.headers.append(f"trailer-{trailer.name}", value)
        return response


async def _definition(request: Request) -> Any:
    name, kind = request.path_params["method"], request.headers["content-type"]
    with suppress(Exception):  # what cannot be read has none
        data = await request.body()
        data = data[5:] if "connect" in kind else data
        asked = message(f"{name}Request")()
        json_format.Parse(data, asked) if kind.endswith("json") else asked.ParseFromString(data)
        return asked.response_definition
    return None


def _with_metadata(data: bytes, trailers: dict[str, list[str]]) -> bytes:
    said = json.loads(data[5:]) | ({"metadata": trailers} if trailers else {})
    text = json.dumps(said).encode()
    return struct.pack(">BI", 2, len(text)) + text


def _read(kind: Any) -> Any:
    (length,) = struct.unpack(">I", sys.stdin.buffer.read(4))
    return kind.FromString(sys.stdin.buffer.read(length))


def _files(path: str) -> Iterator[descriptor_pb2.FileDescriptorProto]:
    yield from descriptor_pb2.FileDescriptorSet.FromString(Path(path).read_bytes()).file


async def main() -> None:
    """Serve until SIGTERM."""
    for file in _files(sys.argv[1]):
        if file.package == PACKAGE or file.name == "google/protobuf/empty.proto":
            descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    wanted = _read(message("ServerCompatRequest"))
    bridge = _ConformanceBridge(Calls(_ConformanceService(), 192), _Access())  # type: ignore[arg-type]
    app = Starlette(
        routes=[bridge.route(f"{PACKAGE}.")],
        middleware=[Middleware(Bodies, max_message_bytes=wanted.message_receive_limit or 1 << 20)],
    )
    server = uvicorn.Server(uvicorn.Config(app, port=0, http="h11", log_level="critical", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    said = message("ServerCompatResponse")(host="127.0.0.1", port=port).SerializeToString()
    sys.stdout.buffer.write(struct.pack(">I", len(said)) + said)
    sys.stdout.buffer.flush()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, setattr, server, "should_exit", True)
    await serving


if __name__ == "__main__":
    asyncio.run(main())
