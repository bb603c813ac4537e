"""One connection to an agent: HTTP/1.1 with h11 over asyncio transports.

A client library with a connection pool takes three times as long per request, all of it in the event loop.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping
from typing import Any, Final, Self, cast

import h11

from .connector import YieldToCalls

# Above this many received bytes, reading pauses until some are taken.
_MAX_WAITING_BYTES: Final = 256 << 10
_MAX_HEAD_BYTES: Final = 64 << 10

# Received bytes that are parsed at a time: they can be thousands of HTTP chunks of one byte.
_BYTES_AT_ONCE: Final = 8 << 10

# Maximum time that parsing may hold the event loop before other tasks run.
_SLICE_SECONDS: Final = 0.0005

# Servers keep an idle connection for 5 s or longer. A request fails if the server closes the connection before it.
_IDLE_SECONDS: Final = 2.0

BROKEN: Final = (OSError, h11.ProtocolError)
"""Exceptions of reading and writing when the connection ends, or the received data is not HTTP."""


class _Inbox(asyncio.Protocol):
    """A buffer of received bytes that were not taken yet."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._ended = False
        self._problem: Exception | None = None  # that ended the connection
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether neither data nor the end of the connection has arrived."""
        return not self._received and not self._ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._received += data
        if len(self._received) > _MAX_WAITING_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if not self._ended:
            self._ended, self._problem = True, exc
        self._wake()

    def eof_received(self) -> None:
        """See asyncio.Protocol."""
        self.connection_lost(None)

    async def take(self) -> bytes:
        """Wait for data and return up to 8 KiB of it; b"" at the end. Raises OSError for a reset."""
        if self.is_quiet:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if not self._received and self._problem is not None:
            # Otherwise an answer without a declared length would look complete.
            raise ConnectionResetError from self._problem
        data = bytes(self._received[:_BYTES_AT_ONCE])
        del self._received[:_BYTES_AT_ONCE]
        if self._transport is not None and not self._ended and not self._received:
            self._transport.resume_reading()
        return data

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class HttpConnection:
    """A connection to an agent, for one request after another. address: the agent's IP address or host."""

    def __init__(
        self, address: str, transport: asyncio.Transport, inbox: _Inbox, yield_to_calls: YieldToCalls
    ) -> None:
        self.address = address
        self._transport = transport
        self._inbox = inbox
        self._yield_to_calls = yield_to_calls
        self._slice_ends = 0.0
        self._http = h11.Connection(h11.CLIENT, _MAX_HEAD_BYTES)
        self._last_used = 0.0

    @classmethod
    async def open(
        cls,
        address: str,
        port: int,
        tls: ssl.SSLContext | None,
        server_name: str,
        yield_to_calls: YieldToCalls,
    ) -> Self:
        """Connect. server_name: the name in the server's certificate. yield_to_calls: see `pause`. Raises OSError."""
        transport, inbox = await asyncio.get_running_loop().create_connection(
            _Inbox, address, port, ssl=tls, server_hostname=server_name if tls else None
        )
        return cls(address, transport, inbox, yield_to_calls)

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent: recently used, and nothing received since the last answer."""
        return self._inbox.is_quiet and time.monotonic() - self._last_used < _IDLE_SECONDS

    async def send(
        self, method: str, path: str, headers: Mapping[str, str], content: bytes
    ) -> tuple[int, dict[str, str]]:
        """Send a request. Returns the status and the headers of the answer, names in lower case. Raises BROKEN."""
        fields = [*headers.items(), ("content-length", str(len(content)))]
        request = h11.Request(method=method, target=path, headers=fields)
        events = (request, h11.Data(content), h11.EndOfMessage())
        # Do not wait until it is sent: an agent may refuse a request before it has read it to the end.
        self._transport.write(b"".join(filter(None, map(self._http.send, events))))
        self._begin_slice()
        while not isinstance(event := await self._next_event(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("wanted a response")
        return event.status_code, {
            name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers
        }

    async def piece(self) -> bytes:
        """Return the next piece of the answer's body; b"" at its end. Raises BROKEN."""
        event = await self._next_event()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    def finish(self) -> bool:
        """Prepare for the next request. If that is impossible, close the connection and return False."""
        self._last_used = time.monotonic()
        done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if not done or self._http.trailing_data[0] or not self._inbox.is_quiet:
            self.close()
            return False
        self._http.start_next_cycle()
        return True

    def close(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    async def pause(self) -> None:
        """Let other tasks run if parsing has held the event loop for too long."""
        if time.perf_counter() > self._slice_ends:
            await self._yield_to_calls()
            self._begin_slice()

    def _begin_slice(self) -> None:
        self._slice_ends = time.perf_counter() + _SLICE_SECONDS

    async def _next_event(self) -> Any:
        while True:
            await self.pause()
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            waits = self._inbox.is_quiet
            self._http.receive_data(await self._inbox.take())
            if waits:
                self._begin_slice()
