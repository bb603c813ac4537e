"""The web port: uvicorn in the event loop of gRPC's server."""

import asyncio
import re
import socket
from collections.abc import Callable, Sequence
from email.utils import formatdate
from ssl import SSLContext
from typing import Final

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from . import bridge
from .api import routes as api
from .calls import CallFailed
from .console import routes as console
from .errors import on_call_failed, on_http_exception
from .guards import MAX_HEAD_BYTES, Bodies, Guards
from .site import Site

# Limit for the TLS handshake, and for the arrival of a request's head.
_HEAD_SECONDS: Final = 10.0

# Limit for a body (`Bodies` answers 408 earlier), and for the caller to read the next part of a response or its rest.
_STUCK_SECONDS: Final = 35.0
_READ_BYTES: Final = 512 << 10

# Limit of the unread responses of all connections together.
_MAX_UNREAD_BYTES: Final = 128 << 20

# Limit of short chunks in one piece of received data. Parsing a chunk takes 12 us: a piece of 256 KiB, all chunks of
# one byte, would block the event loop for half a second.
_SHORT_CHUNK: Final = re.compile(rb"\r\n0*[0-9a-fA-F]{1,2}[;\r]")
_MAX_SHORT_CHUNKS: Final = 2000

_SWEEP_SECONDS: Final = 1.0
_BACKLOG: Final = 1024
_NO_DESCRIPTOR_SECONDS: Final = 0.05

# When the server stops, responses may take this long to end after their calls.
_FINAL_SECONDS: Final = 0.5

# The request headers that scripts of web_origins may send (CORS preflight).
_ALLOWED_HEADERS: Final = (
    "Authorization",
    "Content-Type",
    "Connect-Protocol-Version",
    "Connect-Timeout-Ms",
    "Idempotency-Key",
    "If-Match",
    "Last-Event-ID",
    "traceparent",
)


