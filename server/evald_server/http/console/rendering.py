"""Pages from templates, with what all pages share: navigation, principal, version, and the files that they load."""

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
    """A link of the navigation. key: that goes there after `g`, or "". reads: a method that whoever opens it may call."""

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


def render(site: Site, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page. values: for the template, beside `navigation`, `here`, `may` and `principal`."""
    principal = site.access.principal(request)

    def may(method: str) -> bool:
        """Return whether the request's sender may call a method, as "RunService/DeleteRun"."""
        package = "evald.plugin.v1" if method.startswith("RegistryService/") else "evald.v1"
        return site.access.may(request, f"{package}.{method}")

    page = templates().get_template(template)
    text = page.render(
        navigation=[item for item in NAVIGATION if may(item.reads)],
        here=request.url.path,
        may=may,
        principal=principal.name if principal is not None else "",
        **values,
    )
    return HTMLResponse(text, status)


def link(path: str, **parameters: str) -> str:
    """Return an address. path: its parts may hold any text but "/". Parameters that are empty are left out."""
    query = urlencode({name: value for name, value in parameters.items() if value})
    return quote(path) + (f"?{query}" if query else "")


def listed(request: Request, following: str) -> dict[str, Any]:
    """Return what a page of a list says of itself: `filters` of its address, whether it is the `first`, and the address
    of the `older` one. following: token of that, "" for none."""
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
    """Filter of a Timestamp for the attribute `datetime`."""
    return datetime.fromtimestamp(pb.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Style sheet, scripts and icon stand below an address that changes with their content, so that browsers keep them for good.
_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def address(name: str) -> str:
    """Return the address of a file. Raises KeyError if there is none."""
    if name not in _assets():
        raise KeyError(name)
    return f"/console/static/{_digest()}/{name}"


async def asset(request: Request) -> Response:
    """Answer with a file."""
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
    """Return a style sheet without comments and the space that only people need. Strings in it have no punctuation."""
    style = re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)
    return re.sub(r"\s*([{};,])\s*", r"\1", style).replace(": ", ":").replace(";}", "}").strip()


@cache
def _digest() -> str:
    """Return one digest of all files: scripts import each other by relative names."""
    together = hashlib.sha256()
    for name, content in sorted(_assets().items()):
        together.update(f"{name} {len(content)} ".encode() + content)
    return together.hexdigest()[:16]
