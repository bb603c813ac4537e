"""Callers that hang up, that say nothing, that say half, and that say too much."""

import asyncio
import json
import logging
import shutil
import socket
import ssl
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import h11
import pytest
from starlette.requests import Request

from evald.evaluator import define_evaluator
from evald.result import Kind
from evald_server import app as app_module
from evald_server.app import App
from evald_server.auth.principal import Role
from evald_server.cli import main
from evald_server.config import Settings
from evald_server.descriptors import web_streams
from evald_server.http import guards
from evald_server.http import web as web_port
from evald_server.http.access import WebAccess
from evald_server.http.calls import CallFailed

from ..auth.keyring import bearer, guarded, make_key
from ..rpc.live import CATALOG, CONTAINS, Live, request, serving, spec, until
from .api import CHAT
from .exchange import JSON, connected, head, post, receive, send
from .test_bridge import envelope, web

EVALUATE = "/evald.v1.EvaluationService/"
WATCH = "/evald.v1.CatalogService/WatchEvaluatorTypes"
EVENTS = JSON | {"accept": "text/event-stream"}
CHUNKED = b"POST /api/evaluate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGE = bytes(16 << 20)
GET_TYPE = "/evald.v1.CatalogService/GetEvaluatorType"
ASK_TYPE = head(
    "POST", GET_TYPE, {"host": "localhost", "content-type": "application/proto", "content-length": "0"}
)
LOOPBACK = {"listen": "127.0.0.1:0", "http": None, "web": "127.0.0.1:0"}


