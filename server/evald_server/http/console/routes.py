"""The pages below /console."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from evald_server.http.site import Site

from . import edit_routes, page_overview, page_run, page_runs, page_suites
from .assets import asset
from .failures import page
from .rendering import render

Handler = Callable[[Site, Request], Awaitable[Response]]


def routes(site: Site) -> list[BaseRoute]:
    """Return the routes of all pages, and of their style sheet and scripts."""
    return [
        Route("/", _home),
        Route("/console", _home),
        Route("/console/", _home),
        Route("/console/static/{digest}/{name}", asset),
        *(Route(path, page(site, handler)) for path, handler in _PAGES.items()),
        *(Route(path, page(site, handler), methods=["POST"]) for path, handler in _ACTIONS.items()),
        *edit_routes.routes(site),
        Route("/console/{path:path}", page(site, _nothing)),
    ]


async def _home(request: Request) -> Response:
    return RedirectResponse("/console/overview", 302)


async def _nothing(site: Site, request: Request) -> Response:
    message = f"There is no page {request.url.path}."
    return render(site, request, "error.html", status=404, title="Not found", message=message)


_PAGES: dict[str, Handler] = {
    "/console/overview": page_overview.overview,
    "/console/runs": page_runs.runs,
    "/console/runs/{run_id}": page_run.run,
    "/console/runs/{run_id}/events": page_run.events,
    "/console/suites": page_suites.suites,
    "/console/suites/compare": page_suites.compare,
    "/console/suites/{suite_run_id}": page_suites.suite_run,
    "/console/suites/{suite_run_id}/case": page_suites.case,
    "/console/runs/{run_id}/messages/{index}": page_run.message,
}
_ACTIONS: dict[str, Handler] = {
    "/console/suites/{suite_run_id}/delete": page_suites.delete_suite_run,
    "/console/runs/{run_id}/{action}": page_runs.change_run,
}
