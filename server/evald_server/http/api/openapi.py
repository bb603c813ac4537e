"""The type of routes below /api, and their OpenAPI document."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final, NamedTuple, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from evald_server.http.site import Site
from evald_server.http.streams import NDJSON, SSE

from .shapes import Schema, record

ApiHandler: TypeAlias = Callable[[Site, Request], Awaitable[Response]]

_JSON: Final = "application/json"
_PARAMETER: Final = re.compile(r"\{(\w+)\}")

# Failure statuses of every route: from itself, credentials, limits, the web port, or the server's state.
_ALWAYS: Final = (400, 401, 403, 408, 413, 415, 421, 429, 500, 503, 504, 507)

_TAG: Final = {
    "type": "string",
    "description": "Version of the resource. A change or deletion whose If-Match has another version fails with 412.",
}

_ERROR: Final = record(
    "Error",
    {
        "code": {"type": "integer", "description": "Code of google.rpc.Status."},
        "message": {"type": "string"},
        "details": {"type": "array", "items": {"type": "object"}},
        "error": {
            "type": "string",
            "description": "Same as `message`, for EvalStudio's clients.",
        },
    },
    "code message error",
)


class ApiRoute(NamedTuple):
    """One HTTP method of one path below /api.

    rpc_method: the gRPC method, "" for none. response_schema, request_schema: of the bodies; None for none. query:
    schemas of the parameters. status: of success. refusals: failure statuses beyond those of all routes. lines: the
    schema of a line in a streamed response; with `response_schema`, the caller chooses by Accept. request_lines: the
    body of the request is NDJSON. events: the stream is server-sent events only. versioned: the resource has versions:
    responses have an ETag, and changes take If-Match. summary: of the route; by default the first line of the handler's
    docstring.
    """

    method: str
    path: str
    handle: ApiHandler
    rpc_method: str = ""
    response_schema: Schema | None = None
    request_schema: Schema | None = None
    query: Mapping[str, Schema] = {}
    status: int = 200
    refusals: tuple[int, ...] = ()
    lines: Schema | None = None
    events: bool = False
    request_lines: bool = False
    versioned: bool = False
    summary: str = ""


def document(routes: Sequence[ApiRoute]) -> dict[str, Any]:
    """Return the OpenAPI document of routes."""
    components: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(f"/api{route.path}", {})[route.method.lower()] = _operation(route, components)
    error = {
        "description": "The request was refused or failed.",
        "content": {_JSON: {"schema": _hoisted(_ERROR, components)}},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "evald",
            "version": version("evald"),
            "description": "HTTP API of evald, the evaluation service for AI agents, with EvalStudio's paths and "
            "shapes. All gRPC methods except those with a stream of requests are also available over HTTP, as "
            "POST /PACKAGE.SERVICE/METHOD, such as POST /evald.v1.EvaluationService/EvaluateUnary.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "responses": {"Error": error},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: ApiRoute, components: dict[str, Any]) -> dict[str, Any]:
    words = re.sub(r"\W+", " ", route.path.replace("/projects/{projectId}/", "/project/", 1)).split()
    parameters = [_parameter(name, "path", {"type": "string"}) for name in _PARAMETER.findall(route.path)]
    parameters += [_parameter(name, "query", schema) for name, schema in route.query.items()]
    if _takes_version(route):
        parameters.append(_parameter("If-Match", "header", _TAG))
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *words]),
        "summary": route.summary or (route.handle.__doc__ or "").partition("\n")[0].rstrip("."),
        "tags": [next(part for part in words if part not in ("project", "projects") or part == words[-1])],
        "responses": _responses(route, components),
    }
    if route.rpc_method:
        operation["description"] = f"Calls `{route.rpc_method}`."
    if parameters:
        operation["parameters"] = parameters
    if route.request_schema is not None:
        media = NDJSON if route.request_lines else _JSON
        operation["requestBody"] = {
            "required": True,
            "content": {media: {"schema": _hoisted(route.request_schema, components)}},
        }
    return operation


def _parameter(name: str, place: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": place, "schema": schema} | ({"required": True} if place == "path" else {})


def _takes_version(route: ApiRoute) -> bool:
    return route.versioned and route.method in ("PUT", "DELETE")


def _responses(route: ApiRoute, components: dict[str, Any]) -> dict[str, Any]:
    refused = {
        *_ALWAYS,
        *route.refusals,
        *((404,) if "{" in route.path else ()),
        *((412,) if _takes_version(route) else ()),
        *((501,) if route.status == 501 else ()),
    }
    responses: dict[str, Any] = {
        str(status): {"$ref": "#/components/responses/Error"} for status in sorted(refused)
    }
    if route.status == 501:
        return responses
    content = {}
    if route.response_schema is not None:
        content[_JSON] = {"schema": _hoisted(route.response_schema, components)}
    if route.lines is not None:
        line = {"schema": _hoisted(route.lines, components)}
        content |= {SSE: line} if route.events else {NDJSON: line, SSE: line}
    success: dict[str, Any] = {"description": "Success."}
    if route.versioned and route.response_schema is not None:
        success["headers"] = {"ETag": {"schema": _TAG}}
    return {str(route.status): success | ({"content": content} if content else {}), **responses}


def _hoisted(schema: Any, components: dict[str, Any]) -> Any:
    """Return a schema with references for its titled objects, which are moved to the components."""
    if isinstance(schema, list):
        return [_hoisted(one, components) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    inner = {key: _hoisted(value, components) for key, value in schema.items() if key != "$defs"}
    components.update(schema.get("$defs", {}))
    if "title" not in schema or "properties" not in schema:
        return inner
    title = schema["title"]
    assert components.setdefault(title, inner) == inner, f"two schemas are called {title}"
    return {"$ref": f"#/components/schemas/{title}"}
