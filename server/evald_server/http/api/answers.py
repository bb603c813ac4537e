"""Reading of requests and writing of responses below /api: JSON, lists with a cursor, and streams of lines."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from functools import partial
from io import BytesIO
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from evald.errors import InvalidInput
from evald.fields import shown
from evald.messages import check_nodes
from evald.strict_json import TooLarge, parse_json
from evald_server.call_errors import invalid
from evald_server.http.calls import CallFailed
from evald_server.http.errors import as_json, failed
from evald_server.http.site import Site
from evald_server.http.streams import NDJSON, SSE, Framing, StreamedCall, event, json_bytes
from evald_server.loop import in_thread_if_large

T = TypeVar("T")
M = TypeVar("M", bound=Message)

MOST: Final = 1000
"""Most items of a list in one response."""

# A list ends with the page that reaches this size, as items may be whole conversations.
_LIST_BYTES: Final = 16 << 20


def refused(problem: InvalidInput) -> CallFailed:
    """Return the failure of a request with invalid data."""
    path, message = (
        text.encode("utf-8", "replace").decode()
        for text in (problem.path or "body", f"{problem.got}; wanted {problem.wanted}")
    )
    return failed(invalid(path, message))


def wrong(path: str, value: object, wanted: str) -> CallFailed:
    """Return the failure of a request with an invalid value. wanted: a description of valid ones."""
    return refused(InvalidInput(path, "missing" if value is None else shown(value), wanted))


def parsed(data: bytes, place: str = "body") -> Any:
    """Parse JSON. Raises InvalidInput."""
    try:
        decoded = data.decode()
    except UnicodeDecodeError as problem:
        raise InvalidInput(place, f"invalid UTF-8 at byte {problem.start}", "JSON") from None
    check_nodes(decoded, place)
    try:
        return parse_json(decoded)
    except (ValueError, TooLarge) as problem:
        got = str(problem) if data.strip() else "empty"
        raise InvalidInput(place, got, "JSON") from None


async def read(request: Request, convert: Callable[[Any], T], default: bytes = b"") -> T:
    """Parse the body's JSON and convert it. default: for an empty body. Raises CallFailed."""
    data = await request.body() or default
    return await converted(len(data), lambda: convert(parsed(data)))


async def converted(size: int, convert: Callable[[], T]) -> T:
    """Call a function, in a thread for large data. size: of the data, in bytes. Raises CallFailed for InvalidInput."""
    try:
        return await in_thread_if_large(size, convert)
    except InvalidInput as problem:
        raise refused(problem) from None


def answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(json_bytes(data), status, headers, "application/json")


async def written(
    pb: M, write: Callable[[M], Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the JSON response of a message."""
    data = await converted(pb.ByteSize(), lambda: json_bytes(write(pb)))
    return Response(data, status, headers, "application/json")


def whole_number(request: Request, name: str, most: int) -> int | None:
    """Return a parameter of the query, a number from 1 to `most`; None without it. Raises CallFailed."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
        raise wrong(name, text, f"a whole number from 1 to {most}")
    return int(text)


async def list_answer(
    site: Site,
    request: Request,
    page_request: Message,
    field: str,
    write: Callable[[Any], Any],
    *,
    reverse: bool = False,
) -> Response:
    """Return the items of a List method, from as many pages as the limit needs, and a link to the rest.

    field: the items in a page. reverse: return the items in reverse order.
    """
    left = whole_number(request, "limit", MOST) or MOST
    asked: Any = page_request
    cursor = asked.page_token = request.query_params.get("cursor", "")
    found: list[bytes] = []
    size = 0

    def write_all(items: Iterable[Any]) -> list[bytes]:
        return [json_bytes(write(one)) for one in items]

    principal = site.access.principal(request)
    async with site.calls.lists.slot("" if principal is None else principal.name):
        while True:
            asked.page_size = left
            try:
                got: Any = await site.ask(request, asked)
            except CallFailed as problem:
                if not problem.message.startswith("page_token: "):
                    raise
                raise wrong("cursor", cursor, "that of a link to the next page, or none") from None
            items = getattr(got, field)
            found += await converted(got.ByteSize(), partial(write_all, items))
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
    """A line of a stream. event: its kind. data: its other keys. sequence: its id, from which a watch can resume."""

    event: str
    data: Mapping[str, Any]
    sequence: int = 0


def lines(
    messages: AsyncGenerator[bytes | None], media: str, write: Callable[[bytes], Iterable[StreamLine]]
) -> StreamedCall:
    """Return the streamed response of a call. write: converts a message to lines. A failure becomes a line `error`."""

    def encoded(line: StreamLine) -> bytes:
        if media != SSE:
            return json_bytes({"event": line.event, **line.data}) + b"\n"
        return event(json_bytes(line.data), line.event, line.sequence or "")

    framing = Framing(
        media,
        lambda message: b"".join(map(encoded, write(message))),
        lambda problem: encoded(StreamLine("error", {"error": as_json(problem)})),
    )
    return StreamedCall(messages, framing)


def lines_of(body: bytes) -> Iterator[bytes]:
    """Yield the lines of a body, without blank ones."""
    return (line for line in BytesIO(body) if not line.isspace())


def accepted(request: Request) -> str:
    """Return the media type that a request accepts for streams: NDJSON, SSE, or "" for one JSON document."""
    accept = request.headers.get("accept", "")
    return next((media for media in (NDJSON, SSE) if media in accept), "")