class _Waiting:
    """An evaluator that waits until its call is cancelled, or the test lets it go."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.released = asyncio.Event()
        self.definition = define_evaluator(type="waiting", kind=Kind.ASSERTION, evaluate=self._evaluate)

    async def _evaluate(self, _ctx: Any) -> bool:
        self.begun += 1
        try:
            while not self.released.is_set():  # noqa: ASYNC110 - it may run in another loop than the test
                await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return True


def _turn(*types: str) -> Any:
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(request(*(spec(name) for name in types)))


UNARY = (EVALUATE + "EvaluateUnary", JSON, lambda turn: json.dumps({"request": turn}).encode())
NDJSON = (EVALUATE + "Evaluate", JSON, lambda turn: json.dumps(turn).encode())
SSE = (EVALUATE + "Evaluate", JSON | {"accept": "text/event-stream"}, NDJSON[2])
API = (
    "/api/evaluate",
    SSE[1],
    lambda turn: json.dumps({"messages": CHAT, "evaluators": turn["evaluators"]}).encode(),
)
CONNECT = (
    EVALUATE + "Evaluate",
    {"content-type": "application/connect+json"},
    lambda turn: envelope(json.dumps(turn).encode()),
)


@pytest.mark.alone
@pytest.mark.parametrize(
    "way", [UNARY, NDJSON, SSE, API, CONNECT], ids=["unary", "ndjson", "sse", "api", "connect"]
)
async def test_a_caller_who_hangs_up_leaves_no_work_after_250_ms(
    way: tuple[str, dict[str, str], Callable[[Any], bytes]],
) -> None:
    waiting = _Waiting()
    path, headers, body_of = way
    async with serving([waiting.definition], web="127.0.0.1:0") as live:
        body = body_of(_turn("waiting"))
        async with connected(web(live)) as (_, writer):
            sent = {"host": "localhost", "content-length": str(len(body))} | headers
            writer.write(head("POST", path, sent) + body)
            await until(lambda: waiting.begun)
        began = time.monotonic()
        await until(lambda: waiting.cancelled)
        assert time.monotonic() - began < 0.25
        await until(lambda: not live.app.admission.inflight)


async def test_overload_is_refused_at_once_by_the_admission_of_grpc_with_a_time_to_come_back() -> None:
    waiting = _Waiting()
    async with serving(
        [waiting.definition], web="127.0.0.1:0", max_inflight=1, max_queued=1, max_queue_seconds=30
    ) as live:
        turn = {"request": _turn("waiting")}
        over_grpc = asyncio.create_task(live.unary(request(spec("waiting"))))
        await until(lambda: live.app.admission.inflight)
        over_http = asyncio.create_task(post(web(live), "EvaluationService/EvaluateUnary", turn))
        await until(lambda: live.app.admission.queued)
        refused = await post(web(live), "EvaluationService/EvaluateUnary", turn)
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert refused.json["details"][0]["reason"] == "OVERLOADED"
        assert not over_http.done()
        waiting.released.set()
        assert (await over_grpc).summary.success
        assert (await over_http).json["summary"]["success"]


@pytest.fixture(name="live")
async def _live() -> AsyncIterator[Live]:
    async with serving(web="127.0.0.1:0", max_message_bytes=4096) as live:
        yield live


@pytest.mark.alone
async def test_1000_idle_and_half_sent_connections_keep_nobody_out(live: Live) -> None:
    opened = []
    try:
        for number in range(1000):
            reader, writer = await asyncio.open_connection(*web(live).split(":"))
            opened.append((reader, writer))
            if number % 2:
                writer.write(b"POST /evald.v1.EvaluationService/Evaluate HTTP/1.1\r\nHost: localhost\r\nX: ")
        began = time.monotonic()
        assert (await send(web(live), "GET", "/nothing")).status == 404
        assert time.monotonic() - began < 1
        assert (await live.unary(request(CONTAINS))).summary.success
        assert live.app._web is not None
        assert len(live.app._web._open) <= web_port_limit(live)
    finally:
        for _, writer in opened:
            writer.close()


@pytest.mark.alone
async def test_1000_event_sources_get_no_more_than_their_limit_and_grpc_goes_on(live: Live) -> None:
    """Pages load beside those that are open, others are told when to come back, and each that leaves makes room."""
    limit = web_streams()
    assert limit < web_port_limit(live)
    watch = head("POST", WATCH, EVENTS | {"host": "localhost", "content-length": "2"})
    opened = []
    try:
        for _ in range(1000):
            opened.append(await asyncio.open_connection(*web(live).split(":")))
            opened[-1][1].write(watch + b"{}")
        began = [await _begins(reader) for reader, _ in opened]
        assert sum(began) == limit
        assert live.app._rpc.open_streams == limit
        assert (await send(web(live), "GET", "/nothing")).status == 404
        assert (await send(web(live), "GET", "/console/overview")).status == 200
        refused = await send(web(live), "POST", WATCH, EVENTS, b"{}")
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert (await live.unary(request(CONTAINS))).summary.success
        assert (await live.stream(request(CONTAINS)))[-1].summary.success
        opened[began.index(True)][1].close()
        await until(lambda: live.app._rpc.open_streams < limit)
        async with connected(web(live)) as (reader, writer):
            writer.write(watch + b"{}")
            assert await _begins(reader)
    finally:
        for _, writer in opened:
            writer.close()


async def test_a_principal_that_fills_the_web_port_leaves_others_streams_and_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "web_connections", lambda: 8)
    monkeypatch.setattr(app_module, "web_streams", lambda: 6)
    keys = tmp_path / "keys.toml"
    greedy, other = (
        dict(bearer(make_key(keys, name, Role.CALLER, Role.VIEWER))) for name in ("greedy", "other")
    )
    async with guarded(keys, web="127.0.0.1:0") as live, AsyncExitStack() as opened:
        sent = EVENTS | {"host": "localhost", "content-length": "2"} | greedy
        began = 0
        for _ in range(6):
            reader, writer = await opened.enter_async_context(connected(web(live)))
            writer.write(head("POST", WATCH, sent) + b"{}")
            began += await _begins(reader)
        assert began == 4
        # Calls without a stream count, too, as each takes a connection.
        refused = await send(web(live), "GET", "/api/evaluator-types", greedy)
        assert (refused.status, refused.json["details"][0]["reason"]) == (429, "OVERLOADED")
        assert "greedy" in refused.json["message"]
        assert (await send(web(live), "GET", "/api/evaluator-types", other)).status == 200
        async with connected(web(live)) as (reader, writer):
            writer.write(head("POST", WATCH, sent | other) + b"{}")
            assert await _begins(reader)
        # The limit is of the web port alone.
        assert await live.raw(f"{CATALOG}ListEvaluatorTypes", b"", metadata=tuple(greedy.items()))


async def _begins(reader: asyncio.StreamReader) -> bool:
    """Whether a response begins; otherwise the connection is closed."""
    try:
        return await reader.read(12) == b"HTTP/1.1 200"
    except ConnectionResetError:
        return False


def web_port_limit(live: Live) -> int:
    assert live.app._web is not None
    return live.app._web._max_connections


def _sending(live: Live) -> int:
    """How many connections have not sent the whole of a body."""
    assert live.app._web is not None
    return sum(connection.sends for connection in live.app._web._open)


async def test_when_there_are_too_many_the_one_that_waited_longest_goes(live: Live) -> None:
    assert live.app._web is not None
    live.app._web._max_connections = 2
    async with connected(web(live)) as (first, _), connected(web(live)) as (second, writer):
        await until(lambda: len(live.app._web._open) == 2)
        async with connected(web(live)) as (_, third):
            assert await first.read() == b""
            third.write(head("GET", "/nothing", {"host": "localhost"}))
            writer.write(head("GET", "/nothing", {"host": "localhost"}))
            assert (await receive(second)).status == 404


async def test_calls_that_run_are_not_cut_off_for_new_connections() -> None:
    waiting = _Waiting()
    async with serving([waiting.definition], web="127.0.0.1:0") as live:
        assert live.app._web is not None
        live.app._web._max_connections = 2
        turn = {"request": _turn("waiting")}
        calls = [
            asyncio.create_task(post(web(live), "EvaluationService/EvaluateUnary", turn)) for _ in range(2)
        ]
        await until(lambda: waiting.begun == 2)
        async with connected(web(live)) as (reader, _):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        waiting.released.set()
        assert [(await call).json["summary"]["success"] for call in calls] == [True, True]


async def test_a_connection_may_wait_a_while_before_its_request(live: Live) -> None:
    async with connected(web(live)) as (reader, writer):
        assert live.app._web is not None
        await until(lambda: live.app._web._open)
        (connection,) = live.app._web._open
        assert not connection.is_overdue(connection.since + 9)
        assert connection.is_overdue(connection.since + 11)
        writer.write(head("GET", "/nothing", {"host": "localhost"}))
        assert (await receive(reader)).status == 404


async def test_half_a_body_is_not_handled(live: Live) -> None:
    handled = []

    async def answer(request: bytes, _context: Any) -> bytes:
        handled.append(request)
        return b""

    handle(live, GET_TYPE, grpc.unary_unary_rpc_method_handler(answer))
    sent = {"content-type": "application/proto", "host": "localhost", "content-length": "8"}
    async with connected(web(live)) as (_, writer):
        writer.write(head("POST", GET_TYPE, sent) + b"\n\x02rx")
        await until(lambda: _sending(live))
    assert live.app._web is not None
    await until(lambda: not live.app._web._open)
    async with connected(web(live)) as (reader, writer):
        writer.write(head("POST", GET_TYPE, sent | {"content-length": "4"}) + b"\n\x02ok")
        assert (await receive(reader)).status == 200
    assert handled == [b"\n\x02ok"]


def handle(live: Live, name: str, handler: Any) -> None:
    """Have a method handled in another way."""
    live.app._gate._methods[name] = handler


@asynccontextmanager
async def _unread_answers(live: Live, number: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Callers who have asked for 16 MB, and have not read them."""

    async def answer(_request: bytes, _context: Any) -> bytes:
        return LARGE

    handle(live, GET_TYPE, grpc.unary_unary_rpc_method_handler(answer))
    async with AsyncExitStack() as opened:
        readers: list[asyncio.StreamReader] = []
        for count in range(1, number + 1):
            reader, writer = await opened.enter_async_context(connected(web(live)))
            writer.write(ASK_TYPE)
            readers.append(reader)
            await until(lambda count=count: len(_unread(live)) == count)
        yield readers


