"""The monitoring port: /metrics, /healthz and /readyz over HTTP.

It has its own threads, so it answers while the event loop is busy or stuck. It limits the number and the duration of
connections, and the share of time in which scrapes hold the interpreter lock. So a hostile peer can neither block
probes nor take the event loop's time.
"""

import gzip
import io
import logging
import re
import socket
import socketserver
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, NamedTuple

from .telemetry import Telemetry

_log = logging.getLogger("evald.http")

# A probe takes milliseconds and a scrape well below a second; Prometheus waits 10 s by default.
MAX_CONNECTIONS: Final = 64
CONNECTION_SECONDS: Final = 10.0

# Prometheus sends about 400 bytes, a browser 2 KiB. http.server alone would read up to 6.5 MB of headers.
_MAX_HEAD_BYTES: Final = 16 * 1024

# http.server also accepts HTTP/0.9, other servers' URLs and malformed header lines.
_WELL_FORMED: Final = re.compile(
    rb"[A-Za-z]+ /\S* HTTP/1\.[01]\r\n"  # request line
    rb"(?:[!-9;-~]+:[^\r\n]*\r\n)*"  # headers
    rb"\r\n"
)

# A scrape of 2,000 series holds the interpreter lock for 10 to 20 ms. A pause of 9 times that after each scrape leaves
# 90 % of the time to the event loop, however many scrapes are requested.
_PAUSE_PER_SCRAPE: Final = 9

# Maximum delay before an overdue connection is closed, and maximum duration of `stop`.
_POLL_SECONDS: Final = 0.2

_INDEX: Final = """\
evald

/metrics  Prometheus telemetry
/healthz  200 while the process runs
/readyz   200 while it accepts calls, else 503
"""


