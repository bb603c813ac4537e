"""What requests below /api hold and how they are answered: JSON, lists with a cursor, and streams of lines."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from evald.errors import InvalidInput
from evald.fields import shown
from evald.strict_json import TooLarge, parse_json
from evald_server.http.calls import CallFailed
from evald_server.http.errors import as_json, failed
from evald_server.http.site import Site
from evald_server.http.streams import BEAT_SECONDS, NDJSON, SSE
from evald_server.rpc.errors import invalid

T = TypeVar("T")
M = TypeVar("M", bound=Message)

# Data that are converted in the event loop: 64 KiB take up to 3 ms.
_INLINE_BYTES: Final = 64 << 10

MOST: Final = 1000
"""Most items of a list in one answer."""

# A list with whole conversations ends with the page that reaches this.
_LIST_BYTES: Final = 16 << 20

# How long a stream may take to fail with a status of its own.
_FIRST_SECONDS: Final = 0.25


def refused(problem: InvalidInput) -> CallFailed:
    """Return the failure of a request with data that cannot be read."""
    path, message = (
        text.encode("utf-8", "replace").decode()
        for text in (problem.path or "body", f"{problem.got}; wanted {problem.wanted}")
    )
    return failed(invalid(path, message))


def wrong(path: str, value: object, wanted: str) -> CallFailed:
    """Return the failure of a request with a value that is not what was wanted."""
    return refused(InvalidInput(path, "missing" if value is None else shown(value), wanted))


def parsed(data: bytes, place: str = "body") -> Any:
    """Parse JSON. Raises InvalidInput."""
    try:
        return parse_json(data.decode())
    except UnicodeDecodeError as problem:
        raise InvalidInput(place, f"no UTF-8 at byte {problem.start}", "JSON") from None
    except (ValueError, TooLarge) as problem:
        got = str(problem) if data.strip() else "got nothing"
        raise InvalidInput(place, got, "JSON") from None


async def read(request: Request, convert: Callable[[Any], T], default: bytes = b"") -> T:
    """Return what a function makes of the body's JSON. default: for an empty body. Raises CallFailed."""
    data = await request.body() or default
    return await converted(len(data), lambda: convert(parsed(data)))


async def converted(size: int, convert: Callable[[], T]) -> T:
    """Return what a function gives, called in a thread for much data. Raises CallFailed for InvalidInput."""
    try:
        return convert() if size <= _INLINE_BYTES else await asyncio.to_thread(convert)
    except InvalidInput as problem:
        raise refused(problem) from None


def dumped(data: Any) -> bytes:
    """Return data as JSON."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(dumped(data), status, headers, "application/json")


async def written(pb: M, write: Callable[[M], Any], status: int = 200) -> Response:
    """Return the response with a message."""
    data = await converted(pb.ByteSize(), lambda: dumped(write(pb)))
    return Response(data, status, media_type="application/json")


def whole_number(request: Request, name: str, default: int, most: int) -> int:
    """Return a parameter of the query, a number from 1. Raises CallFailed."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
        raise wrong(name, text, f"a whole number from 1 to {most}")
    return int(text)


def choice_of(request: Request, name: str, choices: Sequence[str]) -> Any:
    """Return the number, from 1, of a parameter of the query among names; 0 without one. Raises CallFailed."""
    text = request.query_params.get(name)
    if not text:
        return 0
    if text.upper() not in choices:
        raise wrong(name, text, " or ".join(choices))
    return choices.index(text.upper()) + 1


async def list_answer(
    site: Site,
    request: Request,
    method: str,
    page_request: Message,
    page: type[Message],
    field: str,
    write: Callable[[Any], Any],
    *,
    reverse: bool = False,
) -> Response:
    """Answer with what a method lists, all pages of it as far as the limit reaches, and a link to the rest.

    field: of a page, with its items. reverse: the answer has them in the other order.
    """
    left = whole_number(request, "limit", MOST, MOST)
    asked: Any = page_request
    asked.page_token = request.query_params.get("cursor", "")
    caller = site.access.caller(request)
    found: list[bytes] = []
    size = 0
    while True:
        asked.page_size = left
        got: Any = await site.calls.ask(method, asked, page, caller)
        items = getattr(got, field)
        found += await converted(got.ByteSize(), lambda items=items: [dumped(write(one)) for one in items])  # type: ignore[misc]
        left -= len(items)
        size += got.ByteSize()
        asked.page_token = got.next_page_token
        if not asked.page_token or left <= 0 or size >= _LIST_BYTES:
            break
    headers = {}
    if asked.page_token:
        url = request.url.include_query_params(cursor=asked.page_token)
        headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    body = b",".join(reversed(found) if reverse else found)
    return Response(b"[" + body + b"]", 200, headers, "application/json")


class StreamLine(NamedTuple):
    """A line of a stream. event: what it is. data: beside that. sequence: by which a watch can go on after it."""

    event: str
    data: Mapping[str, Any]
    sequence: int = 0


class LineStream(Response):
    """Answers with lines as they come: NDJSON, or Server-Sent Events.

    What fails before the first line has a status of its own; what fails later is the last line: `error`.
    """

    def __init__(self, lines: AsyncGenerator[StreamLine], *, events: bool) -> None:
        super().__init__(media_type=SSE if events else NDJSON)
        del self.headers["content-length"]
        self._lines = lines
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines. Raises CallFailed before anything is sent."""
        began = False

        async def start() -> None:
            nonlocal began
            if not began:
                began = True
                await send(
                    {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
                )

        next_line = asyncio.ensure_future(anext(self._lines, None))
        try:
            while True:
                done, _ = await asyncio.wait([next_line], timeout=self._patience(began=began))
                if not done:
                    await start()
                    await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
                    continue
                line = self._result(next_line, began=began)
                await start()
                body = b"" if line is None else self._encoded(line)
                more = line is not None and line.event != "error"
                await send({"type": "http.response.body", "body": body, "more_body": more})
                if not more:
                    return
                next_line = asyncio.ensure_future(anext(self._lines, None))
        finally:
            next_line.cancel()
            await asyncio.wait([next_line])
            await self._lines.aclose()

    def _patience(self, *, began: bool) -> float | None:
        if not self._events:
            return None
        return BEAT_SECONDS if began else _FIRST_SECONDS

    @staticmethod
    def _result(next_line: "asyncio.Future[StreamLine | None]", *, began: bool) -> StreamLine | None:
        try:
            return next_line.result()
        except CallFailed as problem:
            if not began:
                raise
            return StreamLine("error", {"error": as_json(problem)})

    def _encoded(self, line: StreamLine) -> bytes:
        if not self._events:
            return dumped({"event": line.event, **line.data}) + b"\n"
        number = f"id: {line.sequence}\n" if line.sequence else ""
        return f"{number}event: {line.event}\ndata: ".encode() + dumped(line.data) + b"\n\n"


def accepted(request: Request) -> str:
    """Return how an answer of several parts is wanted: NDJSON, SSE, or "" for one JSON document."""
    accept = request.headers.get("accept", "")
    return next((media for media in (NDJSON, SSE) if media in accept), "")


def text_of(request: Request, name: str) -> str:
    """Return a part of the path."""
    return cast("str", request.path_params[name])
