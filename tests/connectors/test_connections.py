"""Connections to agents over HTTP: kept while that is safe, and never with anything left of another answer."""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from evald_server.connectors.http_connection import HttpConnection
from evald_server.connectors.streams import TextPieces

from .building import built, failure, texts, turn

FINE = b'HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{"text": "fine"}'
FINE_IN_PIECES = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    b'9\r\n{"text": \r\n7\r\n"fine"}\r\n0\r\n\r\n'
)
LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"


class RawAgent:
    """Answers every request with the next of these bytes, the last again and again.

    connections: how many there were. requests: their heads.
    """

    def __init__(self, answers: Sequence[bytes]) -> None:
        self._answers = list(answers)
        self.url = ""
        self.connections = 0
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = next(
                    int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length")
                )
                self.heads.append(head)
                await reader.readexactly(size)
                writer.write(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def raw(*answers: bytes) -> AsyncIterator[RawAgent]:
    agent = RawAgent(answers)
    server = await asyncio.start_server(agent.serve, "127.0.0.1", 0)
    agent.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield agent


@pytest.mark.parametrize(
    ("answer", "connections"),
    [
        (FINE, 1),
        (FINE_IN_PIECES, 1),
        (FINE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), 3),
        (FINE.replace(b"HTTP/1.1", b"HTTP/1.0"), 3),
        (FINE + LATE, 3),
        (FINE + FINE, 3),
    ],
    ids=[
        "kept",
        "kept-in-pieces",
        "not-to-be-kept",
        "old",
        "a-timeout-behind-it",
        "another-answer-behind-it",
    ],
)
async def test_a_connection_is_kept_unless_something_is_left_on_it(answer: bytes, connections: int) -> None:
    async with raw(answer) as agent, built("http", agent.url) as connector:
        for _ in range(3):
            assert texts(await connector.invoke(turn())) == [("assistant", "fine")]
        assert (len(agent.heads), agent.connections) == (3, connections)


async def test_what_comes_while_a_connection_is_idle_is_not_taken_for_an_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(FINE)
        await asked.wait()
        writer.write(LATE)
        writer.write_eof()
        await reader.read()  # until it has arrived, and the connector has closed its side
        said.set()
        writer.close()

    asked, said = asyncio.Event(), asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, built("http", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as connector:
        assert texts(await connector.invoke(turn())) == [("assistant", "fine")]
        asked.set()
        await said.wait()
        assert texts(await connector.invoke(turn())) == [("assistant", "fine")]


async def test_a_refusal_is_told_although_the_request_was_not_read() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 7\r\n\r\ntoo big")
        await over.wait()
        writer.close()

    over = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, built("http", url, {"timeoutSeconds": 20}) as connector:
        failed = await failure(connector, turn("x" * (8 << 20)))
        over.set()
    assert failed.code == "CONNECTOR_REFUSED"
    assert "HTTP 413" in failed.message
    assert "too big" in failed.message


@pytest.mark.parametrize(
    ("status", "code"), [(200, "CONNECTOR_BAD_ANSWER"), (422, "CONNECTOR_REFUSED")], ids=["fine", "refused"]
)
async def test_a_reset_is_not_the_end_of_an_answer_of_unknown_length(status: int, code: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f'HTTP/1.1 {status} X\r\n\r\n{{"text": "fi"}}\n'.encode())
        await taken.wait()
        # Without a FIN.
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        writer.close()

    async def piece(self: HttpConnection) -> bytes:
        data = await found(self)
        taken.set()
        return data

    taken, found = asyncio.Event(), HttpConnection.piece
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(HttpConnection, "piece", piece)
        async with server, built("http", url, {"stream": "ndjson"}) as connector:
            failed = await failure(connector, turn())
    assert failed.code == code


@pytest.mark.parametrize("streamed", [False, True], ids=["chunks", "events"])
async def test_others_get_their_turn_beside_an_answer_in_small_pieces(
    streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = 0
    seen: list[int] = []
    piece, add = HttpConnection.piece, TextPieces.add

    async def counted_piece(self: HttpConnection) -> bytes:
        seen.append(ticks)
        return await piece(self)

    def counted_add(self: TextPieces, event: Any) -> None:
        seen.append(ticks)
        add(self, event)

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    if streamed:
        monkeypatch.setattr(TextPieces, "add", counted_add)
        head, body = b"content-length: 200000", b'"x"\n' * 50_000
    else:
        monkeypatch.setattr(HttpConnection, "piece", counted_piece)
        head = b"transfer-encoding: chunked"
        said = b'{"text": "' + b"x" * 50_000 + b'"}'
        body = b"".join(b"1\r\n%c\r\n" % one for one in said) + b"0\r\n\r\n"
    async with (
        raw(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + body) as agent,
        built("http", agent.url, {"stream": "ndjson"} if streamed else {}) as connector,
    ):
        ticking = asyncio.create_task(tick())
        assert texts(await connector.invoke(turn())) == [("assistant", "x" * 50_000)]
        ticking.cancel()
    assert len(seen) >= 50_000
    assert max(Counter(seen).values()) < 1000


@pytest.mark.parametrize(
    ("path", "sent"),
    [("", b"/"), ("/a b?c={d}", b"/a%20b?c=%7Bd%7D"), ("/a%20b", b"/a%20b")],
)
async def test_a_path_is_sent_as_it_is_but_for_what_no_path_may_hold(path: str, sent: bytes) -> None:
    async with raw(FINE) as agent, built("http", agent.url, {"path": path}) as connector:
        await connector.invoke(turn())
    assert agent.heads[0].startswith(b"POST " + sent + b" HTTP/1.1\r\n")
