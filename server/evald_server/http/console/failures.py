"""What a page says when a call behind it fails."""

from collections.abc import Awaitable, Callable

import grpc
from starlette.requests import Request
from starlette.responses import Response

from evald_server.http.calls import CallFailed
from evald_server.http.site import Site

from .rendering import render

_STATUS = {
    grpc.StatusCode.NOT_FOUND: (404, "Not found"),
    grpc.StatusCode.PERMISSION_DENIED: (403, "Not allowed"),
    grpc.StatusCode.UNAUTHENTICATED: (401, "Sign in first"),
    grpc.StatusCode.INVALID_ARGUMENT: (400, "That cannot be done"),
    grpc.StatusCode.FAILED_PRECONDITION: (400, "That cannot be done now"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (429, "Too busy"),
    grpc.StatusCode.UNAVAILABLE: (503, "Not available now"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (504, "Took too long"),
}


class BadAddress(Exception):
    """An address asks for what there cannot be. Its text says what, got, wanted."""


class NotThere(Exception):
    """What an address names does not exist. Its text says what."""


def page(
    site: Site, handler: Callable[[Site, Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a page: of a call that fails it says why."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(site, request)
        except CallFailed as problem:
            status, title = _STATUS.get(problem.code, (500, "Something is broken"))
            return render(site, request, "error.html", status=status, title=title, message=problem.message)

    return endpoint
