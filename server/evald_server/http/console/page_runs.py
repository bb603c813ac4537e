"""The list of runs: filters, pages, and what may be done with a run."""

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from evald.v1 import result_pb2, run_service_pb2
from evald_server.http.site import Site
from evald_server.pages.formats import Mark
from evald_server.store.resources import ResourceKind, ResourceStore

from .failures import BadAddress
from .rendering import link, render
from .run_view import UNFINISHED, outcome, run_seconds, status_word, why

N = TypeVar("N")

_PAGE: Final = 50
# Of scenarios in the filter: one that is not among them is reached from its own page.
_SCENARIOS: Final = 200

STATUSES: Final = {
    "queued": run_service_pb2.RUN_STATUS_QUEUED,
    "running": run_service_pb2.RUN_STATUS_RUNNING,
    "completed": run_service_pb2.RUN_STATUS_COMPLETED,
    "error": run_service_pb2.RUN_STATUS_ERROR,
    "interrupted": run_service_pb2.RUN_STATUS_INTERRUPTED,
    "cancelled": run_service_pb2.RUN_STATUS_CANCELLED,
}
VERDICTS: Final = {
    "passed": result_pb2.VERDICT_PASSED,
    "failed": result_pb2.VERDICT_FAILED,
    "inconclusive": result_pb2.VERDICT_ERROR,
    "skipped": result_pb2.VERDICT_SKIPPED,
}
PERIODS: Final = {"24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400}

ACTIONS: Final[dict[str, tuple[type[Message], type[Message]]]] = {
    "cancel": (run_service_pb2.CancelRunRequest, run_service_pb2.CancelRunResponse),
    "retry": (run_service_pb2.RetryRunRequest, run_service_pb2.RetryRunResponse),
    "resume": (run_service_pb2.ResumeRunRequest, run_service_pb2.ResumeRunResponse),
    "delete": (run_service_pb2.DeleteRunRequest, run_service_pb2.DeleteRunResponse),
}


class RunRow(NamedTuple):
    """A run in the list. mark: None of one without an outcome."""

    run: run_service_pb2.Run
    mark: Mark | None
    status: str
    goes_on: bool
    seconds: float | None
    why: str


def choice(request: Request, name: str, known: Mapping[str, N]) -> N | None:
    """Return what a parameter of the address stands for, None without it. Raises BadAddress."""
    value = request.query_params.get(name, "")
    if value and value not in known:
        raise BadAddress(f"{name}: got {value[:100]!r}, wanted one of {', '.join(known)}")
    return known[value] if value else None


async def runs(site: Site, request: Request) -> Response:
    """Show a page of runs."""
    given = request.query_params
    wanted = run_service_pb2.ListRunsRequest(
        page_size=_PAGE,
        page_token=given.get("page", ""),
        scenario_id=given.get("scenario", ""),
        persona_id=given.get("persona", ""),
        connector_id=given.get("connector", ""),
        experiment_id=given.get("experiment", ""),
        failed_evaluator=given.get("evaluator", ""),
        status=choice(request, "status", STATUSES),
        verdict=choice(request, "verdict", VERDICTS),
    )
    if period := choice(request, "since", PERIODS):
        wanted.since.FromSeconds(int(time.time()) - period)
    caller = site.access.caller(request)
    found = await site.calls.ask(
        "evald.v1.RunService/ListRuns", wanted, run_service_pb2.ListRunsResponse, caller
    )
    # Their names alone, to those who may read the scenarios.
    scenarios: dict[str, str] = {}
    if site.access.may(request, "evald.v1.ScenarioService/ListScenarios"):
        scenarios = await ResourceStore(site.database).names(ResourceKind.SCENARIO, _SCENARIOS)
    for run in found.runs:
        if run.scenario_id == wanted.scenario_id:
            scenarios.setdefault(run.scenario_id, run.scenario.name)
    if wanted.scenario_id:
        scenarios.setdefault(wanted.scenario_id, wanted.scenario_id)
    filters = {name: value for name, value in given.items() if name != "page" and value}
    return render(
        site,
        request,
        "runs.html",
        rows=[_row(run) for run in found.runs],
        scenarios=scenarios,
        filters=filters,
        narrowed=_narrowed(filters, found.runs),
        statuses=STATUSES,
        verdicts=VERDICTS,
        periods=PERIODS,
        first=not wanted.page_token,
        older=link("/console/runs", **filters, page=found.next_page_token) if found.next_page_token else "",
    )


def _row(run: run_service_pb2.Run) -> RunRow:
    return RunRow(run, outcome(run), status_word(run), run.status in UNFINISHED, run_seconds(run), why(run))


class Narrowed(NamedTuple):
    """A filter that was reached by a link. address: the list without it."""

    name: str
    value: str
    address: str


def _narrowed(filters: dict[str, str], found: Sequence[run_service_pb2.Run]) -> list[Narrowed]:
    shown = []
    for name in ("persona", "connector", "experiment"):
        if name in filters:
            names = [getattr(run, name).name for run in found if name != "experiment"]
            without = {key: value for key, value in filters.items() if key != name}
            value = names[0] if names else filters[name]
            shown.append(Narrowed(name.capitalize(), value, link("/console/runs", **without)))
    return shown


async def change_run(action: str, site: Site, request: Request) -> Response:
    """Cancel, retry, resume or delete a run."""
    run_id = request.path_params["run_id"]
    ask, answer = ACTIONS[action]
    method = f"evald.v1.RunService/{action.capitalize()}Run"
    await site.calls.ask(method, ask(run_id=run_id), answer, site.access.caller(request))
    target = link("/console/runs") if action == "delete" else link(f"/console/runs/{run_id}")
    return RedirectResponse(target, 303)
