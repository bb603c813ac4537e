"""An HTTP server that sends scripted bytes and records its requests."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Literal, NamedTuple

End = Literal["keep", "close", "reset", "hang", "drip"]


class Answer(NamedTuple):
    """Bytes to send, and what happens after them."""

    data: bytes
    end: End = "keep"


def answer(
    status: int = 200,
    body: Any = None,
    *,
    content_type: str | None = "application/json",
    length: int | None = None,
    end: End = "keep",
    **headers: str,
) -> Answer:
    """Return an answer with headers. body: bytes, text, or data for JSON. length: a false Content-Length."""
    if isinstance(body, str):
        body = body.encode()
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    if content_type is not None:
        lines.append(f"content-type: {content_type}")
    lines.append(f"content-length: {len(content) if length is None else length}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return Answer("\r\n".join([*lines, "", ""]).encode() + content, end)


def completion(text: Any = "fine", finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    """Return a chat completion. text: the message's content. more: other fields of the message."""
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "judge-1",
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **more}}
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }


def events(*data: Any, done: bool = True) -> str:
    """Return a stream of server-sent events."""
    lines = [f"data: {one if isinstance(one, str) else json.dumps(one)}\n\n" for one in data]
    return "".join(lines) + ("data: [DONE]\n\n" if done else "")


def chunk(text: str | None = None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """Return an event of a streamed completion."""
    if text is not None:
        delta["content"] = text
    return {
        "object": "chat.completion.chunk",
        "model": "judge-1",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


class Wire:
    """The server. requests: head and body of each, in order. The last answer is repeated."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.base_url = ""
        self.arrived = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """Return the bodies of all requests, as JSON."""
        return [body for _, body in self.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while await self._one(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append((head, json.loads(body) if body else {}))
        self.arrived.set()
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        writer.write(given.data)
        await writer.drain()
        if given.end == "hang":
            await reader.read()
            return False
        while given.end == "drip":
            await asyncio.sleep(0.05)
            writer.write(b" ")
            await writer.drain()
        if given.end == "reset":
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        return given.end == "keep"

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def wire(*answers: Answer) -> AsyncIterator[Wire]:
    """Run a server with these answers."""
    served = Wire(answers)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield served
    finally:
        server.close()
        await served.stop()
        await server.wait_closed()
