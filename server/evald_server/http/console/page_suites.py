"""Pages of suite runs: the list, one suite run with its cases, one case, and a comparison of two suite runs."""

from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from evald.records import read_verdict
from evald.v1 import suite_service_pb2
from evald_server.http.site import Site
from evald_server.pages.formats import Mark, mark, words
from evald_server.pages.plots import Bar, bar
from evald_server.suites.reports.case_view import case_view, title
from evald_server.suites.reports.page import (
    change_bar,
    evaluator_rows,
    history_of,
    is_past,
    past_runs,
    trial_plot,
)
from evald_server.suites.reports.report import measures

from .evaluator_types import evaluator_types
from .failures import bad_address, choice, ignore_not_found, not_found, whole_number
from .page_runs import VERDICTS
from .rendering import link, listed, render

SuiteRun = suite_service_pb2.SuiteRun

_PAGE: Final = 50
_HISTORY: Final = 30

# Cases that did not pass come first.
_ORDER: Final = ("failed", "inconclusive", "passed", "skipped")

_STATUS_WORDS: Final = words(suite_service_pb2.SuiteRunStatus.DESCRIPTOR)


class SuiteRow(NamedTuple):
    """A suite run in a list. mark: None without a verdict. change: of the pass rate since the previous one, or None."""

    run: SuiteRun
    mark: Mark | None
    status: str
    bar: Bar | None
    before: SuiteRun | None
    change: float | None


def suite_status(run: SuiteRun) -> str:
    """Return the status of a suite run as a word."""
    return _STATUS_WORDS.get(run.status, "Unknown")


def suite_mark(run: SuiteRun) -> Mark | None:
    """Return the verdict of a suite run as a mark; None without a verdict."""
    return mark(run.verdict) if run.status == suite_service_pb2.SUITE_RUN_STATUS_COMPLETED else None


def rate_bar(run: SuiteRun) -> Bar | None:
    """Return the pass rate with its interval and the threshold; None without a pass rate."""
    if not run.HasField("pass_rate"):
        return None
    return bar(run.pass_rate.value, run.pass_rate.low, run.pass_rate.high, target=run.threshold)


def suite_rows(runs: Iterable[SuiteRun]) -> list[SuiteRow]:
    """Return rows of suite runs. runs: newest first; previous suite runs are searched only among them."""
    rows: list[SuiteRow] = []
    older: dict[tuple[str, str], SuiteRun] = {}
    for run in reversed(list(runs)):
        key = (run.suite, run.target)
        before = older.get(key)
        change = None
        if before is not None and run.HasField("pass_rate"):
            change = run.pass_rate.value - before.pass_rate.value
        rows.append(SuiteRow(run, suite_mark(run), suite_status(run), rate_bar(run), before, change))
        if run.HasField("pass_rate") and suite_mark(run):
            older[key] = run
    return rows[::-1]


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
    found = await site.ask(request, wanted)
    # The history is plotted only for one suite against one target.
    one_line = len({(run.suite, run.target) for run in found.suite_runs}) == 1
    past = [run for run in reversed(found.suite_runs) if is_past(run)] if one_line else []
    return await render(
        site,
        request,
        "suites.html",
        rows=suite_rows(found.suite_runs),
        verdicts=VERDICTS,
        history=history_of(past),
        **listed(request, found.next_page_token),
    )


async def suite_run(site: Site, request: Request) -> Response:
    """Show a suite run and a page of its cases."""
    run = await _get(site, request)
    same = suite_service_pb2.ListSuiteRunsRequest(page_size=_HISTORY, suite=run.suite, target=run.target)
    history = (await site.ask(request, same)).suite_runs
    types = await evaluator_types(site, request)
    names = {}
    for used in run.provenance:
        totals = run.evaluators.get(used.name)
        label = types[used.type].label if used.type in types else ""
        names[used.name] = title(used.name, used.type, label), totals is not None and measures(totals)
    assertions, metrics = evaluator_rows(run, names)
    choice(request, "verdict", VERDICTS)
    only = request.query_params.get("verdict", "")
    cases, cursor = await _cases(site, request, run.id)
    path = f"/console/suites/{run.id}"
    return await render(
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
        history=history_of(past_runs(run, history)),
        others=[one for one in history if one.id != run.id and suite_mark(one)],
        cases=cases,
        only=only,
        order=_ORDER,
        **listed(request, cursor),
    )


async def _cases(site: Site, request: Request, run_id: str) -> tuple[list[suite_service_pb2.CaseResult], str]:
    """Return a page of cases in the order of _ORDER, and the token of the next page, "" for none."""
    only = request.query_params.get("verdict", "")
    stages = (only,) if only else _ORDER
    stage, _, token = request.query_params.get("page", stages[0]).partition(":")
    if stage not in stages:
        raise bad_address("page: not a page token of this server; start from the first page")
    cases: list[suite_service_pb2.CaseResult] = []
    for name in stages[stages.index(stage) :]:
        wanted = suite_service_pb2.ListCaseResultsRequest(
            suite_run_id=run_id,
            page_size=_PAGE - len(cases),
            page_token=token,
            verdict=VERDICTS[name],
            brief=True,
        )
        found = await site.ask(request, wanted)
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
    run = await _get(site, request)
    case_id = request.query_params.get("id", "")
    wanted = suite_service_pb2.ListCaseResultsRequest(suite_run_id=run.id, page_size=1, case_id=case_id)
    found = await site.ask(request, wanted)
    if not case_id or not found.results:
        raise not_found(f"The suite run has no case {case_id[:200]!r}.")
    one = found.results[0]
    view = case_view(one, read_verdict(one.verdict), "", whole=True)
    return await render(site, request, "case.html", run=run, case=view, mark=mark(one.verdict))


async def compare(site: Site, request: Request) -> Response:
    """Show a comparison of two suite runs."""
    given = request.query_params
    wanted = suite_service_pb2.CompareSuiteRunsRequest(
        base_id=given.get("base", ""), new_id=given.get("new", "")
    )
    if wanted.base_id == wanted.new_id:
        raise bad_address("Choose two different suite runs: a base and a new one.")
    found = (await site.ask(request, wanted)).comparison
    first = whole_number("from", given.get("from", "0"))
    both = {"base": wanted.base_id, "new": wanted.new_id}
    more = first + _PAGE < len(found.changes)
    return await render(
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
    with ignore_not_found():
        await site.ask(
            request, suite_service_pb2.DeleteSuiteRunRequest(suite_run_id=request.path_params["suite_run_id"])
        )
    return RedirectResponse("/console/suites", 303)


def _case_address(run_id: str, case_id: str) -> str:
    return link(f"/console/suites/{run_id}/case", id=case_id)


async def _get(site: Site, request: Request) -> SuiteRun:
    wanted = suite_service_pb2.GetSuiteRunRequest(suite_run_id=request.path_params["suite_run_id"])
    run: SuiteRun = (await site.ask(request, wanted)).suite_run
    return run
