"""Streamed responses: NDJSON, server-sent events, Connect."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from evald_server.loop import in_thread_if_large

from .calls import CallFailed

NDJSON: Final = "application/x-ndjson"
SSE: Final = "text/event-stream"


def json_bytes(data: Any) -> bytes:
    """Encode data as JSON. Characters that UTF-8 cannot encode become "?"."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )


def event(data: bytes, name: str = "", number: object = "") -> bytes:
    """Encode a server-sent event. name: "" for a message. number: the event's id, from which a watch can resume."""
    named = f"event: {name}\n" if name else ""
    return (f"id: {number}\n" if number else "").encode() + named.encode() + b"data: " + data + b"\n\n"


def answer_to(request: Request, response: Response) -> Response:
    """Return the response to send. For a HEAD it has no body, and a stream is not started."""
    if request.method != "HEAD":
        return response
    bare = Response(status_code=response.status_code)
    bare.raw_headers = response.raw_headers
    return bare


class Framing(NamedTuple):
    """The encoding of a call's messages as a response body.

    write: encodes one message; it may run in a thread. error: encodes the end of a failed stream; end: the end of a
    successful one. starts_at_once: start the response at once; then a call that fails before its first message has status
    200, too.
    """

    media_type: str
    write: Callable[[bytes], bytes]
    error: Callable[[CallFailed], bytes]
    end: bytes = b""
    starts_at_once: bool = False


class StreamedCall(Response):
    """The streamed response of a server-streaming method.

    It starts with the first message. If the call fails before, sending the response raises CallFailed, so that the
    status can be that of the failure. messages: as `Calls.stream` yields them.
    """

    def __init__(self, messages: AsyncGenerator[bytes | None], framing: Framing) -> None:
        super().__init__(headers={"Content-Type": framing.media_type})
        del self.headers["content-length"]
        self._messages = messages
        self._framing = framing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        framing = self._framing
        began = False

        async def send_part(data: bytes, *, more: bool = True) -> None:
            nonlocal began
            if not began:
                began = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": data, "more_body": more})

        # An empty comment keeps the connection alive. Only server-sent events have comments.
        keepalive = b":\n\n" if framing.media_type == SSE else b""
        end = framing.end
        if framing.starts_at_once:
            await send_part(keepalive)
        try:
            async with aclosing(self._messages):
                async for message in self._messages:
                    if message is None:
                        await send_part(keepalive)
                    else:
                        await send_part(await in_thread_if_large(len(message), framing.write, message))
        except CallFailed as problem:
            if not began:
                raise
            end = framing.error(problem)
        await send_part(end, more=False)
