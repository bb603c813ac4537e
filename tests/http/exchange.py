"""Raw HTTP requests, header by header, each on its own connection."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import h11

JSON = {"content-type": "application/json"}


class Exchange(NamedTuple):
    """A response. headers: by lower-case name."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        """Return the body as NDJSON."""
        return [json.loads(line) for line in self.body.splitlines()]


def head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    """Return the head of a request."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join((*lines, "", "")).encode()


@asynccontextmanager
async def connected(
    address: str, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Return a connection to HOST:PORT."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(
        host.strip("[]"),
        int(port),
        ssl=tls,
        limit=2**20,  # a catalogue is one line, and has more than the default of 64 KiB
    )
    try:
        yield reader, writer
    finally:
        writer.close()


async def send(
    address: str,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    tls: ssl.SSLContext | None = None,
) -> Exchange:
    """Send a request and return its response. headers: Host and Content-Length are correct by default."""
    sent = {"host": address, "connection": "close", "content-length": str(len(body))} | dict(headers or {})
    async with connected(address, tls) as (reader, writer):
        writer.write(head(method, path, sent) + body)
        return await receive(reader, method)


async def receive(reader: asyncio.StreamReader, method: str = "GET") -> Exchange:
    """Read the response to a request with this method."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method=method, target="/", headers=[("host", "it")]))
    connection.send(h11.EndOfMessage())
    status, headers, body = 0, {}, b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = {name.decode(): value.decode() for name, value in event.headers}
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return Exchange(status, headers, body)


async def post(
    address: str, method: str, value: object, headers: Mapping[str, str] | None = None
) -> Exchange:
    """Call a method with a JSON body. method: as "EvaluationService/Evaluate"."""
    body = json.dumps(value).encode()
    return await send(address, "POST", f"/evald.v1.{method}", JSON | dict(headers or {}), body)
