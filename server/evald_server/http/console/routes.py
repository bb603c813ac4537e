"""The pages below /console, in one table."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from evald_server.http.site import Site
from evald_server.methods import CONNECTORS, PERSONAS, SCENARIOS, StandardMethods

from . import page_catalog, page_overview, page_run, page_runs, page_suites
from .failures import not_found, page
from .page_edit import change, edit, resources
from .page_sign_in import do_sign_in, do_sign_out, sign_in
from .page_transfer import do_import, export, import_form
from .page_try import change_try, results, try_it
from .rendering import asset

Handler = Callable[[Site, Request], Awaitable[Response]]


class PageRoute(NamedTuple):
    """The route of a page or of its form.

    calls: a method that the caller must be permitted to call, as "evald.v1.RunService/GetRun"; "" for public pages and
    those whose handler's call is refused.
    """

    path: str
    handle: Handler
    calls: str = ""
    method: str = "GET"


async def _home(_site: Site, _request: Request) -> Response:
    return RedirectResponse("/console/overview", 302)


async def _nothing(_site: Site, request: Request) -> Response:
    raise not_found(f"The page {request.url.path} does not exist.")


def _stored(kind: StandardMethods) -> list[PageRoute]:
    """Return the routes of one kind of resource. Saving needs more permissions than opening the form."""
    path, reads = f"/console/{kind.plural}", kind.method("List")
    found = [PageRoute(path, partial(resources, kind), reads)]
    for one in (f"{path}/new", f"{path}/{{id}}"):
        found.append(PageRoute(one, partial(edit, kind), reads))
        found.append(PageRoute(one, partial(change, kind), reads, "POST"))
    return found


_TYPES: Final = "evald.v1.CatalogService/ListEvaluatorTypes"
_SUITE_RUN: Final = "/console/suites/{suite_run_id}"

PAGES: Final = (
    PageRoute("/", _home),
    PageRoute("/console", _home),
    PageRoute("/console/", _home),
    PageRoute("/console/sign-in", sign_in),
    PageRoute("/console/sign-in", do_sign_in, method="POST"),
    PageRoute("/console/sign-out", do_sign_out, method="POST"),
    PageRoute("/console/overview", page_overview.overview, "evald.v1.RunService/ListRuns"),
    PageRoute("/console/runs", page_runs.runs, "evald.v1.RunService/ListRuns"),
    PageRoute("/console/runs/{run_id}", page_run.run, "evald.v1.RunService/GetRun"),
    PageRoute("/console/runs/{run_id}/events", page_run.events),
    PageRoute("/console/runs/{run_id}/messages/{index}", page_run.message, "evald.v1.RunService/GetRun"),
    *(
        PageRoute(
            f"/console/runs/{{run_id}}/{action}",
            partial(page_runs.change_run, action),
            f"evald.v1.RunService/{action.capitalize()}Run",
            "POST",
        )
        for action in page_runs.ACTIONS
    ),
    PageRoute("/console/suites", page_suites.suites, "evald.v1.SuiteService/ListSuiteRuns"),
    PageRoute("/console/suites/compare", page_suites.compare, "evald.v1.SuiteService/CompareSuiteRuns"),
    PageRoute(_SUITE_RUN, page_suites.suite_run, "evald.v1.SuiteService/GetSuiteRun"),
    PageRoute(f"{_SUITE_RUN}/case", page_suites.case, "evald.v1.SuiteService/ListCaseResults"),
    PageRoute(
        f"{_SUITE_RUN}/delete", page_suites.delete_suite_run, "evald.v1.SuiteService/DeleteSuiteRun", "POST"
    ),
    PageRoute("/console/try", try_it, _TYPES),
    PageRoute("/console/try", change_try, _TYPES, "POST"),
    PageRoute("/console/try/results", results, "evald.v1.EvaluationService/Evaluate", "POST"),
    PageRoute("/console/evaluators", page_catalog.evaluators, _TYPES),
    PageRoute(
        "/console/evaluators/{type}", page_catalog.evaluator, "evald.v1.CatalogService/GetEvaluatorType"
    ),
    PageRoute("/console/remotes", page_catalog.remotes, "evald.plugin.v1.RegistryService/ListRegistrations"),
    PageRoute(
        "/console/remotes", page_catalog.deregister, "evald.plugin.v1.RegistryService/Deregister", "POST"
    ),
    PageRoute("/console/judge", page_catalog.judge, _TYPES),
    PageRoute("/console/scenarios/export", export, "evald.v1.ScenarioService/ListScenarios"),
    PageRoute("/console/scenarios/import", import_form, "evald.v1.ScenarioService/ListScenarios"),
    PageRoute("/console/scenarios/import", do_import, "evald.v1.ScenarioService/CreateScenario", "POST"),
    *(route for kind in (SCENARIOS, PERSONAS, CONNECTORS) for route in _stored(kind)),
    PageRoute("/console/{path:path}", _nothing),
)
"""All pages. The first one that matches a path is used."""


def routes(site: Site) -> list[BaseRoute]:
    """Return the routes of all pages and static files."""
    found: list[BaseRoute] = [Route("/console/static/{digest}/{name}", asset)]
    found += [Route(one.path, page(site, one.handle, one.calls), methods=[one.method]) for one in PAGES]
    return found
