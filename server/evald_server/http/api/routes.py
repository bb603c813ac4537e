"""The routes below /api: EvalStudio's paths and shapes, extended. One table defines the routes and the OpenAPI
document."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from evald.errors import InvalidInput
from evald.fields import nearest
from evald_server.call_errors import BadField, CallError, refusal
from evald_server.http.errors import failed
from evald_server.http.site import Site
from evald_server.http.streams import answer_to, json_bytes

from . import catalog, evaluate, resources, runs, suites
from .answers import refused
from .openapi import ApiRoute, document

_WITHOUT: Final = {
    "models and their API keys are configured in the settings of the server": (
        ("GET", "/workspace"),
        ("PUT", "/workspace"),
        ("GET", "/llm-providers/models"),
        ("GET", "/llm-providers/{providerType}/models"),
        ("PUT", "/projects/{projectId}/config"),
    ),
    "a server has exactly one project": (("POST", "/projects"), ("DELETE", "/projects/{projectId}")),
}
_WITHOUT_IN_PROJECT: Final = {
    "it does not generate or store images": (
        ("POST", "/personas/{id}/generate-image"),
        ("POST", "/images"),
        ("GET", "/images/{id}"),
        ("DELETE", "/images/{id}"),
    ),
    "only the server writes results of its runs; store runs of other servers with `evald import`": (
        ("PUT", "/runs/{id}"),
    ),
    "start a run or test the connector instead": (
        ("POST", "/runs/chat"),
        ("POST", "/connectors/{id}/invoke"),
    ),
}


def _absent(table: Mapping[str, Sequence[tuple[str, str]]]) -> list[ApiRoute]:
    """Return the routes of EvalStudio that evald lacks. table: methods and paths by the reason."""

    def refusing(reason: str, method: str, path: str) -> ApiRoute:
        async def refuse(_site: Site, _request: Request) -> Response:
            """Not supported by evald."""
            text = f"evald does not support {method} /api{path}: {reason}"
            raise failed(CallError("UNKNOWN_METHOD", text))

        return ApiRoute(method, path, refuse, status=501)

    return [refusing(reason, *route) for reason, routes in table.items() for route in routes]


@cache
def _document() -> bytes:
    return json_bytes(document(ROUTES))


async def _openapi(_site: Site, _request: Request) -> Response:
    """Get this OpenAPI document."""
    return Response(_document(), media_type="application/json")


ROUTES: Final = (
    ApiRoute("GET", "/openapi.json", _openapi, response_schema={"type": "object"}),
    *catalog.ROUTES,
    *evaluate.ROUTES,
    *suites.ROUTES,
    *_absent(_WITHOUT),
    *(
        route._replace(path=f"{base}{route.path}")
        for base in ("", "/projects/{projectId}")
        for route in (*_absent(_WITHOUT_IN_PROJECT), *resources.ROUTES, *runs.ROUTES)
    ),
)
"""All routes, by their paths below /api."""


def routes(site: Site) -> list[BaseRoute]:
    """Return the routes below /api."""
    by_path: dict[str, dict[str, ApiRoute]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, {})[route.method] = route
    # Fixed path segments come before parameters, so that they match first.
    paths = sorted(by_path, key=lambda path: [part.startswith("{") for part in path.split("/")])
    return [
        Route(
            f"/api{path}",
            _endpoint(site, by_path[path]),
            methods=["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"],
        )
        for path in paths
    ]


def _endpoint(site: Site, methods: Mapping[str, ApiRoute]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        _check_project(request)
        method = "GET" if request.method == "HEAD" else request.method
        route = methods.get(method)
        if route is None:
            allowed = [*methods, *(("HEAD",) if "GET" in methods else ())]
            raise HTTPException(405, headers={"Allow": ", ".join(allowed)})
        await site.access.admit(site.calls, request, route.rpc_method or catalog.LIST)
        await request.body()  # a disconnect is noticed only after this
        _check_query(request, route)
        if not route.rpc_method:
            await catalog.authorise(site, request)
        return answer_to(request, await route.handle(site, request))

    return endpoint


def _check_project(request: Request) -> None:
    project = request.path_params.get("projectId", catalog.PROJECT_ID)
    if project != catalog.PROJECT_ID:
        text = f'no project has the id "{project[:100]}"; this server has one project, "{catalog.PROJECT_ID}"'
        raise failed(refusal([BadField("projectId", text)], "RESOURCE_NOT_FOUND"))


def _check_query(request: Request, route: ApiRoute) -> None:
    """Raise CallFailed for an unknown parameter: results without a filter that was asked for would be wrong."""
    for name in request.query_params:
        if name not in route.query:
            near = nearest(name, route.query)
            known = f"one of {', '.join(route.query)}" if route.query else "none"
            raise refused(InvalidInput(name[:100], "unknown parameter", f"{near!r}" if near else known))
