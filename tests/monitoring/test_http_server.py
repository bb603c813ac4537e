"""The monitoring port answers probes and scrapes, whatever else is done to it."""

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pytest

from evald_server.monitoring import HttpServer, Telemetry

# Well below the 10 s after which the server cuts every connection.
SOON = 3

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def exchange(port: int, sent: bytes) -> bytes:
    """Everything that comes back until the server closes; reset counts as closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=SOON) as connection:
        connection.sendall(sent)
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    return received


def parse(raw: bytes) -> Reply:
    head, _, body = raw.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    version, code, _ = status.split(" ", 2)
    assert version == "HTTP/1.1"
    return Reply(
        int(code), {name.lower(): text for name, text in (line.split(": ", 1) for line in lines)}, body
    )


def get(port: int, path: str, method: str = "GET", **headers: str) -> Reply:
    lines = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in headers.items())
    return parse(exchange(port, f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode()))


@contextmanager
def serving(
    telemetry: Telemetry | None = None, ready: Callable[[], bool] = lambda: True, **options: Any
) -> Iterator[int]:
    """The port of a server."""
    http = HttpServer(telemetry or Telemetry(), host="127.0.0.1", port=0, ready=ready, **options)
    try:
        yield http.start()
    finally:
        http.stop()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server with four connections at most, which is few enough to fill."""
    with serving(max_connections=4) as port:
        yield port


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/healthz", 200, "ok\n"),
        ("GET", "/readyz", 200, "ready\n"),
        ("GET", "/metrics", 200, "evald_build_info{"),
        ("GET", "/metrics?x=1", 200, "evald_build_info{"),
        ("GET", "/", 200, "/metrics"),
        ("GET", "/metrics/", 404, "no such page"),
        ("GET", "/../etc/passwd", 404, "no such page"),
        ("GET", "//metrics", 404, "no such page"),
        ("POST", "/metrics", 405, "only GET and HEAD"),
        ("DELETE", "/", 405, "only GET and HEAD"),
        ("OPTIONS", "/nowhere", 405, "only GET and HEAD"),
    ],
)
def test_paths_and_methods(port: int, method: str, path: str, status: int, text: str) -> None:
    reply = get(port, path, method)
    assert reply.status == status
    assert text in reply.body.decode()
    assert len(reply.body) == int(reply.headers["content-length"])
    assert reply.headers.get("allow") == ("GET, HEAD" if status == 405 else None)


def test_readiness_follows_the_server_and_liveness_does_not() -> None:
    ready = [True]
    with serving(ready=lambda: ready[0]) as port:
        assert get(port, "/readyz").status == 200
        ready[0] = False
        assert get(port, "/readyz").status == 503
        assert get(port, "/healthz").status == 200


@pytest.mark.parametrize("path", ["/", "/healthz", "/nowhere"])
def test_head_is_get_without_its_body(port: int, path: str) -> None:
    full, head = get(port, path), get(port, path, "HEAD")
    assert head == (full.status, full.headers, b"")
    assert full.body


@pytest.mark.parametrize(
    ("encoding", "compressed"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("br, gzip ; q=1.0", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("identity", False),
        ("", False),
        ("xgzip", False),
    ],
)
def test_a_scrape_is_compressed_when_the_scraper_takes_it(port: int, encoding: str, compressed: bool) -> None:
    reply = get(port, "/metrics", Accept_Encoding=encoding)
    assert reply.headers.get("content-encoding") == ("gzip" if compressed else None)
    assert "accept-encoding" in reply.headers["vary"].lower()
    body = gzip.decompress(reply.body) if compressed else reply.body
    assert b"evald_build_info{" in body


def test_a_scrape_has_the_format_that_is_asked_for(port: int) -> None:
    assert get(port, "/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
    reply = get(port, "/metrics", accept=OPENMETRICS)
    assert reply.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert reply.body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET /healthz HTTP/0.9\r\n\r\n", 400),
        (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1 x\r\n\r\n", 400),
        (b"G\xe9T /healthz HTTP/1.1\r\n: x\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nA: 1\r\n folded: 2\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n" + b"A: 1\r\n" * 101 + b"\r\n", 431),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nA: " + b"a" * 40_000, 431),
        (b"POST /healthz HTTP/1.1\r\nContent-Length: 30000\r\n\r\n" + b"x" * 30_000, 405),
    ],
    ids=lambda value: repr(value[:30]) if isinstance(value, bytes) else str(value),
)
def test_a_request_that_cannot_be_served_gets_a_short_text(port: int, sent: bytes, status: int) -> None:
    reply = parse(exchange(port, sent))
    assert reply.status == status
    assert len(reply.body) < 100
    assert get(port, "/healthz").status == 200


@pytest.mark.parametrize("sent", [b"", b"GET", b"GET /healthz HTTP/1.1\r\n"])
def test_a_request_that_stops_half_way_gets_nothing(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=SOON) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""


def test_no_answer_names_the_software_or_lets_a_browser_guess(port: int) -> None:
    for path in ("/", "/metrics", "/nowhere"):
        reply = get(port, path)
        assert "server" not in reply.headers
        assert "python" not in str(reply.headers).lower()
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["connection"] == "close"


def test_connections_that_say_nothing_do_not_keep_a_probe_out(port: int) -> None:
    """The oldest ones are cut when there are more than the four allowed."""
    with ExitStack() as held:
        silent = [
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=SOON)) for _ in range(12)
        ]
        for _ in range(3):
            assert get(port, "/healthz").status == 200
        assert all(connection.recv(1) == b"" for connection in silent[:8])


