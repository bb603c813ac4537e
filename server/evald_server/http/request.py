"""The head of an HTTP request, as far as a monitoring port needs it."""

import socket
from collections.abc import Mapping
from typing import NamedTuple

# Prometheus sends about 400 bytes, a browser 2 KiB.
MAX_HEAD_BYTES = 16 * 1024
MAX_HEADERS = 100


class Refused(Exception):
    """The request gets this status and short text instead of an answer."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.text = text
        super().__init__(text)


class Request(NamedTuple):
    """What was asked for. path: without the query. headers: by lower-case name; repeated ones joined."""

    method: str
    path: str
    headers: Mapping[str, str]


def read_request(connection: socket.socket) -> Request | None:
    """The request, or None when the other side left before it was complete. Raises Refused."""
    received = bytearray()
    while (end := received.find(b"\r\n\r\n")) < 0:
        if len(received) >= MAX_HEAD_BYTES:
            raise Refused(431, f"the request's head is larger than {MAX_HEAD_BYTES} bytes")
        chunk = connection.recv(4096)
        if not chunk:
            return None
        received += chunk
    return parse_head(received[:end].decode("latin-1"))


def parse_head(head: str) -> Request:
    """The request that this head, without its empty line, stands for. Raises Refused."""
    request_line, *lines = head.split("\r\n")
    method, _, rest = request_line.partition(" ")
    target, _, version = rest.partition(" ")
    if not method.isalpha() or not target.startswith("/") or version not in ("HTTP/1.1", "HTTP/1.0"):
        raise Refused(400, "this is no HTTP/1.1 request")
    if len(lines) > MAX_HEADERS:
        raise Refused(431, f"the request has more than {MAX_HEADERS} headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Refused(400, "a header of the request is malformed")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Request(method, target.partition("?")[0], headers)
