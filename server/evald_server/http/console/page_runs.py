"""The list of runs, with filters and pages, and the actions on a run."""

import time
from typing import Any, Final

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from evald.v1 import result_pb2, run_service_pb2
from evald_server.http.calls import CallFailed
from evald_server.http.errors import error_info
from evald_server.http.site import Site
from evald_server.store.resources import ResourceKind, ResourceStore
from evald_server.store.runs import UNFINISHED, run_seconds

from .failures import choice, ignore_not_found
from .page_edit import read_posted
from .page_run import STATUS_WORDS, load_run, outcome, status_word, why
from .rendering import link, listed, render

_PAGE: Final = 50
# Most scenarios in the filter. The page of any other one links to its runs.
_SCENARIOS: Final = 200

STATUSES: Final = {word.lower(): status for status, word in STATUS_WORDS.items()}
VERDICTS: Final = {
    "passed": result_pb2.VERDICT_PASSED,
    "failed": result_pb2.VERDICT_FAILED,
    "inconclusive": result_pb2.VERDICT_ERROR,
    "skipped": result_pb2.VERDICT_SKIPPED,
}
PERIODS: Final = {"24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400}

ACTIONS: Final[dict[str, type[Message]]] = {
    "cancel": run_service_pb2.CancelRunRequest,
    "retry": run_service_pb2.RetryRunRequest,
    "resume": run_service_pb2.ResumeRunRequest,
    "delete": run_service_pb2.DeleteRunRequest,
}


# The statuses in which the page of a run shows an action's button. A failure in one of them is shown.
_ALLOWED: Final = {
    "cancel": UNFINISHED,
    "retry": (run_service_pb2.RUN_STATUS_ERROR,),
    "resume": (run_service_pb2.RUN_STATUS_INTERRUPTED,),
}


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
    found = await site.ask(request, wanted)
    # Only the names, and only for callers who may list scenarios.
    scenarios: dict[str, str] = {}
    if site.access.may(request, "evald.v1.ScenarioService/ListScenarios"):
        scenarios = await ResourceStore(site.database).names(ResourceKind.SCENARIO, _SCENARIOS)
    # All found runs match the filters, so the first one has the names.
    first = found.runs[0] if found.runs else run_service_pb2.Run()
    if wanted.scenario_id:
        scenarios.setdefault(wanted.scenario_id, first.scenario.name or wanted.scenario_id)
    pager = listed(request, found.next_page_token)
    filters = pager["filters"]
    names = {"persona": first.persona.name, "connector": first.connector.name, "experiment": ""}
    return await render(
        site,
        request,
        "runs.html",
        runs=found.runs,
        unfinished=UNFINISHED,
        outcome=outcome,
        status_word=status_word,
        run_seconds=run_seconds,
        why=why,
        scenarios=scenarios,
        narrowed={name: names[name] or filters[name] for name in names if name in filters},
        statuses=STATUSES,
        verdicts=VERDICTS,
        periods=PERIODS,
        **pager,
    )


async def change_run(action: str, site: Site, request: Request) -> Response:
    """Cancel, retry, resume or delete a run."""
    run_id = request.path_params["run_id"]
    wanted: Any = ACTIONS[action]()
    wanted.run_id = run_id
    if action == "delete":
        with ignore_not_found():
            await site.ask(request, wanted)
        return RedirectResponse("/console/runs", 303)
    target = RedirectResponse(link(f"/console/runs/{run_id}"), 303)
    posted = await read_posted(request)
    if "attempt" in posted and str((await load_run(site, request)).attempt) != posted["attempt"]:
        return target  # the button was pressed twice: the run has already been retried
    try:
        await site.ask(request, wanted)
    except CallFailed as problem:
        if error_info(problem).reason != "RUN_STATUS":
            raise
        # The button was pressed twice or on an outdated page: show the page of the run.
        if (await load_run(site, request)).status in _ALLOWED[action]:
            raise
    return target
