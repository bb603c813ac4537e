"""Suite runs: their list, one of them with its cases, one case, and two of them compared."""

from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from evald.records import read_verdict
from evald.v1 import suite_service_pb2
from evald_server.http.calls import HttpCaller
from evald_server.http.site import Site
from evald_server.pages.formats import mark
from evald_server.suites.reports.case_view import case_view, title
from evald_server.suites.reports.page import (
    change_bar,
    evaluator_rows,
    history_plot,
    past_runs,
    trial_plot,
)

from .failures import BadAddress, NotThere, gone_is_gone
from .labels import labels
from .page_runs import VERDICTS, choice
from .rendering import link, render
from .suite_view import SuiteRun, rate_bar, suite_mark, suite_rows, suite_status

_PAGE: Final = 50
_HISTORY: Final = 30

_ANSWER: Final = suite_service_pb2.ListSuiteRunsResponse
_LIST: Final = "evald.v1.SuiteService/ListSuiteRuns"

# Cases that did not pass come first.
_ORDER: Final = ("failed", "inconclusive", "passed", "skipped")


async def suites(site: Site, request: Request) -> Response:
    """Show a page of suite runs."""
    given = request.query_params
    wanted = suite_service_pb2.ListSuiteRunsRequest(
        page_size=_PAGE,
        page_token=given.get("page", ""),
        suite=given.get("suite", ""),
        target=given.get("target", ""),
        verdict=choice(request, "verdict", VERDICTS),
    )
    found = await site.calls.ask(_LIST, wanted, _ANSWER, site.access.caller(request))
    filters = {name: value for name, value in given.items() if name != "page" and value}
    # One line: the history of one suite against one target.
    one_line = len({(run.suite, run.target) for run in found.suite_runs}) == 1
    past = [run for run in reversed(found.suite_runs) if run.HasField("pass_rate")] if one_line else []
    older = link("/console/suites", **filters, page=found.next_page_token) if found.next_page_token else ""
    return render(
        site,
        request,
        "suites.html",
        rows=suite_rows(found.suite_runs),
        filters=filters,
        verdicts=VERDICTS,
        past=past,
        history=history_plot(past) if len(past) > 1 else None,
        first=not wanted.page_token,
        older=older,
    )


async def suite_run(site: Site, request: Request) -> Response:
    """Show a suite run and a page of its cases."""
    caller = site.access.caller(request)
    run = await _get(site, request, caller)
    same = suite_service_pb2.ListSuiteRunsRequest(page_size=_HISTORY, suite=run.suite, target=run.target)
    history = (await site.calls.ask(_LIST, same, _ANSWER, caller)).suite_runs
    past = past_runs(run, history)
    known = await labels(site, caller)
    names = {}
    for used in run.provenance:
        totals = run.evaluators.get(used.name)
        measures = totals is not None and totals.HasField("mean_value")
        judged = totals is not None and bool(totals.passed_count + totals.failed_count)
        names[used.name] = title(used.name, used.type, known.get(used.type, "")), measures and not judged
    assertions, metrics = evaluator_rows(run, names)
    choice(request, "verdict", VERDICTS)
    only = request.query_params.get("verdict", "")
    cases, cursor = await _cases(site, request, caller, run.id)
    path = f"/console/suites/{run.id}"
    return render(
        site,
        request,
        "suite_run.html",
        run=run,
        path=link(path),
        mark=suite_mark(run),
        state=suite_status(run),
        bar=rate_bar(run),
        assertions=assertions,
        metrics=metrics,
        trials=trial_plot(run),
        history=history_plot(past) if len(past) > 1 else None,
        past=past,
        others=[one for one in history if one.id != run.id and suite_mark(one)],
        cases=cases,
        only=only,
        order=_ORDER,
        first="page" not in request.query_params,
        older=link(path, verdict=only, page=cursor) if cursor else "",
    )