def _unread(live: Live) -> list[Any]:
    """The connections that wait for their caller to read."""
    assert live.app._web is not None
    return [connection for connection in live.app._web._open if connection.unread]


async def test_a_large_answer_is_not_cut_off_while_its_caller_reads(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_port, "_HEAD_SECONDS", 0.05)
    monkeypatch.setattr(web_port, "_SWEEP_SECONDS", 0.02)
    async with _unread_answers(live, 1) as (reader,):
        await asyncio.sleep(0.5)
        answer = await receive(reader)
        assert len(answer.body) == len(LARGE)


async def test_who_takes_a_few_bytes_of_a_large_answer_at_a_time_is_cut_off(live: Live) -> None:
    async with _unread_answers(live, 1) as (reader,):
        (connection,) = _unread(live)
        await reader.readexactly(len(LARGE) // 2)
        await until(lambda: connection.unread < len(LARGE) * 0.6)
        later = connection.since + 36
        assert not connection.is_overdue(later)
        await reader.readexactly(10)
        assert connection.is_overdue(later + 36)


async def test_who_reads_nothing_is_cut_off_where_the_connection_closes_with_the_answer_too(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_port, "_STUCK_SECONDS", 0.2)
    monkeypatch.setattr(web_port, "_SWEEP_SECONDS", 0.05)
    async with _unread_answers(live, 1), connected(web(live)) as (_, writer):
        writer.write(ASK_TYPE.replace(b"host:", b"connection: close\r\nhost:"))
        assert live.app._web is not None
        await until(lambda: not live.app._web._open)


async def test_answers_that_nobody_reads_keep_nobody_out(live: Live) -> None:
    assert live.app._web is not None
    live.app._web._max_connections = 2
    async with _unread_answers(live, 2):
        assert (await send(web(live), "GET", "/nothing")).status == 404


async def test_answers_that_wait_to_be_read_are_bounded_together(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _unread_answers(live, 2) as (first, _):
        waiting = _unread(live)
        monkeypatch.setattr(web_port, "_MAX_UNREAD_BYTES", sum(connection.unread for connection in waiting))
        async with connected(web(live)) as (third, writer):
            writer.write(ASK_TYPE)
            await until(lambda: len(set(waiting) & set(_unread(live))) == 1)
            with pytest.raises((h11.RemoteProtocolError, ConnectionResetError)):
                await receive(first)
            assert len((await receive(third)).body) == len(LARGE)


async def test_a_few_lists_are_collected_at_a_time(live: Live) -> None:
    """The work of many large ones would keep all other requests waiting."""
    now, most = 0, 0

    async def answer(_request: bytes, _context: Any) -> bytes:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return b""

    method = "/evald.v1.ScenarioService/ListScenarios"
    handle(live, method, grpc.unary_unary_rpc_method_handler(answer))
    answers = await asyncio.gather(*(send(web(live), "GET", "/api/scenarios") for _ in range(20)))
    assert [found.status for found in answers] == [200] * 20
    assert most == 2


@pytest.mark.parametrize("path", ["/console/sign-in", EVALUATE + "EvaluateUnary"])
async def test_bodies_that_do_not_come_keep_nobody_out(path: str, tmp_path: Path) -> None:
    """Read or not: of the first the body is waited for, of the second nobody waits for it."""
    keys = tmp_path / "keys.toml"
    make_key(keys, "ci", Role.CALLER)
    async with guarded(keys, web="127.0.0.1:0") as live:
        assert live.app._web is not None
        live.app._web._max_connections = 2
        begun = head("POST", path, JSON | {"host": "localhost", "content-length": "10"}) + b"{"
        async with connected(web(live)) as (first, one), connected(web(live)) as (_, another):
            for writer in (one, another):
                writer.write(begun)
            await until(lambda: _sending(live) == 2)
            assert (await send(web(live), "GET", "/console/sign-in")).status == 200
            with suppress(ConnectionResetError):
                await first.read()


async def test_who_may_call_nothing_takes_no_room_for_large_bodies(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    key = make_key(keys, "ci", Role.CALLER)
    async with (
        guarded(keys, web="127.0.0.1:0", max_message_bytes=200_000) as live,
        AsyncExitStack() as opened,
    ):
        form = {"host": "localhost", "content-type": "application/x-www-form-urlencoded"}
        for length in (200_000, 65_000):
            begun = head("POST", "/console/sign-in", form | {"content-length": str(length)})
            for _ in range(30):
                _, writer = await opened.enter_async_context(connected(web(live)))
                writer.write(begun + b"x" * 60_000)
                await writer.drain()
        await until(lambda: _sending(live) == 30)
        body = json.dumps({"request": {"labels": {"text": "x" * 100_000}}}).encode()
        credentials = {"authorization": f"Bearer {key}"}
        answer = await send(web(live), "POST", EVALUATE + "EvaluateUnary", JSON | credentials, body)
        assert answer.json["details"][0]["reason"] != "OVERLOADED"


async def test_a_principal_whose_uploads_are_slow_leaves_others_room_for_large_bodies(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    slow, other = make_key(keys, "slow", Role.CALLER), make_key(keys, "other", Role.CALLER)
    path = EVALUATE + "EvaluateUnary"
    sent = JSON | {"host": "localhost", "content-length": "200000"}
    body = json.dumps({"request": {"labels": {"text": "x" * 150_000}}}).encode()
    async with (
        guarded(keys, web="127.0.0.1:0", max_message_bytes=200_000) as live,
        AsyncExitStack() as opened,
    ):
        answers = []
        for _ in range(8):
            reader, writer = await opened.enter_async_context(connected(web(live)))
            writer.write(head("POST", path, sent | {"authorization": f"Bearer {slow}"}) + b"x" * 199_000)
            answers.append(asyncio.create_task(receive(reader)))
        await until(lambda: sum(answer.done() for answer in answers) == 6)
        for answer in answers:
            if answer.done():
                assert answer.result().json["details"][0]["reason"] == "OVERLOADED"
                assert "too many large requests of slow" in answer.result().json["message"]
        answered = await send(web(live), "POST", path, JSON | {"authorization": f"Bearer {other}"}, body)
        assert answered.json["details"][0]["reason"] != "OVERLOADED"
        for answer in answers:
            answer.cancel()


async def test_a_reader_of_events_who_has_sent_a_body_may_hang_up(live: Live) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def watch(_request: bytes, _context: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    handle(live, "/evald.v1.RunService/WatchRun", grpc.unary_stream_rpc_method_handler(watch))
    async with connected(web(live)) as (_, writer):
        writer.write(
            head("GET", "/console/runs/1/events", {"host": "localhost", "content-length": "2"}) + b"{}"
        )
        await begun.wait()
    async with asyncio.timeout(10):
        await ended.wait()


async def test_who_is_remembered_a_moment_longer_leaves_no_call(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WebAccess, "may", lambda *_: False)
    async with asyncio.timeout(20), connected(web(live)) as (reader, writer):
        method = "/evald.v1.CatalogService/WatchEvaluatorTypes"
        writer.write(head("POST", method, JSON | {"host": "localhost", "content-length": "2"}) + b"{}")
        assert await _begins(reader)
        assert live.app._rpc.open_streams == 1
        writer.close()
        await until(lambda: not live.app._rpc.open_streams)


async def test_answers_do_not_wait_for_acknowledgements(live: Live) -> None:
    assert live.app._web is not None
    async with connected(web(live)):
        await until(lambda: live.app._web._open)
        (connection,) = live.app._web._open
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\r\n"],
    ids=["nothing", "half a line", "half a head"],
)
async def test_who_does_not_send_a_head_in_time_is_cut_off(
    live: Live, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(web_port, "_HEAD_SECONDS", 0.1)
    monkeypatch.setattr(web_port, "_SWEEP_SECONDS", 0.05)
    async with connected(web(live)) as (reader, writer):
        writer.write(sent)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""


async def test_who_does_not_send_a_body_in_time_is_told(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_BODY_SECONDS", 0.1)
    async with connected(web(live)) as (reader, writer):
        writer.write(
            head("POST", EVALUATE + "Evaluate", JSON | {"host": "localhost", "content-length": "9"}) + b"{"
        )
        answer = await receive(reader)
        assert answer.status == 408
        assert "within" in answer.json["message"]
        assert await reader.read() == b""


async def test_a_body_that_is_too_large_is_refused_by_its_length_before_it_is_read(live: Live) -> None:
    async with connected(web(live)) as (reader, writer):
        writer.write(
            head("POST", EVALUATE + "Evaluate", JSON | {"host": "localhost", "content-length": "4102"})
        )
        answer = await receive(reader)
    assert answer.status == 413
    assert answer.json["details"][0]["reason"] == "MESSAGE_TOO_LARGE"


async def test_a_body_without_a_length_is_counted_while_it_is_read(live: Live) -> None:
    async with connected(web(live)) as (reader, writer):
        writer.write(
            head("POST", EVALUATE + "Evaluate", JSON | {"host": "localhost", "transfer-encoding": "chunked"})
        )
        for _ in range(5):
            writer.write(b"400\r\n" + b" " * 1024 + b"\r\n")
        assert (await receive(reader)).status == 413


async def test_the_bodies_of_all_connections_are_bounded_together(live: Live) -> None:
    guard = guards.Bodies(_reads, max_message_bytes=100_000)
    guard._held = 8 * 100_000

    async def read() -> Any:
        return {"type": "http.request", "body": b" " * 90_000, "more_body": False}

    async def write(_message: Any) -> None:
        raise AssertionError

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/"}
    scope["headers"] = [(b"content-length", b"90000")]
    with pytest.raises(CallFailed, match="larger than 65536 bytes"):
        await guard(scope, read, write)
    scope[guards.ADMITTED] = ""
    with pytest.raises(CallFailed, match="too many large requests") as refused:
        await guard(scope, read, write)
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert guard._held == 8 * 100_000


async def _reads(scope: Any, receive: Any, _send: Any) -> None:
    await Request(scope, receive).body()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX-\xff: canary\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: canary\0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"x" * 20_000 + b": canary\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"Cookie: a=b\r\n" * 2000 + b"\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (CHUNKED + b"1\r\n \r\n" * 2_500, 400),
    ],
    ids=[
        "no request",
        "no host",
        "two hosts",
        "a long head",
        "two lengths",
        "a name of other characters",
        "a value of other characters",
        "a long name",
        "many cookies",
        "TLS",
        "chunks of a byte",
    ],
)
async def test_what_is_no_request_is_refused_and_not_logged(
    live: Live, caplog: pytest.LogCaptureFixture, sent: bytes, status: int
) -> None:
    with caplog.at_level(logging.INFO):
        async with connected(web(live)) as (reader, writer):
            writer.write(sent + b"\r\n\r\n")
            assert (await receive(reader)).status == status
    assert not caplog.records


async def test_a_body_with_two_ends_is_refused_and_nothing_behind_it_is_read(live: Live) -> None:
    async with connected(web(live)) as (reader, writer):
        sent = JSON | {"host": "localhost", "content-length": "5", "transfer-encoding": "chunked"}
        smuggled = head("GET", "/api/runs", {"host": "localhost"})
        writer.write(head("POST", EVALUATE + "EvaluateUnary", sent) + b"0\r\n\r\n" + smuggled)
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"got Content-Length and Transfer-Encoding" in answer
    assert answer.count(b"HTTP/1.1") == 1


async def test_garbage_behind_a_request_ends_the_connection_and_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waiting = _Waiting()
    async with serving([waiting.definition], web="127.0.0.1:0") as live:
        body = json.dumps({"request": _turn("waiting")}).encode()
        async with connected(web(live)) as (_, writer):
            sent = JSON | {"host": "localhost", "content-length": str(len(body))}
            writer.write(head("POST", EVALUATE + "EvaluateUnary", sent) + body)
            await until(lambda: waiting.begun)
            writer.write(b"\0nonsense\r\n\r\n" * 10)
            writer.close()
            await until(lambda: waiting.cancelled)
    assert not [found for found in caplog.records if found.levelno >= logging.ERROR]


async def test_a_fault_of_a_handler_is_told_by_its_incident_alone(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RuntimeError("the secret")

    guard = guards.Guards(broken, live.app.settings)
    sent = []

    async def write(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/x",
        "headers": [(b"host", b"localhost")],
        "query_string": b"",
        "server": ("x", 1),
    }
    await guard(scope, _never, write)
    answer = json.loads(sent[1]["body"])
    assert (sent[0]["status"], answer["code"]) == (500, 13)
    assert "secret" not in sent[1]["body"].decode()
    (entry,) = caplog.records
    assert answer["details"][0]["metadata"]["incident"] in entry.getMessage()
    assert "the secret" in entry.__dict__["exception"]


async def _never() -> Any:
    raise AssertionError


@pytest.fixture(name="certificates", scope="module")
def _certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    for name in ("old", "new"):
        assert main(["certs", "dev", str(folder / name)]) == 0
    return folder


def _trusting(folder: Path, **limits: Any) -> ssl.SSLContext:
    """What a client of one authority uses. limits: attributes of the context."""
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    for name, value in limits.items():
        setattr(context, name, value)
    return context


async def test_new_connections_use_new_certificates_while_open_ones_go_on(
    certificates: Path, tmp_path: Path
) -> None:
    for name in ("server.pem", "server.key"):
        shutil.copy(certificates / "old" / name, tmp_path)
    settings = {"tls_cert_file": tmp_path / "server.pem", "tls_key_file": tmp_path / "server.key"}
    app = App(Settings.model_validate({**LOOPBACK, **settings, "tls_reload_seconds": 0.05}))
    await app.start()
    try:
        assert app.web_address is not None
        old, new = (_trusting(certificates / name) for name in ("old", "new"))
        async with connected(app.web_address, old) as (reader, writer):
            for name in ("server.pem", "server.key"):
                shutil.copy(certificates / "new" / name, tmp_path)

            async def swapped() -> bool:
                try:
                    return (await send(app.web_address or "", "GET", "/nothing", tls=new)).status == 404
                except ssl.SSLError:
                    return False

            await until(swapped)
            writer.write(head("GET", "/nothing", {"host": "localhost"}))
            assert (await receive(reader)).status == 404
        with pytest.raises(ssl.SSLError):
            await send(app.web_address, "GET", "/nothing", tls=old)
    finally:
        await app.stop(0)


async def test_no_tls_below_1_2_and_no_plaintext_beside_tls(certificates: Path) -> None:
    folder = certificates / "old"
    settings = {"tls_cert_file": folder / "server.pem", "tls_key_file": folder / "server.key"}
    app = App(Settings.model_validate({**LOOPBACK, **settings}))
    await app.start()
    try:
        assert app.web_address is not None
        for version, works in [("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)]:
            # Clients of today refuse the old one themselves, unless they are told not to.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                wanted = ssl.TLSVersion[version]
                context = _trusting(folder, minimum_version=wanted, maximum_version=wanted)
                context.set_ciphers("DEFAULT:@SECLEVEL=0")
            try:
                answered = (await send(app.web_address, "GET", "/nothing", tls=context)).status == 404
            except (ssl.SSLError, OSError):
                answered = False
            assert answered == works, version
        async with connected(app.web_address) as (reader, writer):
            writer.write(head("GET", "/", {"host": "localhost"}))
            with suppress(ConnectionResetError):
                assert not (await reader.read()).startswith(b"HTTP")
    finally:
        await app.stop(0)


@pytest.mark.parametrize("web", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_an_address_that_others_reach_needs_encryption_and_keys(web: str) -> None:
    with pytest.raises(ValueError, match=r"web: .* can be reached from other machines"):
        Settings.model_validate({**LOOPBACK, "web": web})
