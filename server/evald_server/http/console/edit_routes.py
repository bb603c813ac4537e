"""The pages on which people write, and those that show what a server offers: their routes."""

from collections.abc import Awaitable, Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from evald_server.http.site import Site

from .failures import page
from .page_catalog import evaluator, evaluators, judge, remotes
from .page_edit import change, edit, resources
from .page_sign_in import do_sign_in, do_sign_out, sign_in
from .page_transfer import do_import, export, import_form
from .page_try import change_try, results, try_it
from .resources import CONNECTORS, PERSONAS, SCENARIOS

Handler = Callable[[Site, Request], Awaitable[Response]]


def routes(site: Site) -> list[BaseRoute]:
    """Return the routes of these pages."""
    found: list[BaseRoute] = [Route(path, page(site, handler)) for path, handler in _PAGES.items()]
    found += [Route(path, page(site, handler), methods=["POST"]) for path, handler in _ACTIONS.items()]
    for kind in (SCENARIOS, PERSONAS, CONNECTORS):
        path = f"/console/{kind.plural}"
        found.append(Route(path, page(site, partial(resources, kind))))
        for one in (f"{path}/new", f"{path}/{{id}}"):
            found.append(Route(one, page(site, partial(edit, kind))))
            found.append(Route(one, page(site, partial(change, kind)), methods=["POST"]))
    return found


_PAGES: dict[str, Handler] = {
    "/console/sign-in": sign_in,
    "/console/try": try_it,
    "/console/evaluators": evaluators,
    "/console/evaluators/{type}": evaluator,
    "/console/remotes": remotes,
    "/console/judge": judge,
    "/console/scenarios/export": export,
    "/console/scenarios/import": import_form,
}
_ACTIONS: dict[str, Handler] = {
    "/console/sign-in": do_sign_in,
    "/console/sign-out": do_sign_out,
    "/console/try": change_try,
    "/console/try/results": results,
    "/console/scenarios/import": do_import,
}
