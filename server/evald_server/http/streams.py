"""Answers that are sent as they come: NDJSON, server-sent events, Connect."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .calls import CallFailed

T = TypeVar("T")

NDJSON: Final = "application/x-ndjson"
SSE: Final = "text/event-stream"

# Converting 16 KB takes up to 5 ms; more of it must not hold up the event loop, which is gRPC's.
_INLINE_BYTES: Final = 16 * 1024


def json_bytes(data: Any) -> bytes:
    """Return data as JSON. What UTF-8 cannot carry becomes "?"."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )


def event(data: bytes, name: str = "", number: object = "") -> bytes:
    """Return a server-sent event. name: "" for a message. number: by which a watch can go on after it."""
    named = f"event: {name}\n" if name else ""
    return (f"id: {number}\n" if number else "").encode() + named.encode() + b"data: " + data + b"\n\n"


async def aside(size: int, work: Callable[[], T]) -> T:
    """Return what a function gives, called in a thread for much data. size: of the data, in bytes."""
    return work() if size <= _INLINE_BYTES else await asyncio.to_thread(work)


def answer_to(request: Request, response: Response) -> Response:
    """Return the response to send: to a HEAD without its body, so that a stream ends before it begins."""
    if request.method != "HEAD":
        return response
    bare = Response(status_code=response.status_code)
    bare.raw_headers = response.raw_headers
    return bare


class Framing(NamedTuple):
    """How the messages of a call become a body.

    write: what is sent for a message; it may run in a thread. error: what ends a stream that failed; end: what ends
    any other. begins: whether the response begins at once, so that a call that fails before its first message has
    status 200, too.
    """

    media_type: str
    write: Callable[[bytes], bytes]
    error: Callable[[CallFailed], bytes]
    end: bytes = b""
    begins: bool = False


class StreamedCall(Response):
    """The answer of a server-streaming method, sent as it comes. It begins with the first message, so that a call
    that is refused has the status of its refusal: then sending it raises CallFailed.

    messages: as `Calls.stream` yields them.
    """

    def __init__(self, messages: AsyncGenerator[bytes | None], framing: Framing) -> None:
        super().__init__(headers={"Content-Type": framing.media_type})
        del self.headers["content-length"]
        self._messages = messages
        self._framing = framing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        framing = self._framing
        began = False

        async def send_part(data: bytes, *, more: bool = True) -> None:
            nonlocal began
            if not began:
                began = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": data, "more_body": more})

        # A comment says that the connection lives; other streams have none.
        beat = b":\n\n" if framing.media_type == SSE else b""
        end = framing.end
        if framing.begins:
            await send_part(beat)
        try:
            async with aclosing(self._messages):
                async for message in self._messages:
                    if message is None:
                        await send_part(beat)
                    else:
                        await send_part(await aside(len(message), partial(framing.write, message)))
        except CallFailed as problem:
            if not began:
                raise
            end = framing.error(problem)
        await send_part(end, more=False)