class HttpResponse(NamedTuple):
    """An HTTP response. headers: in addition to the headers of every response."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = {}


_REFUSED: Final = {
    401: HttpResponse(401, b"/metrics wants an API key\n", headers={"WWW-Authenticate": "Bearer"}),
    403: HttpResponse(403, b"/metrics is for the roles viewer and admin\n"),
    429: HttpResponse(429, b"too many invalid tokens; try again in a second\n", headers={"Retry-After": "1"}),
}


class HttpServer(socketserver.ThreadingTCPServer):
    """The HTTP server for metrics and probes, with one thread per connection and limits for connections.

    host, port: the address to bind; port 0 picks a free one. ready: returns whether the server takes calls; called
    from another thread for every /readyz. max_connections: above this number the oldest connection is closed: an
    honest one ends within milliseconds, so the oldest one only occupies a place. connection_seconds: the maximum
    duration of a connection, however slowly it is used. tls: returns the context of the next connection; None for
    plaintext. may_scrape: returns the status for the `Authorization` headers and the address of a scrape: 200, 401,
    403 or 429. Both are called from other threads. The constructor raises OSError if the address is not available.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self,
        telemetry: Telemetry,
        *,
        host: str,
        port: int,
        ready: Callable[[], bool],
        store_problem: Callable[[], str] = lambda: "",
        answers_to: Callable[[str], bool] = lambda _host: True,
        max_connections: int = MAX_CONNECTIONS,
        connection_seconds: float = CONNECTION_SECONDS,
        tls: Callable[[], ssl.SSLContext] | None = None,
        may_scrape: Callable[[list[str], tuple[Any, ...]], int] = lambda _credentials, _address: 200,
    ) -> None:
        self._telemetry = telemetry
        self._ready = ready
        self._store_problem = store_problem
        self._answers_to = answers_to
        self._max_connections = max_connections
        self._connection_seconds = connection_seconds
        self._tls = tls
        self._may_scrape = may_scrape
        self._deadlines: dict[socket.socket, float] = {}  # in order of arrival
        self._lock = threading.Lock()
        self._scraping = threading.Lock()
        self._pause_until = 0.0
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_SECONDS,), name="evald-http", daemon=True
        )
        # An empty host means all IPv4 addresses.
        found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)  # noqa: S104
        self.address_family, _, _, _, address = found[0]
        super().__init__((str(address[0]), port), _RequestHandler)

    def start(self) -> int:
        """Serve in the background until `stop`. Return the port."""
        self._thread.start()
        port: int = self.server_address[1]
        return port

    def stop(self) -> None:
        """Stop listening and close open connections. A second call does nothing."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
        self.server_close()
        with self._lock:
            for connection in list(self._deadlines):
                self._cut(connection)

    def respond(self, path: str, headers: Message, address: tuple[Any, ...]) -> HttpResponse:
        """Return the response to a GET request. address: of the caller."""
        match path:
            case "/metrics":
                host = headers.get("Host", "")
                if not self._answers_to(host):
                    wanted = "an IP address, localhost, or a host in web_hosts (EVALD_WEB_HOSTS)"
                    return HttpResponse(421, f"Host: got {host[:200]!r}, wanted {wanted}\n".encode())
                status = self._may_scrape(headers.get_all("Authorization", []), address)
                return self._metrics(headers) if status == 200 else _REFUSED[status]
            case "/healthz":
                return HttpResponse(200, b"ok\n")
            case "/readyz":
                if not self._ready():
                    return HttpResponse(503, b"not ready\n")
                problem = self._store_problem()
                note = f", but the store cannot be used: {problem}" if problem else ""
                return HttpResponse(200, f"ready{note}\n".encode())
            case "/":
                return HttpResponse(200, _INDEX.encode())
        return HttpResponse(404, b"no such page; / lists the existing ones\n")

    # Not prometheus_client.make_wsgi_app: it compresses even for `gzip;q=0`, always at level 9, copies the requested
    # version into its response, and refuses HEAD.
    def _metrics(self, headers: Message) -> HttpResponse:
        with self._scraping:
            time.sleep(max(0.0, self._pause_until - time.monotonic()))
            began = time.thread_time()
            body, content_type = self._telemetry.exposition(", ".join(headers.get_all("Accept", ())))
            self._pause_until = time.monotonic() + _PAUSE_PER_SCRAPE * (time.thread_time() - began)
        extra = {"Vary": "Accept, Accept-Encoding"}
        if _accepts_gzip(",".join(headers.get_all("Accept-Encoding", ()))):
            # Level 1 already makes a scrape fifteen times smaller.
            body = gzip.compress(body, 1, mtime=0)
            extra["Content-Encoding"] = "gzip"
        return HttpResponse(200, body, content_type, extra)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. Its own thread does the TLS handshake, at the first read."""
        connection, address = super().get_request()
        if self._tls is not None:
            connection = self._tls().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Register the connection, close the oldest one if there are too many, and start its thread."""
        request.settimeout(self._connection_seconds)
        with self._lock:
            if len(self._deadlines) >= self._max_connections:
                self._cut(next(iter(self._deadlines)))
            self._deadlines[request] = time.monotonic() + self._connection_seconds
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that has ended."""
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the exception of a connection's thread. Called from its `except` clause."""
        if isinstance(sys.exception(), OSError):
            _log.debug("a connection broke", exc_info=True)
        else:
            _log.exception("a connection failed")

    def service_actions(self) -> None:
        """Close overdue connections. socketserver calls this at every poll."""
        with self._lock:
            now = time.monotonic()
            for connection in [one for one, deadline in self._deadlines.items() if deadline <= now]:
                self._cut(connection)

    def _cut(self, connection: socket.socket) -> None:
        """Shut a connection down. Its thread notices and closes it."""
        del self._deadlines[connection]
        with suppress(OSError):  # the peer has already closed it
            # Not SSLSocket.shutdown, which would make the thread continue to read in plaintext.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _RequestHandler(BaseHTTPRequestHandler):
    """The handler of a connection, which has only one request."""

    protocol_version = "HTTP/1.1"
    server: HttpServer
    # Values for an error response to a request that could not be parsed.
    command = ""
    request_version = "HTTP/1.1"

    def handle(self) -> None:
        """Read the request's head, up to a limit, and respond. An incomplete head gets no response."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self.rfile.readline(_MAX_HEAD_BYTES - len(head))
            if not line:
                if len(head) >= _MAX_HEAD_BYTES:
                    self.send_error(431)
                return
            head += line
        if not _WELL_FORMED.fullmatch(head):
            self.send_error(400)
            return
        self.rfile.close()
        self.rfile = io.BytesIO(head)
        self.raw_requestline = self.rfile.readline()
        if not self.parse_request():
            return  # parse_request has sent the error
        if self.command not in ("GET", "HEAD"):
            self._send(
                HttpResponse(405, b"only GET and HEAD are served here\n", headers={"Allow": "GET, HEAD"})
            )
            return
        # Not self.path, in which http.server has replaced "//" with "/".
        path = self.requestline.split()[1].partition("?")[0]
        self._send(self.server.respond(path, self.headers, self.client_address))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send a short text instead of http.server's HTML page, which repeats the request."""
        self._send(HttpResponse(code, f"{self.responses[code][0]}\n".encode()))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in http.server
        """Log nothing: probes come every few seconds."""

    def _send(self, response: HttpResponse) -> None:
        # Not send_response, which adds headers that name the software.
        self.send_response_only(response.status)
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Connection": "close",
            **response.headers,
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)


def _accepts_gzip(accept_encoding: str) -> bool:
    for coding in accept_encoding.lower().split(","):
        name, _, parameters = coding.replace(" ", "").partition(";")
        if name == "gzip":
            return parameters.rstrip("0.") != "q="
    return False