def _is_cut(connection: socket.socket, within_seconds: float) -> bool:
    """Whether a connection that sends a byte every 20 ms is ended from the other side."""
    give_up = time.monotonic() + within_seconds
    connection.settimeout(0.02)
    while time.monotonic() < give_up:
        try:
            connection.sendall(b"x")
            if connection.recv(1) == b"":
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


def test_a_connection_that_trickles_is_cut_in_time() -> None:
    with (
        serving(connection_seconds=0.3) as port,
        socket.create_connection(("127.0.0.1", port), timeout=SOON) as connection,
    ):
        assert _is_cut(connection, within_seconds=5)


def test_scrapes_run_one_at_a_time() -> None:
    """Each holds the interpreter lock, which the event loop needs."""

    class Slow(Telemetry):
        running = 0
        most = 0

        def exposition(self, accept: str) -> tuple[bytes, str]:
            self.running += 1
            self.most = max(self.most, self.running)
            threading.Event().wait(0.05)
            self.running -= 1
            return b"body", "text/plain"

    telemetry = Slow()
    with serving(telemetry) as port, ThreadPoolExecutor() as pool:
        scrapes = [pool.submit(get, port, "/metrics") for _ in range(6)]
        assert get(port, "/healthz").status == 200
        assert [scrape.result().body for scrape in scrapes] == [b"body"] * 6
    assert telemetry.most == 1


def test_scrapes_without_pause_leave_nine_tenths_of_the_time_to_others() -> None:
    class Busy(Telemetry):
        def exposition(self, accept: str) -> tuple[bytes, str]:
            until = time.thread_time() + 0.02
            while time.thread_time() < until:
                pass
            return b"body", "text/plain"

    with serving(Busy()) as port:
        began = time.monotonic()
        for _ in range(3):
            get(port, "/metrics")
        assert time.monotonic() - began >= 2 * 9 * 0.02


def test_a_fault_of_its_own_closes_the_connection_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> bool:
        raise RuntimeError("the readiness check is broken")

    with serving(ready=broken) as port:
        assert exchange(port, b"GET /readyz HTTP/1.1\r\n\r\n") == b""
        assert get(port, "/healthz").status == 200
    assert "the readiness check is broken" in caplog.text


def test_an_address_in_use_is_refused_at_the_start(port: int) -> None:
    with pytest.raises(OSError, match="in use"):
        HttpServer(Telemetry(), host="127.0.0.1", port=port, ready=lambda: True)


def test_stop_cuts_what_is_open_and_frees_the_port() -> None:
    HttpServer(Telemetry(), host="127.0.0.1", port=0, ready=lambda: True).stop()
    http = HttpServer(Telemetry(), host="127.0.0.1", port=0, ready=lambda: True)
    port = http.start()
    with socket.create_connection(("127.0.0.1", port), timeout=SOON) as connection:
        get(port, "/healthz")  # the open one has been accepted by now
        http.stop()
        assert connection.recv(1) == b""
    http.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    again = HttpServer(Telemetry(), host="127.0.0.1", port=port, ready=lambda: True)
    assert again.start() == port
    again.stop()


def test_it_listens_on_ipv6() -> None:
    try:
        http = HttpServer(Telemetry(), host="::1", port=0, ready=lambda: True)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    port = http.start()
    try:
        with socket.create_connection(("::1", port), timeout=SOON) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert parse(read_all(connection)).status == 200
    finally:
        http.stop()
