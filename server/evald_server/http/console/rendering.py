"""Rendering of pages from templates: navigation, principal, version, and the static files of all pages."""

import asyncio
import hashlib
import re
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from evald_server.http.site import Site
from evald_server.pages.environment import environment
from evald_server.pages.formats import mark

if TYPE_CHECKING:
    from jinja2 import Environment


class NavItem(NamedTuple):
    """A link of the navigation. key: opens it after `g`; "" for none. reads: the method that a caller must be permitted
    to call to see it."""

    name: str
    path: str
    reads: str
    key: str = ""


NAVIGATION: Final = (
    NavItem("Overview", "/console/overview", "RunService/ListRuns", "o"),
    NavItem("Runs", "/console/runs", "RunService/ListRuns", "r"),
    NavItem("Scenarios", "/console/scenarios", "ScenarioService/ListScenarios", "s"),
    NavItem("Suites", "/console/suites", "SuiteService/ListSuiteRuns"),
    NavItem("Try it", "/console/try", "EvaluationService/EvaluateUnary", "t"),
    NavItem("Evaluators", "/console/evaluators", "CatalogService/ListEvaluatorTypes"),
    NavItem("Personas", "/console/personas", "PersonaService/ListPersonas"),
    NavItem("Connectors", "/console/connectors", "ConnectorService/ListConnectors"),
    NavItem("Remotes", "/console/remotes", "RegistryService/ListRegistrations"),
    NavItem("Judge", "/console/judge", "CatalogService/ListEvaluatorTypes"),
)


async def render(
    site: Site, request: Request, template: str, *, status: int = 200, **values: Any
) -> Response:
    """Render a page. values: for the template, in addition to `navigation`, `here`, `may`, `principal` and `may_sign_in`."""
    principal = site.access.principal(request)

    def may(method: str) -> bool:
        """Return whether the caller may call a method, as "RunService/DeleteRun"."""
        package = "evald.plugin.v1" if method.startswith("RegistryService/") else "evald.v1"
        return site.access.may(request, f"{package}.{method}")

    page = templates().get_template(template)
    # In a thread, because the forms of a hundred evaluators take 0.1 s. `may` finds the principal known.
    text = await asyncio.to_thread(
        page.render,
        navigation=[item for item in NAVIGATION if may(item.reads)],
        here=request.url.path,
        may=may,
        principal="" if principal is None or principal.is_anonymous else principal.name,
        may_sign_in=site.access.may_sign_in(request),
        **values,
    )
    return HTMLResponse(text, status)


def link(path: str, **parameters: str) -> str:
    """Return a URL with quoted parts. path: its parts may hold any text but "/". Empty parameters are left out."""
    query = urlencode({name: value for name, value in parameters.items() if value})
    return quote(path) + (f"?{query}" if query else "")


def listed(request: Request, following: str) -> dict[str, Any]:
    """Return a list page's values for the template: the `filters` of its URL, whether it is the `first` page, and the
    URL of the `older` page. following: the token of the older page, "" for none."""
    filters = {name: value for name, value in request.query_params.items() if name != "page" and value}
    older = link(request.url.path, **filters, page=following) if following else ""
    return {"filters": filters, "first": not request.query_params.get("page"), "older": older}


@cache
def templates() -> "Environment":
    """Return the templates of the console."""
    made = environment(Path(__file__).with_name("templates"))
    made.globals |= {"asset": address, "link": link, "mark_of": mark, "version": version("evald")}
    made.filters |= {"iso": _iso}
    return made


def _iso(pb: Any) -> str:
    """Format a Timestamp for the attribute `datetime`."""
    return datetime.fromtimestamp(pb.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# The URL of the style sheet, scripts and icon changes with their content, so that browsers can cache them forever.
_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def address(name: str) -> str:
    """Return the URL of a static file. Raises KeyError if it does not exist."""
    if name not in _assets():
        raise KeyError(name)
    return f"/console/static/{_digest()}/{name}"


async def asset(request: Request) -> Response:
    """Return a static file."""
    name = request.path_params["name"]
    content = _assets().get(name)
    if content is None or request.path_params["digest"] != _digest():
        return Response("no such file", 404, media_type="text/plain")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(content, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])


@cache
def _assets() -> dict[str, bytes]:
    found = {
        one.name: one.read_bytes()
        for one in files(__package__).joinpath("static").iterdir()
        if one.name.rpartition(".")[2] in _TYPES
    }
    style = files("evald_server.pages").joinpath("style.css").read_text(encoding="utf-8")
    found["style.css"] = style.encode()
    return {
        name: _packed(content.decode()).encode() if name.endswith(".css") else content
        for name, content in found.items()
    }


def _packed(style: str) -> str:
    """Minify a style sheet. Its strings must have no punctuation."""
    style = re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)
    return re.sub(r"\s*([{};,])\s*", r"\1", style).replace(": ", ":").replace(";}", "}").strip()


@cache
def _digest() -> str:
    """Return one digest of all files, because scripts import each other by relative names."""
    together = hashlib.sha256()
    for name, content in sorted(_assets().items()):
        together.update(f"{name} {len(content)} ".encode() + content)
    return together.hexdigest()[:16]
