"""Every unary and server-streaming method as HTTP, by Connect's protocol."""

from starlette.routing import Route

from .site import Site


def routes(site: Site) -> list[Route]:
    """Return the routes of all methods."""
    return []
