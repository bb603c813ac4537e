"""A bare hop: a grpc.aio server that answers at once (/hop.Direct/x), or calls an upstream first (/hop.Via/x).

Requests and answers have the same bytes every time. Run by the benchmarks; prints its address.

    python -m benchmarks.hop UPSTREAM METHOD REQUEST_FILE PAYLOAD_FILE SERVER_OPTIONS_AS_JSON
"""

import json
import sys
from pathlib import Path
from typing import Any

import grpc

from evald_server.loop import event_loop


async def serve(upstream: str, method: str, request: bytes, payload: bytes, options: list[Any]) -> None:
    """Serve until killed."""
    channel = grpc.aio.insecure_channel(upstream)
    call: Any = channel.unary_unary(method)

    async def direct(_request: bytes, _context: Any) -> bytes:
        return payload

    async def via(_request: bytes, _context: Any) -> bytes:
        await call(request, timeout=60)
        return payload

    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(name, {"x": grpc.unary_unary_rpc_method_handler(handler)})
            for name, handler in (("hop.Direct", direct), ("hop.Via", via))
        ]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    upstream, method, request_file, payload_file, options = sys.argv[1:]
    with event_loop() as runner:
        runner.run(
            serve(
                upstream,
                method,
                Path(request_file).read_bytes(),
                Path(payload_file).read_bytes(),
                [(key, value) for key, value in json.loads(options)],
            )
        )