async def _cases(
    site: Site, request: Request, caller: HttpCaller, run_id: str
) -> tuple[list[suite_service_pb2.CaseResult], str]:
    """Return a page of cases, those that did not pass first, and where the next one begins."""
    only = request.query_params.get("verdict", "")
    stages = (only,) if only else _ORDER
    stage, _, token = request.query_params.get("page", stages[0]).partition(":")
    if stage not in stages:
        raise BadAddress("page: not a page that this server named; start without one")
    cases: list[suite_service_pb2.CaseResult] = []
    for name in stages[stages.index(stage) :]:
        wanted = suite_service_pb2.ListCaseResultsRequest(
            suite_run_id=run_id,
            page_size=_PAGE - len(cases),
            page_token=token,
            verdict=VERDICTS[name],
            brief=True,
        )
        answer = suite_service_pb2.ListCaseResultsResponse
        found = await site.calls.ask("evald.v1.SuiteService/ListCaseResults", wanted, answer, caller)
        cases += found.results
        if found.next_page_token:
            return cases, f"{name}:{found.next_page_token}"
        token = ""
        following = stages[stages.index(name) + 1 :]
        if len(cases) >= _PAGE:
            return cases, following[0] if following else ""
    return cases, ""


async def case(site: Site, request: Request) -> Response:
    """Show one case with its conversations."""
    caller = site.access.caller(request)
    run = await _get(site, request, caller)
    case_id = request.query_params.get("id", "")
    wanted = suite_service_pb2.ListCaseResultsRequest(suite_run_id=run.id, page_size=1, case_id=case_id)
    answer = suite_service_pb2.ListCaseResultsResponse
    found = await site.calls.ask("evald.v1.SuiteService/ListCaseResults", wanted, answer, caller)
    if not case_id or not found.results:
        raise NotThere(f"The suite run has no case {case_id[:200]!r}.")
    one = found.results[0]
    view = case_view(one, read_verdict(one.verdict), "", whole=True)
    return render(site, request, "case.html", run=run, case=view, mark=mark(one.verdict))


async def compare(site: Site, request: Request) -> Response:
    """Show whether a suite run is worse than another."""
    given = request.query_params
    wanted = suite_service_pb2.CompareSuiteRunsRequest(
        base_id=given.get("base", ""), new_id=given.get("new", "")
    )
    if wanted.base_id == wanted.new_id:
        raise BadAddress("Two different suite runs are compared: choose a base and a new one.")
    answer = suite_service_pb2.CompareSuiteRunsResponse
    found = (
        await site.calls.ask(
            "evald.v1.SuiteService/CompareSuiteRuns", wanted, answer, site.access.caller(request)
        )
    ).comparison
    begin = given.get("from", "0")
    if not begin.isascii() or not begin.isdigit() or len(begin) > 9:
        raise BadAddress(f"from: got {begin[:100]!r}, wanted a whole number")
    first = int(begin)
    both = {"base": wanted.base_id, "new": wanted.new_id}
    more = first + _PAGE < len(found.changes)
    return render(
        site,
        request,
        "compare.html",
        found=found,
        change=change_bar(found),
        sides=(("Base", found.base, rate_bar(found.base)), ("New", found.new, rate_bar(found.new))),
        address=partial(_case_address, wanted.new_id),
        start=first,
        most=_PAGE,
        both=both,
        older=link("/console/suites/compare", **both, **{"from": str(first + _PAGE)}) if more else "",
    )


async def delete_suite_run(site: Site, request: Request) -> Response:
    """Delete a suite run."""
    with gone_is_gone():
        await site.calls.ask(
            "evald.v1.SuiteService/DeleteSuiteRun",
            suite_service_pb2.DeleteSuiteRunRequest(suite_run_id=request.path_params["suite_run_id"]),
            suite_service_pb2.DeleteSuiteRunResponse,
            site.access.caller(request),
        )
    return RedirectResponse("/console/suites", 303)


def _case_address(run_id: str, case_id: str) -> str:
    return link(f"/console/suites/{run_id}/case", id=case_id)


async def _get(site: Site, request: Request, caller: HttpCaller) -> SuiteRun:
    wanted = suite_service_pb2.GetSuiteRunRequest(suite_run_id=request.path_params["suite_run_id"])
    answer = suite_service_pb2.GetSuiteRunResponse
    found = await site.calls.ask("evald.v1.SuiteService/GetSuiteRun", wanted, answer, caller)
    return found.suite_run
