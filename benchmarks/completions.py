"""An OpenAI-compatible endpoint that gives the same answer to every request, without parsing it.

Run by the benchmarks; prints its address. It answers at once, or after a delay of SECONDS.

    python -m benchmarks.completions [SECONDS]
"""

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any, Final

from evald_server.loop import event_loop

ANSWER: Final = json.dumps(
    {
        "score": 0.9,
        "hits": ["names the booking"],
        "misses": [],
        "reasoning": "The agent did what it was asked.",
    }
)
_BODY: Final = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1767225600,
        "model": "bench",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": ANSWER, "refusal": None},
            }
        ],
        "usage": {"prompt_tokens": 812, "completion_tokens": 31, "total_tokens": 843},
    }
).encode()
_RESPONSE: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
    len(_BODY),
    _BODY,
)


class Completions(asyncio.Protocol):
    """One connection with one request after another. Each request has a content-length header, as from the client."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._received = bytearray()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while (end := received.find(b"\r\n\r\n")) >= 0:
            head = bytes(received[:end]).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(received) < end + 4 + length:
                return
            del received[: end + 4 + length]
            if self._delay:
                asyncio.get_running_loop().call_later(self._delay, self._answer)
            else:
                self._answer()

    def _answer(self) -> None:
        self._transport.write(_RESPONSE)


async def _serve(delay: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Completions(delay), "127.0.0.1", 0, backlog=1024)
    print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    with event_loop() as runner, suppress(KeyboardInterrupt, asyncio.CancelledError):
        runner.run(_serve(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0))


if __name__ == "__main__":
    main()
