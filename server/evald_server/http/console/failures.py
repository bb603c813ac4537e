"""Error pages, for wrong URLs and for failed calls."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import grpc
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from evald_server.http.calls import CallFailed
from evald_server.http.errors import error_info, http_status
from evald_server.http.site import Site
from evald_server.http.streams import answer_to

from .rendering import link, render

N = TypeVar("N")

_TITLES = {
    grpc.StatusCode.NOT_FOUND: "Not found",
    grpc.StatusCode.PERMISSION_DENIED: "Not allowed",
    grpc.StatusCode.UNAUTHENTICATED: "Not signed in",
    grpc.StatusCode.INVALID_ARGUMENT: "Invalid request",
    grpc.StatusCode.FAILED_PRECONDITION: "Not possible now",
    grpc.StatusCode.ALREADY_EXISTS: "Already exists",
    grpc.StatusCode.ABORTED: "Changed in the meantime",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "Too busy",
    grpc.StatusCode.UNAVAILABLE: "Not available now",
    grpc.StatusCode.DEADLINE_EXCEEDED: "Timeout",
}


def bad_address(text: str) -> CallFailed:
    """Return the failure of an invalid URL or form. text: for users: the name, the value, and what was wanted."""
    return CallFailed(grpc.StatusCode.INVALID_ARGUMENT, text, b"")


def not_found(text: str) -> CallFailed:
    """Return the failure of a URL whose resource does not exist."""
    return CallFailed(grpc.StatusCode.NOT_FOUND, text, b"")


def choice(request: Request, name: str, known: Mapping[str, N]) -> N | None:
    """Return the value of a query parameter by its name in `known`, None without it. Raises CallFailed."""
    value = request.query_params.get(name, "")
    if value and value not in known:
        raise bad_address(f"{name}: got {value[:100]!r}, wanted one of {', '.join(known)}")
    return known[value] if value else None


def whole_number(name: str, text: str) -> int:
    """Parse a number of a URL. Raises CallFailed."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise bad_address(f"{name}: got {text[:100]!r}, wanted a whole number")
    return int(text)


@contextmanager
def ignore_not_found() -> Iterator[None]:
    """Ignore RESOURCE_NOT_FOUND of a delete, because a form may be sent twice."""
    try:
        yield
    except CallFailed as problem:
        if error_info(problem).reason != "RESOURCE_NOT_FOUND":
            raise


def page(
    site: Site, handler: Callable[[Site, Request], Awaitable[Response]], method: str
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a page, which shows failed calls. method: one that its callers must be able to call, or
    ""."""

    async def endpoint(request: Request) -> Response:
        try:
            if method:
                await site.access.admit(site.calls, request, method)
            await request.body()  # a disconnect is noticed only after this
            return answer_to(request, await handler(site, request))
        except CallFailed as problem:
            signs_in = problem.code is grpc.StatusCode.UNAUTHENTICATED or (
                problem.code is grpc.StatusCode.PERMISSION_DENIED and site.access.may_sign_in(request)
            )
            if signs_in and request.method in ("GET", "HEAD"):
                here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(link("/console/sign-in", next=here), 303)
            title = _TITLES.get(problem.code, "Internal error")
            return await render(
                site,
                request,
                "error.html",
                status=http_status(problem),
                title=title,
                message=problem.message,
            )

    return endpoint
