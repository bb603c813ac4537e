"""The monitoring port answers probes and scrapes."""

import gzip
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from evald_server.monitoring import HttpServer, Telemetry

from .scrape import OPENMETRICS

PATIENCE = 10


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def get(port: int, path: str, method: str = "GET", host: str = "127.0.0.1", **headers: str) -> Reply:
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
    connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
    response = connection.getresponse()
    received = {name.lower(): text for name, text in response.getheaders()}
    return Reply(response.status, received, response.read())


@contextmanager
def serving(
    telemetry: Telemetry | None = None,
    ready: Callable[[], bool] = lambda: True,
    host: str = "127.0.0.1",
    **options: Any,
) -> Iterator[int]:
    """The port of a server."""
    server = HttpServer(telemetry or Telemetry(), host=host, port=0, ready=ready, **options)
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as port:
        yield port


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/healthz", 200, "ok\n"),
        ("GET", "/readyz", 200, "ready\n"),
        ("GET", "/metrics", 200, "evald_build_info{"),
        ("GET", "/metrics?name[]=x", 200, "evald_build_info{"),
        ("GET", "/", 200, "/metrics"),
        ("GET", "/metrics/", 404, "no such page"),
        ("GET", "/../etc/passwd", 404, "no such page"),
        ("POST", "/metrics", 405, "only GET and HEAD"),
        ("OPTIONS", "/nowhere", 405, "only GET and HEAD"),
    ],
)
def test_paths_and_methods(port: int, method: str, path: str, status: int, text: str) -> None:
    reply = get(port, path, method)
    assert reply.status == status
    assert text in reply.body.decode()
    assert len(reply.body) == int(reply.headers["content-length"])
    assert reply.headers.get("allow") == ("GET, HEAD" if status == 405 else None)
    assert reply.headers["server"] == "evald", "no version for those who look for an old one"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_head_is_get_without_its_body(port: int) -> None:
    full, head = get(port, "/healthz"), get(port, "/healthz", "HEAD")
    assert head == (full.status, {**full.headers, "date": head.headers["date"]}, b"")


def test_readiness_follows_the_server_and_names_the_problem_of_the_store() -> None:
    ready, problem = [True], [""]
    with serving(ready=lambda: ready[0], store_problem=lambda: problem[0]) as port:
        problem[0] = "the disk is full"
        assert get(port, "/readyz").body == b"ready, but the store cannot be used: the disk is full\n"
        ready[0] = False
        assert get(port, "/readyz").status == 503
        assert get(port, "/healthz").status == 200


def test_only_who_may_scrape_by_a_name_of_the_server_gets_metrics() -> None:
    asked: list[tuple[list[str], str]] = []

    def may_scrape(credentials: list[str], address: tuple[Any, ...]) -> int:
        asked.append((credentials, address[0]))
        return {"Bearer good": 200, "Bearer poor": 403, "Bearer flood": 429}.get("".join(credentials), 401)

    with serving(may_scrape=may_scrape, answers_to=lambda host: host.startswith("127.")) as port:
        for token, status in (("good", 200), ("poor", 403), ("flood", 429), ("bad", 401)):
            reply = get(port, "/metrics", Authorization=f"Bearer {token}")
            assert (reply.status, b"evald_build_info" in reply.body) == (status, status == 200)
        reply = get(port, "/metrics")
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert asked[-1] == ([], "127.0.0.1")
        reply = get(port, "/metrics", Host="evil.example", Authorization="Bearer good")
        assert reply.status == 421
        assert b"evil.example" in reply.body
        assert get(port, "/healthz", Host="evil.example").status == 200


def test_a_scrape_has_the_format_and_the_encoding_that_are_asked_for(port: int) -> None:
    plain = get(port, "/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "content-encoding" not in plain.headers
    reply = get(port, "/metrics", Accept=OPENMETRICS, Accept_Encoding="br, gzip")
    assert reply.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert reply.headers["vary"] == "Accept, Accept-Encoding"
    assert gzip.decompress(reply.body).endswith(b"# EOF\n")


def test_scrapes_run_one_at_a_time_beside_probes() -> None:
    """Each holds the interpreter lock, which the event loop needs."""
    most, lock, go_on = 0, threading.Lock(), threading.Event()

    class Slow(Telemetry):
        def exposition(self, accept: str) -> tuple[bytes, str]:
            nonlocal most
            most += lock.acquire(blocking=False)
            go_on.wait(PATIENCE)
            lock.release()
            return b"body", "text/plain"

    with serving(Slow()) as port, ThreadPoolExecutor() as pool:
        scrapes = [pool.submit(get, port, "/metrics") for _ in range(4)]
        assert get(port, "/healthz").status == 200
        go_on.set()
        assert [scrape.result().body for scrape in scrapes] == [b"body"] * 4
    assert most == 4, "one began before another had ended"


def test_a_fault_of_its_own_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> bool:
        raise RuntimeError("the readiness check is broken")

    with serving(ready=broken) as port:
        reply = get(port, "/readyz")
        assert (reply.status, b"broken" in reply.body) == (500, False)
        assert get(port, "/healthz").status == 200
    assert "the readiness check is broken" in caplog.text


def test_garbage_gets_a_refusal_and_ends_nothing(port: int) -> None:
    for sent in (
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"Authorization: Bearer hunter2\r\n\r\n",
        b"G" * 70_000 + b"\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(65536)
            assert b"Python" not in answer
            assert b"WSGIServer" not in answer
            assert b"hunter2" not in answer
        assert get(port, "/healthz").status == 200


def test_an_address_in_use_is_refused_and_one_that_was_stopped_is_free() -> None:
    first = HttpServer(Telemetry(), host="127.0.0.1", port=0, ready=lambda: True)
    port = first.start()
    with pytest.raises(OSError, match="in use"):
        HttpServer(Telemetry(), host="127.0.0.1", port=port, ready=lambda: True)
    for _ in range(2):
        first.stop()
    again = HttpServer(Telemetry(), host="127.0.0.1", port=port, ready=lambda: True)
    assert again.start() == port
    again.stop()


def test_it_listens_on_ipv6() -> None:
    try:
        with serving(host="::1") as port:
            assert get(port, "/healthz", host="::1").status == 200
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
