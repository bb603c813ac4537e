"""The pages below /console that change what is stored."""

from starlette.routing import BaseRoute

from evald_server.http.site import Site


def routes(site: Site) -> list[BaseRoute]:
    """Return their routes."""
    return []
