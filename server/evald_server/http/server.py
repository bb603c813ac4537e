"""The HTTP port for monitoring: /metrics, /healthz, /readyz.

It has threads of its own, so that it answers while the event loop is busy or stuck. It is meant
for the cluster's own network, yet a hostile peer may neither stop the probes nor take the event
loop's time: connections are few and short, and scrapes leave the interpreter lock alone most of
the time.
"""

import gzip
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NamedTuple

from evald_server.telemetry import Telemetry

from .request import Refused, Request, read_request

_log = logging.getLogger("evald.http")

# A probe takes milliseconds and a scrape well below a second; Prometheus waits 10 s by default.
MAX_CONNECTIONS = 64
CONNECTION_SECONDS = 10.0

# A scrape of 2,000 series works for 10 to 20 ms under the interpreter lock. Resting 9 times as
# long after each leaves the event loop nine tenths of it, however many are asked for.
_REST = 9

_TEXT = "text/plain; charset=utf-8"
_INDEX = """\
evald

/metrics  Prometheus telemetry
/healthz  200 while the process lives
/readyz   200 while it takes calls, else 503
"""


class Answer(NamedTuple):
    """What goes back. headers: besides those that every answer has."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = {}


class HttpServer:
    """Serves the telemetry and the probes.

    host: address to bind. port: 0 picks a free one. ready: whether the server takes calls; asked
    from another thread at every /readyz. connection_seconds: how long a connection may last,
    however slowly it is used.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        *,
        host: str,
        port: int,
        ready: Callable[[], bool],
        max_connections: int = MAX_CONNECTIONS,
        connection_seconds: float = CONNECTION_SECONDS,
    ) -> None:
        self._telemetry = telemetry
        self._host = host
        self._port = port
        self._ready = ready
        self._max_connections = max_connections
        self._connection_seconds = connection_seconds
        self._routes: dict[str, Callable[[Request], Answer]] = {
            "/": lambda _: _text(200, _INDEX),
            "/metrics": self._metrics,
            "/healthz": lambda _: _text(200, "ok\n"),
            "/readyz": lambda _: _text(200, "ready\n") if self._ready() else _text(503, "not ready\n"),
        }
        self._scraping = threading.Lock()
        self._rest_until = 0.0
        self._listener: _Listener | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> int:
        """Listen, and serve until `stop`. Returns the port. Raises OSError when the address cannot be had."""
        listener = _Listener(
            self._host, self._port, self._serve, self._max_connections, self._connection_seconds
        )
        # 0.2 s: how late an overdue connection is cut, and how long `stop` may take.
        self._thread = threading.Thread(
            target=listener.serve_forever, args=(0.2,), name="evald-http", daemon=True
        )
        self._listener = listener
        self._thread.start()
        port: int = listener.socket.getsockname()[1]
        return port

    def stop(self) -> None:
        """Stop listening and cut what is open. Does nothing before `start` or a second time."""
        if self._listener is None or self._thread is None:
            return
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()
        self._listener.cut_all()
        self._listener = None

    def _serve(self, connection: socket.socket) -> None:
        """Answer the one request of a connection."""
        request: Request | None = None
        try:
            request = read_request(connection)
            if request is None:
                return
            answer = self._answer(request)
        except Refused as refusal:
            answer = _text(refusal.status, f"{refusal.text}\n")
        connection.sendall(_head(answer))
        if request is None or request.method != "HEAD":
            connection.sendall(answer.body)

    def _answer(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return _text(405, "only GET and HEAD are served here\n", {"Allow": "GET, HEAD"})
        route = self._routes.get(request.path)
        if route is None:
            return _text(404, "there is no such page; / lists those that there are\n")
        return route(request)

    def _metrics(self, request: Request) -> Answer:
        with self._scraping:
            time.sleep(max(0.0, self._rest_until - time.monotonic()))
            began = time.thread_time()
            body, content_type = self._telemetry.exposition(request.headers.get("accept", ""))
            self._rest_until = time.monotonic() + _REST * (time.thread_time() - began)
        headers = {"Vary": "Accept, Accept-Encoding"}
        if _takes_gzip(request.headers.get("accept-encoding", "")):
            # Level 1 already shrinks a scrape fifteenfold.
            return Answer(
                200, content_type, gzip.compress(body, 1, mtime=0), {**headers, "Content-Encoding": "gzip"}
            )
        return Answer(200, content_type, body, headers)


class _Listener(socketserver.ThreadingTCPServer):
    """A thread per connection. When there are too many, the oldest one goes.

    An honest connection is over within milliseconds, so the oldest of many is one that was
    opened to occupy its place, and a probe always gets in.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self,
        host: str,
        port: int,
        serve: Callable[[socket.socket], None],
        max_connections: int,
        connection_seconds: float,
    ) -> None:
        self._serve = serve
        self._max_connections = max_connections
        self._connection_seconds = connection_seconds
        self._deadlines: dict[socket.socket, float] = {}  # in order of arrival
        self._lock = threading.Lock()
        # An empty host means all addresses, of IPv4 as well.
        found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)  # noqa: S104
        family, _, _, _, address = found[0]
        self.address_family = family
        super().__init__((str(address[0]), port), socketserver.BaseRequestHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(self._connection_seconds)
        with self._lock:
            if len(self._deadlines) >= self._max_connections:
                self._cut(next(iter(self._deadlines)))
            self._deadlines[request] = time.monotonic() + self._connection_seconds
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        try:
            self._serve(request)
        except OSError:
            _log.debug("a connection broke", exc_info=True)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.exception("a connection failed")

    def service_actions(self) -> None:
        """Cut what is overdue. Called at every poll."""
        with self._lock:
            now = time.monotonic()
            for connection in [one for one, deadline in self._deadlines.items() if deadline <= now]:
                self._cut(connection)

    def cut_all(self) -> None:
        with self._lock:
            for connection in list(self._deadlines):
                self._cut(connection)

    def _cut(self, connection: socket.socket) -> None:
        """End a connection under the hands of its thread, which then closes it."""
        del self._deadlines[connection]
        with suppress(OSError):  # the other side was faster
            connection.shutdown(socket.SHUT_RDWR)


def _text(status: int, text: str, headers: Mapping[str, str] = {}) -> Answer:
    return Answer(status, _TEXT, text.encode(), headers)


def _head(answer: Answer) -> bytes:
    headers = {
        "Content-Type": answer.content_type,
        "Content-Length": str(len(answer.body)),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Connection": "close",
        **answer.headers,
    }
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _takes_gzip(accept_encoding: str) -> bool:
    for coding in accept_encoding.lower().split(","):
        name, _, parameters = coding.replace(" ", "").partition(";")
        if name == "gzip":
            return parameters.rstrip("0.") != "q="
    return False
