"""Signing in and out: an API key or a token is exchanged for a session cookie."""

import re
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from evald_server.http.calls import CallFailed
from evald_server.http.errors import http_status
from evald_server.http.site import Site

from .page_edit import read_posted
from .rendering import render

# The call's own message is about headers, which users of the form do not write.
_NOT_VALID: Final = "This key or token is not valid here: it may be mistyped, expired or revoked."
_HOME: Final = "/console/overview"
# An encoded path and query, as `failures.page` writes them.
_INSIDE: Final = re.compile(r"/console/[\w/.~%:@!$&'()*+,;=-]*(\?[\w/.~%:@!$&'()*+,;=?-]*)?", re.ASCII)


async def sign_in(site: Site, request: Request) -> Response:
    """Show the form. Redirect to the next page if the server needs no key."""
    if not site.access.wanted:
        return RedirectResponse(_next(request), 303)
    return await render(site, request, "sign_in.html", next=_next(request), message="")


async def do_sign_in(site: Site, request: Request) -> Response:
    """Exchange a key for a cookie, and redirect to the next page."""
    posted = await read_posted(request)
    response = RedirectResponse(_next(request), 303)
    try:
        site.access.sign_in(request, response, posted.get("key", "").strip())
    except CallFailed as problem:
        status = http_status(problem)
        message = _NOT_VALID if status == 401 else problem.message
        return await render(
            site, request, "sign_in.html", status=status, next=_next(request), message=message
        )
    return response


async def do_sign_out(site: Site, request: Request) -> Response:
    """End the session."""
    response = RedirectResponse("/console/sign-in" if site.access.wanted else _HOME, 303)
    site.access.sign_out(request, response)
    return response


def _next(request: Request) -> str:
    """Return the URL of the page to open next. A URL outside the console is replaced by the overview."""
    wanted = request.query_params.get("next", "")
    inside = _INSIDE.fullmatch(wanted) and "/." not in wanted.partition("?")[0]
    return wanted if inside else _HOME
