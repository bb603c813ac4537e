"""A bare grpc.aio echo server: the limit of the machine and of gRPC when a handler does nothing.

A method's path names the kind of call and the file with the payload of its answers:
/echo.Unary/NAME, /echo.Stream/NAME (a stream of one) and /echo.Session/NAME (the first message gets no
answer, like the opening of a session). Run by the benchmarks; prints its address.

    python -m benchmarks.echo PAYLOAD_DIRECTORY SERVER_OPTIONS_AS_JSON
"""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from evald_server.loop import event_loop

_Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"


# evald limits concurrent RPCs, so the echo does too; any limit costs the same.
_CONCURRENT_RPCS = 10_000


class Echo(grpc.GenericRpcHandler):
    """The handlers by path, created at the first call. They take and return raw bytes."""

    def __init__(self, payloads: Path) -> None:
        self._payloads = payloads
        self._handlers: dict[str, _Handler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "_Handler | None":
        path = handler_call_details.method
        handler = self._handlers.get(path)
        if handler is None:
            _, service, name = path.split("/")
            handler = self._handlers[path] = _handler(service, (self._payloads / name).read_bytes())
        return handler


def _handler(service: str, payload: bytes) -> _Handler:
    async def unary(_request: bytes, _context: Any) -> bytes:
        return payload

    async def stream(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        yield payload

    async def session(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        await anext(requests)
        async for _ in requests:
            yield payload

    if service == "echo.Unary":
        return grpc.unary_unary_rpc_method_handler(unary)
    if service == "echo.Stream":
        return grpc.unary_stream_rpc_method_handler(stream)
    return grpc.stream_stream_rpc_method_handler(session)


async def serve(payloads: Path, options: list[tuple[str, Any]]) -> None:
    """Serve until killed."""
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_CONCURRENT_RPCS)
    server.add_generic_rpc_handlers([Echo(payloads)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    with event_loop() as runner:
        runner.run(serve(Path(sys.argv[1]), [(key, value) for key, value in json.loads(sys.argv[2])]))
