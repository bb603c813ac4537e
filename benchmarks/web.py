"""Figures of the web port: HTTP calls compared with gRPC, and gRPC calls while a user loads console pages."""

import itertools
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

from google.protobuf.json_format import MessageToJson

from . import processes, workload
from .lab import UNARY, Lab
from .load import BrokenRun
from .pairs import Row, at_most, paired
from .processes import Server

_PAGES: Final = (
    "/console/overview",
    "/console/runs",
    "/console/scenarios",
    "/console/suites",
    "/console/evaluators",
)
_CLICKS_PER_SECOND: Final = 5


class KeptConnection:
    """A persistent HTTP/1.1 connection. Not `http.client`, which takes longer for an exchange than the server."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._socket.close()

    def get(self, path: str) -> bytes:
        """Return the body of a page. Raises BrokenRun unless its status is 200."""
        return self._ask(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(), path)

    def post(self, path: str, data: bytes) -> bytes:
        """Post JSON and return the body of the response. Raises BrokenRun unless its status is 200."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        return self._ask(head.encode() + data, path)

    def _ask(self, request: bytes, path: str) -> bytes:
        self._socket.sendall(request)
        status = self._answers.readline()
        size = 0
        while line := self._answers.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        body = self._answers.read(size)
        if b" 200 " not in status:
            raise BrokenRun(f"{path}: {status.decode().strip() or 'no answer'}")
        return body


def web_unary(lab: Lab) -> list[Row]:
    """Compare single calls over HTTP and over gRPC, one at a time, on persistent connections."""
    server, port = start_web(lab)
    body, _ = lab.unary()
    data = MessageToJson(workload.unary_request(), indent=None).encode()

    with KeptConnection(port) as connection:

        def over_http() -> float:
            times: list[float] = []
            answer, end = b"", time.perf_counter() + lab.seconds
            while (began := time.perf_counter()) < end:
                answer = connection.post(UNARY, data)
                times.append(1000 * (time.perf_counter() - began))
            if b'"success": true' not in answer:
                raise BrokenRun(f"the call over HTTP did not pass: {answer[:300]!r}")
            return statistics.median(times)

        pairs = paired(
            lab.rounds,
            over_http,
            lambda: lab.load(UNARY, body, "--expect", "1", server=server, in_flight=1).p50,
        )
    added = [ours - theirs for ours, theirs in zip(pairs.ours, pairs.theirs, strict=True)]
    figure = f"p50 of `EvaluateUnary` over HTTP with {len(data) / 1000:.1f} KB of JSON - over gRPC, ms"
    return [Row(figure, at_most(1.5), added, pairs.row(figure, None, "ms, one call at a time").detail)]


def beside_pages(lab: Lab) -> list[Row]:
    """Compare gRPC calls while pages are loaded with gRPC calls alone."""
    server, port = start_web(lab)
    body, _ = lab.unary()

    def alone() -> float:
        return lab.load(UNARY, body, "--expect", "1", server=server).p99

    def disturbed() -> float:
        with _clicking(port):
            return alone()

    figure = (
        f"p99 of unary calls beside {_CLICKS_PER_SECOND} pages of the console a second / alone, 16 in flight"
    )
    return [paired(lab.rounds, disturbed, alone).row(figure, at_most(1.25), "ms")]


@contextmanager
def _clicking(port: int) -> Iterator[None]:
    """Load one page after another while the block runs. Raises BrokenRun if a page fails."""
    ended = threading.Event()
    problems: list[str] = []

    def click() -> None:
        with KeptConnection(port) as connection:
            for page in itertools.cycle(_PAGES):
                if ended.wait(1 / _CLICKS_PER_SECOND):
                    return
                try:
                    connection.get(page)
                except (BrokenRun, OSError) as problem:
                    problems.append(str(problem))
                    return

    clicker = threading.Thread(target=click)
    clicker.start()
    try:
        yield
    finally:
        ended.set()
        clicker.join()
    if problems:
        raise BrokenRun(f"pages that are not shown: {', '.join(sorted(set(problems)))}")


def start_web(lab: Lab, **settings: Any) -> tuple[Server, int]:
    """Start a server with a web port. Return the server and the port, which is in its second output line."""
    server = lab.start(lambda: processes.evald(web="127.0.0.1:0", **settings))
    return server, int(server.read_line().rpartition(":")[2])
