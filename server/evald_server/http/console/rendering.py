"""Pages from templates, with what all pages share: navigation, principal, version."""

from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from evald_server.http.site import Site
from evald_server.pages.environment import environment
from evald_server.pages.formats import mark

from .assets import address

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
