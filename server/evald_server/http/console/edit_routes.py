"""The pages on which people write: their routes."""

from functools import partial

from starlette.routing import BaseRoute, Route

from evald_server.http.site import Site

from .failures import page
from .page_edit import change, edit, resources
from .resources import CONNECTORS, PERSONAS, SCENARIOS


def routes(site: Site) -> list[BaseRoute]:
    """Return the routes of pages with forms."""
    found: list[BaseRoute] = []
    for kind in (SCENARIOS, PERSONAS, CONNECTORS):
        path = f"/console/{kind.plural}"
        found.append(Route(path, page(site, partial(resources, kind))))
        for one in (f"{path}/new", f"{path}/{{id}}"):
            found.append(Route(one, page(site, partial(edit, kind))))
            found.append(Route(one, page(site, partial(change, kind)), methods=["POST"]))
    return found
