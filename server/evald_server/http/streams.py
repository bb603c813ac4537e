"""Answers of server-streaming methods as HTTP responses: NDJSON, server-sent events, Connect."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .calls import CallFailed, Calls, HttpCaller
from .errors import error_response

NDJSON: Final = "application/x-ndjson"
SSE: Final = "text/event-stream"

# Below what proxies take for a connection that is dead.
BEAT_SECONDS: Final = 15.0

Frame = Callable[[bytes], Awaitable[bytes]]
"""Makes bytes of a response of a serialised message."""


class Framing(NamedTuple):
    """How messages become a body. error: what ends a stream that failed; end: what ends any other. beat: sent when
    nothing was for 15 s. errors_begun: whether the response begins at once, so that a call that fails before its first message has status
    200, too."""

    media_type: str
    message: Frame
    error: Callable[[CallFailed], bytes]
    end: bytes = b""
    beat: bytes = b""
    errors_begun: bool = False


class StreamedCall(Response):
    """The answer of a server-streaming method, sent as it comes. It begins with the first message, so that a call
    that is refused has the status of its refusal."""

    def __init__(
        self, calls: Calls, method: str, request: bytes, caller: HttpCaller, framing: Framing
    ) -> None:
        super().__init__(media_type=None, headers={"Content-Type": framing.media_type})
        del self.headers["content-length"]
        self._calls = calls
        self._call = (method, request, caller)
        self._framing = framing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        framing = self._framing
        began = framing.errors_begun
        if began:
            await self._begin(send)
        try:
            async with self._calls.stream(*self._call) as messages:
                coming = asyncio.ensure_future(anext(messages, None))
                try:
                    while True:
                        found, _ = await asyncio.wait([coming], timeout=BEAT_SECONDS)
                        message = coming.result() if found else b""
                        if message is None:
                            break
                        data = await framing.message(message) if found else framing.beat
                        if not began:
                            began = True
                            await self._begin(send)
                        await send({"type": "http.response.body", "body": data, "more_body": True})
                        if found:
                            coming = asyncio.ensure_future(anext(messages, None))
                finally:
                    coming.cancel()
        except CallFailed as problem:
            if not began:
                await error_response(Request(scope), problem)(scope, receive, send)
                return
            end = framing.error(problem)
        else:
            end = framing.end
        if not began:
            await self._begin(send)
        await send({"type": "http.response.body", "body": end})

    async def _begin(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
