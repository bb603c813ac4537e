"""What a page says when a call behind it fails."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import grpc
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from evald_server.http.calls import CallFailed
from evald_server.http.errors import error_info, http_status
from evald_server.http.site import Site
from evald_server.http.streams import answer_to

from .rendering import link, render

_TITLES = {
    grpc.StatusCode.NOT_FOUND: "Not found",
    grpc.StatusCode.PERMISSION_DENIED: "Not allowed",
    grpc.StatusCode.UNAUTHENTICATED: "Not signed in",
    grpc.StatusCode.INVALID_ARGUMENT: "That cannot be done",
    grpc.StatusCode.FAILED_PRECONDITION: "That cannot be done now",
    grpc.StatusCode.ALREADY_EXISTS: "It exists already",
    grpc.StatusCode.ABORTED: "It was changed meanwhile",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "Too busy",
    grpc.StatusCode.UNAVAILABLE: "Not available now",
    grpc.StatusCode.DEADLINE_EXCEEDED: "Took too long",
}


class BadAddress(Exception):
    """An address asks for what there cannot be. Its text says what, got, wanted."""


class NotThere(Exception):
    """What an address names does not exist. Its text says what."""


@contextmanager
def gone_is_gone() -> Iterator[None]:
    """Delete something: that it is not there is no failure, because a form may be sent twice."""
    try:
        yield
    except CallFailed as problem:
        if error_info(problem).reason != "RESOURCE_NOT_FOUND":
            raise


def page(
    site: Site, handler: Callable[[Site, Request], Awaitable[Response]], method: str
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a page: of a call that fails it says why. method: that its callers may call, or ""."""

    async def endpoint(request: Request) -> Response:
        try:
            if method:
                await site.access.admit(site.calls, request, method)
            await request.body()  # from here on it is seen when the caller hangs up
            return answer_to(request, await handler(site, request))
        except BadAddress as problem:
            status, title, message = 400, "That cannot be done", str(problem)
        except NotThere as problem:
            status, title, message = 404, "Not found", str(problem)
        except CallFailed as problem:
            if problem.code is grpc.StatusCode.UNAUTHENTICATED and request.method in ("GET", "HEAD"):
                here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(link("/console/sign-in", next=here), 303)
            status, title = http_status(problem), _TITLES.get(problem.code, "Something is broken")
            message = problem.message
        return render(site, request, "error.html", status=status, title=title, message=message)

    return endpoint
