"""HTTP/2 requests that no gRPC client sends."""

import socket
import ssl
from collections.abc import Mapping

_HEADERS = {
    ":method": b"POST",
    ":scheme": b"http",
    ":authority": b"evald",
    "content-type": b"application/grpc",
    "te": b"trailers",
}


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _text(value: bytes) -> bytes:
    """Return an HPACK string of at most 254 bytes."""
    return (bytes([len(value)]) if len(value) < 127 else bytes([127, len(value) - 127])) + value


def call(
    address: str,
    path: bytes,
    headers: Mapping[str, bytes] | None = None,
    settings: bytes = b"",
    tls: ssl.SSLContext | None = None,
) -> socket.socket:
    """Return a connection with one sent call, whose message is empty. settings: of HTTP/2, six bytes each."""
    fields = _HEADERS | {":path": path} | dict(headers or {})
    block = b"".join(b"\0" + _text(name.encode()) + _text(value) for name, value in fields.items())
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    if tls is not None:
        connection = tls.wrap_socket(connection, server_hostname=host)
    connection.sendall(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + _frame(4, 0, 0, settings)  # SETTINGS
        + _frame(1, 4, 1, block)  # HEADERS, END_HEADERS
        + _frame(0, 1, 1, bytes(5))  # DATA, END_STREAM: an empty message
        + _frame(4, 1, 0, b"")  # SETTINGS, ACK
    )
    return connection


def wait(connection: socket.socket) -> None:
    """Wait until the call is answered or the server closes the connection."""
    with connection.makefile("rb") as frames:
        while head := frames.read(9):
            frames.read(int.from_bytes(head[:3], "big"))
            if head[3] in (1, 3, 7):  # HEADERS, RST_STREAM, GOAWAY
                return
