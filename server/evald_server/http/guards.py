"""Checks of every request before its route: Host, origin, media type, and the body's size and time."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evald_server.call_errors import CallError
from evald_server.config import Settings, answers_to, split_address
from evald_server.logs import log_incident

from .errors import error_response, failed, refusal

_log = logging.getLogger("evald.http")

_READING: Final = frozenset(("GET", "HEAD", "OPTIONS"))

_JSON_TYPES: Final = frozenset(("application/json", "application/x-ndjson"))

MAX_HEAD_BYTES: Final = 16 * 1024

_BODY_SECONDS: Final = 30.0

# The header of a message in a Connect stream.
_ENVELOPE_BYTES: Final = 5

# Limits of the bodies in memory, of all connections and of one principal, as multiples of the largest permitted body.
# Small bodies are not limited.
_MAX_BODIES: Final = 8
_MAX_OWN_BODIES: Final = 2
_SMALL_BYTES: Final = 64 * 1024

ADMITTED: Final = "evald.admitted"
"""The scope key of an admitted request. Its value is the principal's name, "" on a server without credentials. The
bodies of all other requests must be small."""

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The default headers of every response."""

_HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class Guards:
    """Middleware that refuses cross-site and malformed requests, adds the default headers to every response, and
    reports exceptions of handlers."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.web_origins)
        self._answers_to = partial(
            answers_to, settings, split_address(settings.web)[0] if settings.web else ""
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        request = Request(scope)
        began = False

        async def send_guarded(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                said = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in _HEADERS if one[0] not in said)]
            await send(message)

        response = self._refusal(request)
        if response is not None:
            await response(scope, receive, send_guarded)
            return
        try:
            await self._app(scope, receive, send_guarded)
        except ClientDisconnect:
            return
        except Exception as problem:  # noqa: BLE001 - the last handler of any exception
            incident = log_incident(_log, f"{request.method} {request.url.path} failed", problem)
            if began:
                return  # the connection is cut, so that the caller sees that the response is incomplete
            text = f"evald failed to handle the request {incident.note}"
            answer = error_response(request, failed(CallError("INTERNAL", text, incident=incident.id)))
            await answer(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        """Return the response that refuses a request; None if the request may continue."""
        headers = request.headers
        # The parser limits only heads that arrive in several pieces.
        if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEAD_BYTES:
            return refusal(request, 431, f"the headers are larger than {MAX_HEAD_BYTES} bytes, the limit")
        if "transfer-encoding" in headers and "content-length" in headers:
            # Request smuggling: a proxy may take the body's length from the other header, and see a second request.
            text = "got Content-Length and Transfer-Encoding, wanted only one of them"
            return refusal(request, 400, text, {"Connection": "close"})
        if not self._answers_to(headers.get("host", "")):
            wanted = "an IP address, localhost, or a host in web_hosts (EVALD_WEB_HOSTS)"
            return refusal(request, 421, f"Host: got {headers.get('host', '')[:200]!r}, wanted {wanted}")
        if request.method in _READING:
            return None
        if not self._may_write(headers):
            wanted = "a page of this server, or an origin in web_origins (EVALD_WEB_ORIGINS)"
            return refusal(
                request, 403, f"Origin: got a request from a page of another origin, wanted {wanted}"
            )
        if request.url.path.startswith("/api/"):
            kind = media_type(headers)
            if kind not in _JSON_TYPES and (kind or _has_body(headers)):
                wanted = " or ".join(sorted(_JSON_TYPES))
                return refusal(request, 415, f"Content-Type: got {kind[:100]!r}, wanted {wanted}")
        return None

    def _may_write(self, headers: Headers) -> bool:
        """Return whether a request may write: it is from this origin, an allowed origin, or no browser."""
        origin = headers.get("origin", "").lower()
        if origin and origin in self._origins:
            return True
        site = headers.get("sec-fetch-site")
        if site is not None:
            return site == "same-origin"
        # Without both headers, the client is no browser.
        return "origin" not in headers or origin.partition("://")[2] == headers["host"].lower()


class Bodies:
    """Middleware that reads a body as a whole, within 30 s and a size limit, and cancels handlers at a disconnect.

    It reads when the handler asks for the body, so a handler can refuse a request without reading it.
    """

    def __init__(self, app: ASGIApp, max_message_bytes: int) -> None:
        self._app = app
        self._limit = max_message_bytes
        self._held = 0
        self._held_by: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        headers = Headers(scope=scope)
        whole, asked, held = asyncio.Event(), False, 0
        if not _has_body(headers):
            whole.set()

        def hold(name: str, size: int) -> None:
            self._held += size
            self._held_by[name] += size
            if not self._held_by[name]:
                del self._held_by[name]

        async def read() -> bytes:
            """Return the body. Raises ClientDisconnect, and CallFailed for one that is too large."""
            nonlocal held
            # Callers that are not admitted must not use up the memory for those that are.
            name = scope.get(ADMITTED)
            limit = self._limit if name is not None else min(_SMALL_BYTES, self._limit)
            _check_size(int(headers.get("content-length", "0")), limit)
            body, more = bytearray(), True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                body += message.get("body", b"")
                more = message.get("more_body", False)
                _check_size(len(body), limit)
                if name is None:
                    continue
                hold(name, len(body) - held)
                held = len(body)
                if held > _SMALL_BYTES:
                    self._check_room(name)
            return bytes(body)

        async def receive_whole() -> Message:
            nonlocal asked
            if asked:
                if whole.is_set():
                    await asyncio.wait([gone])
                return {"type": "http.disconnect"}
            asked, body = True, b""
            if not whole.is_set():
                try:
                    async with asyncio.timeout(_BODY_SECONDS):
                        body = await read()
                except TimeoutError:
                    text = f"the body did not arrive within {_BODY_SECONDS:g} s"
                    raise HTTPException(408, text, {"Connection": "close"}) from None
                whole.set()
            return {"type": "http.request", "body": body, "more_body": False}

        async def hang_up() -> None:
            # receive() reports a disconnect only after the body, so wait until the body has been read.
            await whole.wait()
            while (await receive())["type"] != "http.disconnect":
                pass

        gone = asyncio.ensure_future(hang_up())
        handling = asyncio.ensure_future(self._app(scope, receive_whole, send))
        try:
            await asyncio.wait([handling, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not handling.done():
                handling.cancel()
                await asyncio.wait([handling])
            hold(scope.get(ADMITTED, ""), -held)
        if not handling.cancelled():
            handling.result()

    def _check_room(self, name: str) -> None:
        """Raise CallFailed if the bodies in memory exceed the limit of all principals or of this one."""
        whose = ""
        if name and self._held_by[name] > _MAX_OWN_BODIES * self._limit:
            whose = f" of {name}"
        elif self._held <= _MAX_BODIES * self._limit:
            return
        raise failed(
            CallError("OVERLOADED", f"too many large requests{whose} at the same time; try again later")
        )


def media_type(headers: Headers) -> str:
    """Return the media type of a body in lower case, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _check_size(size: int, limit: int) -> None:
    """Raise CallFailed for a body that is too large."""
    # The handler checks the exact limit of a message in an envelope.
    if size > limit + _ENVELOPE_BYTES:
        text = f"the body is larger than {limit} bytes, the limit"
        raise failed(CallError("MESSAGE_TOO_LARGE", text, limit=str(limit)))
