"""The pages below /console."""

from starlette.routing import BaseRoute

from evald_server.http.site import Site


def routes(site: Site) -> list[BaseRoute]:
    """Return the routes of all pages, and of their style sheet and scripts."""
    return []
