"""Generic routes of unary methods: path, query and headers fill the request, and a part of its response is returned."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from starlette.requests import Request
from starlette.responses import Response

from evald.convert.json_shapes import Shape
from evald.fields import snake
from evald_server.http.site import Site
from evald_server.methods import find_method

from .answers import MOST, list_answer, read, whole_number, written, wrong
from .openapi import ApiRoute
from .shapes import TEXT, Schema, list_of

PAGE: Final = {"limit": {"type": "integer", "minimum": 1, "maximum": MOST}, "cursor": TEXT}

FIELDS: Final = {
    "evalId": "experiment_id",
    "evaluator": "failed_evaluator",
    "messages": "include_messages",
    "base": "base_id",
    "new": "new_id",
}
"""Fields of requests by their different names in this API. `id` is always the first field."""

_ETAG: Final = re.compile(r'"([^"]*)"')


class AnswerPart(NamedTuple):
    """The part of a method's response that a route returns.

    field: its name, "" for the whole response. write: converts it to JSON. schema: of that JSON. For lists, both are of
    one item.
    """

    field: str
    schema: Schema
    write: Callable[[Any], Any]


class Body(NamedTuple):
    """The body of a route's request.

    schema: of its JSON; empty for an optional body without a description. read: converts the JSON to fields of the
    method's request. Raises InvalidInput.
    """

    schema: Schema
    read: Callable[[Any], Mapping[str, Any]]


def answer_part(field: str, shape: Shape[Any]) -> AnswerPart:
    """Return the AnswerPart for one field of a response."""
    return AnswerPart(field, shape.schema(), shape.write)


def unary(
    method: str,
    path: str,
    rpc_method: str,
    summary: str,
    part: AnswerPart | None = None,
    *,
    body: Body | None = None,
    query: Mapping[str, Schema] = {},
    status: int = 200,
    versioned: bool = False,
    refusals: tuple[int, ...] = (),
) -> ApiRoute:
    """Return the route of a method. part: None for an empty response. body: None to ignore the body."""

    async def handle(site: Site, request: Request) -> Response:
        body_fields = await read(request, body.read, b"" if body.schema else b"{}") if body else {}
        found = await site.ask(request, build_request(rpc_method, request, query, body_fields))
        if part is None:
            return Response(status_code=204)
        shown = getattr(found, part.field) if part.field else found
        headers = etag(shown) if versioned else None
        return await written(found, lambda _: part.write(shown), status, headers)

    return ApiRoute(
        method,
        path,
        handle,
        rpc_method,
        part and part.schema,
        body.schema or None if body else None,
        query=query,
        status=status if part else 204,
        refusals=refusals,
        versioned=versioned,
        summary=summary,
    )


def listing(
    path: str, rpc_method: str, summary: str, part: AnswerPart, query: Mapping[str, Schema] = {}
) -> ApiRoute:
    """Return the route of a List method, with pages."""

    async def handle(site: Site, request: Request) -> Response:
        return await list_answer(
            site, request, build_request(rpc_method, request, query), part.field, part.write
        )

    return ApiRoute(
        "GET", path, handle, rpc_method, list_of(part.schema), query={**query, **PAGE}, summary=summary
    )


def build_request(
    method: str, request: Request, query: Mapping[str, Schema], body_fields: Mapping[str, Any] | None = None
) -> Any:
    """Build a method's request from the path, the query's parameters and the headers. Raises CallFailed.

    query: schemas of the parameters. body_fields: the fields from the body.
    """
    asked: Message = find_method(method).request()
    fields = [field.name for field in asked.DESCRIPTOR.fields]
    found: dict[str, Any] = {
        name: value for name, value in request.path_params.items() if name != "projectId"
    }
    found |= {name: parameter(request, name, schema) for name, schema in query.items()}
    if "expected_update_time" in fields:
        found["expected_update_time"] = expected_version(request)
    if "request_id" in fields:
        found["request_id"] = request.headers.get("idempotency-key")
    names = {name: fields[0] if name == "id" else FIELDS.get(name, snake(name)) for name in found}
    return type(asked)(**{names[name]: value for name, value in found.items()}, **(body_fields or {}))


def parameter(request: Request, name: str, schema: Schema) -> Any:
    """Return a parameter of the query as the value of a field, None without it. Raises CallFailed."""
    text = request.query_params.get(name)
    match schema:
        case {"type": "integer", "maximum": most}:
            return whole_number(request, name, most)
        case {"type": "number"}:
            return None if text is None else _share(name, text)
        case {"enum": names} | {"examples": names} if text:
            return _choice(name, text, names)
        case {"type": "boolean"} if text:
            return _choice(name, text, ("true", "false")) == 1
        case {"format": "date-time"} if text:
            return _time(name, text)
    return text or None


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise wrong(name, text, "a number from 0 to 1")
    return share


def _choice(name: str, text: str, names: Any) -> int:
    """Return the position of a name, from 1. Raises CallFailed."""
    for number, one in enumerate(names, start=1):
        if text.lower() == one.lower():
            return number
    raise wrong(name, text, " or ".join(names))


def _time(name: str, text: str) -> Timestamp:
    found = Timestamp()
    try:
        time = datetime.fromisoformat(text)
        found.FromDatetime((time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC))
    except (ValueError, OverflowError):
        raise wrong(name, text, "a time such as 2026-01-31T12:00:00Z") from None
    return found


def etag(stored: Any) -> dict[str, str]:
    """Return the ETag header of a resource: the time of its last change."""
    return {"ETag": f'"{stored.update_time.ToJsonString()}"'}


def expected_version(request: Request) -> Timestamp | None:
    """Return the version in a request's If-Match, None for any version. Raises CallFailed."""
    text = ", ".join(request.headers.getlist("if-match"))
    if text in ("", "*"):
        return None
    expected = Timestamp()
    try:
        tag = _ETAG.fullmatch(text)
        expected.FromJsonString(tag[1] if tag else "")
    except ValueError:
        raise wrong("If-Match", text, "one ETag of a response, with its quotes, or *") from None
    return expected
