"""The routes below /api: EvalStudio's paths and shapes, extended."""

from starlette.routing import BaseRoute

from evald_server.http.site import Site


def routes(site: Site) -> list[BaseRoute]:
    """Return the routes below /api."""
    return []