class WebServer:
    """The server of the console and the HTTP API, on a port of its own.

    tls: the TLS context for new connections; None for plain HTTP. max_connections: at this limit, a new connection
    replaces the one that has waited longest without a complete request: normal clients send theirs at once.
    """

    def __init__(
        self, site: Site, tls: Callable[[], SSLContext] | None = None, max_connections: int = 256
    ) -> None:
        # HTTP/1.1 only, whatever else is installed. uvicorn logs nothing: `Guards` logs exceptions of handlers, and
        # errors of callers are not worth a log line each.
        self._config = uvicorn.Config(
            application(site),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        self._tls = tls
        self._max_connections = max_connections
        self._state = ServerState()
        self._opening: dict[asyncio.Task[None], None] = {}  # oldest first
        self._open: set[_Connection] = set()
        self._listener: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the port. Raises OSError if the address is not available."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._tasks = [asyncio.create_task(self._accept(self._listener)), asyncio.create_task(self._sweep())]
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Stop listening, and close idle connections. Others close after their response."""
        for task in (*self._tasks, *self._opening):
            task.cancel()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._open):
            connection.shutdown()

    async def stop(self) -> None:
        """Give responses half a second to end, and close all connections."""
        self.close()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=_FINAL_SECONDS)
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._open):
            connection.transport.abort()
        await asyncio.gather(*self._tasks, *self._opening, *self._state.tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError:  # no file descriptor left, or the client has disconnected
                await asyncio.sleep(_NO_DESCRIPTOR_SECONDS)
                continue
            if not self._make_room():
                client.close()
                continue
            # asyncio sets this only for sockets that name their protocol. Without it a response waits 40 ms for an
            # acknowledgement.
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.create_task(self._connect(client))
            self._opening[task] = None
            task.add_done_callback(self._opening.pop)

    async def _connect(self, client: socket.socket) -> None:
        """Serve a connection, after the TLS handshake."""
        tls = self._tls() if self._tls else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Connection(self._config, self._state, self._open),
                client,
                ssl=tls,
                ssl_handshake_timeout=_HEAD_SECONDS if tls else None,
            )
        except OSError:  # also a TLS handshake that failed or timed out
            client.close()

    def _make_room(self) -> bool:
        """At the limit, close the connection that has waited longest. Returns whether there is room for a new one."""
        if len(self._opening) + len(self._open) < self._max_connections:
            return True
        if self._opening:
            next(iter(self._opening)).cancel()
            return True
        waiting = [connection for connection in self._open if connection.waits or connection.sends]
        return _cut_oldest(self._open, waiting or [one for one in self._open if one.unread])

    async def _sweep(self) -> None:
        """Once a second, close overdue connections and update the Date header."""
        while True:
            self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            now = asyncio.get_running_loop().time()
            for connection in [found for found in self._open if found.is_overdue(now)]:
                connection.transport.abort()
            await asyncio.sleep(_SWEEP_SECONDS)


class _Connection(H11Protocol):
    """A connection with the time of its last change of state. uvicorn limits only the time between two requests."""

    def __init__(self, config: uvicorn.Config, state: ServerState, opened: set["_Connection"]) -> None:
        super().__init__(config, state, {})
        self._opened = opened
        self._unread = 0  # unread bytes at the time `since`
        self.since = self.loop.time()

    @property
    def unread(self) -> int:
        """The size in bytes of the unread response; 0 while the handler can still write."""
        goes_on = self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)
        return self.transport.get_write_buffer_size() if self.flow.write_paused or not goes_on else 0

    @property
    def waits(self) -> bool:
        """Whether the connection waits for the head of a request."""
        return self.conn.their_state is h11.IDLE and not self.unread

    @property
    def sends(self) -> bool:
        """Whether the connection waits for the rest of a body, which the handler might never read."""
        return self.conn.their_state is h11.SEND_BODY

    def is_overdue(self, now: float) -> bool:
        """Return whether the caller takes too long to send a head or a body, or to read a response."""
        if self.waits:
            return now - self.since > _HEAD_SECONDS
        unread = self.unread
        if now - self.since <= _STUCK_SECONDS or not (unread or self.sends):
            return False
        if self._unread - unread < _READ_BYTES:
            return True
        self._begin_to_wait(now)
        return False

    def _begin_to_wait(self, now: float) -> None:
        self.since, self._unread = now, self.unread

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Add the connection to the open ones."""
        self._opened.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the open ones."""
        self._opened.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received data: a request or a part of one."""
        before = self.conn.their_state
        try:
            if len(_SHORT_CHUNK.findall(data)) > _MAX_SHORT_CHUNKS:
                self.send_400_response("The body arrives in too many chunks of fewer than 256 bytes.")
                return
            super().data_received(data)
        except h11.LocalProtocolError:  # garbage while a response is being sent
            self.transport.abort()
        if self.conn.their_state is h11.DONE and self.conn.trailing_data[0]:
            # A pipelined request. uvicorn pauses reading then, and would not notice a disconnect.
            if len(self.conn.trailing_data[0]) > MAX_HEAD_BYTES:
                self.transport.abort()
            self.flow.resume_reading()
        if self.conn.their_state is not before:
            self._begin_to_wait(self.loop.time())

    def on_response_complete(self) -> None:
        """Start the time limit of the next request."""
        self._begin_to_wait(self.loop.time())
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start the time limit of reading. Cut the connection waiting longest if too many bytes are unread."""
        super().pause_writing()
        self._begin_to_wait(self.loop.time())
        if self._unread <= _READ_BYTES:
            return  # too few to matter, however many connections there are
        stuck = [connection for connection in self._opened if connection.unread]
        if sum(connection.unread for connection in stuck) > _MAX_UNREAD_BYTES:
            _cut_oldest(self._opened, stuck)


def _cut_oldest(opened: set[_Connection], found: Sequence[_Connection]) -> bool:
    """Cut the connection that has waited longest. Returns whether there was one."""
    if not found:
        return False
    oldest = min(found, key=lambda connection: connection.since)
    opened.discard(oldest)
    oldest.transport.abort()
    return True


def application(site: Site) -> Starlette:
    """Return the application of the web port: routes and middleware."""
    settings = site.settings
    pages = console.routes(site) if settings.web_console else []
    scripts = Middleware(
        CORSMiddleware,
        allow_origins=settings.web_origins,
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=_ALLOWED_HEADERS,
        expose_headers=["Retry-After", "Link", "ETag"],
    )
    return Starlette(
        routes=[*bridge.routes(site), *api.routes(site), *pages],
        middleware=[
            Middleware(Guards, settings=settings),
            *([scripts] if settings.web_origins else []),
            Middleware(Bodies, max_message_bytes=settings.max_message_bytes),
        ],
        exception_handlers={CallFailed: on_call_failed, HTTPException: on_http_exception},
    )
