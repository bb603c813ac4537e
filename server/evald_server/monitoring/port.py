"""The monitoring port: metrics and probes over HTTP, in threads, so that it answers while the event loop is busy."""

import gzip
import logging
import socket
import ssl
import sys
from collections.abc import Callable
from http import HTTPStatus
from socketserver import TCPServer, ThreadingMixIn
from threading import Lock, Thread
from typing import Any, Final, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client.exposition import gzip_accepted

from .telemetry import Telemetry

_log = logging.getLogger("evald.http")

_Page: TypeAlias = tuple[int, str | bytes, dict[str, str]]

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Server": "evald",  # wsgiref's own names its version and Python's
    "Content-Type": "text/plain; charset=utf-8",
}

_REFUSED: Final[dict[int, _Page]] = {
    401: (401, "/metrics wants an API key", {"WWW-Authenticate": "Bearer"}),
    403: (403, "/metrics is for the roles viewer and admin", {}),
    429: (429, "too many invalid tokens; try again in a second", {"Retry-After": "1"}),
}


class _Handler(WSGIRequestHandler):
    server_version, sys_version = "evald", ""
    timeout = 10  # seconds; a peer that vanished would hold a thread and a descriptor for ever

    def get_environ(self) -> dict[str, Any]:
        return {**super().get_environ(), "evald.peer": self.client_address}

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send the code's own text: http.server's repeats the request, which may hold a secret."""
        super().send_error(code)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in http.server
        """Log nothing: probes come every few seconds."""


class HttpServer(ThreadingMixIn, WSGIServer):
    """The HTTP server for metrics and probes.

    ready: returns whether the server takes calls. store_problem: returns why the store cannot be used, or "".
    answers_to: returns whether the port answers this `Host` header. tls: returns the context of the next connection.
    may_scrape: returns the status for the `Authorization` headers and the address of a scrape: 200, 401, 403 or 429.
    All are called from other threads. The constructor raises OSError if the address is not available.
    """

    daemon_threads = True
    block_on_close = False
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
        tls: Callable[[], ssl.SSLContext] | None = None,
        may_scrape: Callable[[list[str], tuple[Any, ...]], int] = lambda _credentials, _address: 200,
    ) -> None:
        self._telemetry, self._ready, self._store_problem = telemetry, ready, store_problem
        self._answers_to, self._tls, self._may_scrape = answers_to, tls, may_scrape
        self._scraping = Lock()  # each scrape holds the interpreter lock, which the event loop needs
        self._thread = Thread(target=self.serve_forever, args=(0.2,), name="evald-http", daemon=True)
        # An empty host means all IPv4 addresses.
        resolved = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)  # noqa: S104
        self.address_family, _, _, _, address = resolved[0]
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(self._respond)

    def start(self) -> int:
        """Serve in the background until `stop`. Return the port."""
        self._thread.start()
        return self.server_port

    def stop(self) -> None:
        """Stop listening. A second call does nothing."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
        self.server_close()

    def server_bind(self) -> None:
        """Bind without HTTPServer's question to DNS for the machine's name, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. Its own thread does the TLS handshake, at the first read."""
        connection, address = super().get_request()
        if self._tls is not None:
            connection = self._tls().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the exception of a connection's thread. Called from its `except` clause."""
        broken = isinstance(sys.exception(), OSError)
        _log.log(logging.DEBUG if broken else logging.ERROR, "a connection failed", exc_info=True)

    def _respond(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        try:
            status, body, more = self._page(environ)
        except Exception:  # noqa: BLE001 - a fault must not end the probes
            _log.exception("%s failed", environ["PATH_INFO"])
            status, body, more = 500, "internal error; the server's log has the reason", {}
        content = body if isinstance(body, bytes) else f"{body}\n".encode()
        headers = {**_HEADERS, "Content-Length": str(len(content)), **more}
        start_response(f"{status} {HTTPStatus(status).phrase}", list(headers.items()))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [content]

    def _page(self, environ: dict[str, Any]) -> _Page:
        """Return the status, the body and further headers of a page."""
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return 405, "only GET and HEAD are served here", {"Allow": "GET, HEAD"}
        match environ["PATH_INFO"]:
            case "/":
                return 200, "evald: /metrics for Prometheus; /healthz and /readyz for probes", {}
            case "/healthz":
                return 200, "ok", {}
            case "/readyz" if self._ready():
                problem = self._store_problem()
                return 200, f"ready, but the store cannot be used: {problem}" if problem else "ready", {}
            case "/readyz":
                return 503, "not ready", {}
            case "/metrics":
                return self._metrics(environ)
        return 404, "no such page; / lists the existing ones", {}

    def _metrics(self, environ: dict[str, Any]) -> _Page:
        host = environ.get("HTTP_HOST", "")
        if not self._answers_to(host):
            wanted = "an IP address, localhost, or a host in web_hosts (EVALD_WEB_HOSTS)"
            return 421, f"Host: got {host[:200]!r}, wanted {wanted}", {}
        credentials = [environ["HTTP_AUTHORIZATION"]] if "HTTP_AUTHORIZATION" in environ else []
        status = self._may_scrape(credentials, environ["evald.peer"])
        if status != 200:
            return _REFUSED[status]
        with self._scraping:
            body, content_type = self._telemetry.exposition(environ.get("HTTP_ACCEPT", ""))
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", "")):
            headers["Content-Encoding"] = "gzip"
            body = gzip.compress(body, 1)  # level 1 already makes a scrape fifteen times smaller
        return 200, body, headers
