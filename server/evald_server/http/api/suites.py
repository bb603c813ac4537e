"""Suite runs: run a suite, list and show suite runs and their cases, compare two."""

from collections.abc import AsyncIterator, Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from evald.errors import InvalidInput
from evald.v1 import suite_service_pb2 as pb
from evald_server.http.site import Site
from evald_server.http.streams import NDJSON

from .answers import (
    StreamLine,
    accepted,
    choice_of,
    converted,
    lines,
    lines_of,
    list_answer,
    parsed,
    text_of,
    written,
    wrong,
)
from .shapes import VERDICTS, derived

SERVICE: Final = "evald.v1.SuiteService"

_STATUSES: Final = ("RUNNING", "COMPLETED", "INTERRUPTED")

SUITE_RUN: Final = derived(pb.SuiteRun)
CASE_RESULT: Final = derived(pb.CaseResult)
COMPARISON: Final = derived(pb.SuiteComparison)


async def list_suite_runs(site: Site, request: Request) -> Response:
    """List suite runs, newest first."""
    asked = pb.ListSuiteRunsRequest(
        suite=request.query_params.get("suite", ""),
        target=request.query_params.get("target", ""),
        status=choice_of(request, "status", _STATUSES),
        verdict=choice_of(request, "verdict", VERDICTS),
    )
    return await list_answer(
        site,
        request,
        asked,
        "suite_runs",
        SUITE_RUN.write,
    )


async def get_suite_run(site: Site, request: Request) -> Response:
    """Show a suite run."""
    found = await site.ask(request, pb.GetSuiteRunRequest(suite_run_id=text_of(request, "id")))
    return await written(found.suite_run, SUITE_RUN.write)


async def list_cases(site: Site, request: Request) -> Response:
    """List the cases of a suite run, by id."""
    asked = pb.ListCaseResultsRequest(
        suite_run_id=text_of(request, "id"),
        verdict=choice_of(request, "verdict", VERDICTS),
        case_id=request.query_params.get("caseId", ""),
        brief=choice_of(request, "brief", ("true", "false")) == 1,
    )
    return await list_answer(
        site,
        request,
        asked,
        "results",
        CASE_RESULT.write,
    )


async def compare(site: Site, request: Request) -> Response:
    """Say whether a suite run is worse than another."""
    ids = {name: request.query_params.get(name) for name in ("base", "new")}
    for name, value in ids.items():
        if not value:
            raise wrong(name, None, "the id of a suite run")
    asked = pb.CompareSuiteRunsRequest(base_id=ids["base"], new_id=ids["new"])
    most = request.query_params.get("maxDrop")
    if most is not None:
        asked.max_drop = _share(most)
    found = await site.ask(request, asked)
    return await written(found.comparison, COMPARISON.write)


def _share(value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise wrong("maxDrop", value, "a number from 0 to 1")
    return share


async def run_suite(site: Site, request: Request) -> Response:
    """Run the cases of a suite."""
    body = await request.body()
    asked = await converted(len(body), lambda: _messages(body))
    messages = site.calls.stream(f"{SERVICE}/RunSuite", _sent(asked), site.access.caller(request))
    return lines(messages, accepted(request) or NDJSON, _lines)


def _messages(body: bytes) -> list[bytes]:
    """Convert the opening and the cases. Raises InvalidInput: a suite with a wrong case does not begin."""
    found = []
    for number, line in enumerate(list(lines_of(body)) or [b""], start=1):
        try:
            data = parsed(line, "")
            if number == 1:
                message = pb.RunSuiteRequest(open=derived(pb.SuiteOpen).read(data))
            else:
                message = pb.RunSuiteRequest(cases=[derived(pb.SuiteCase).read(data)])
        except InvalidInput as problem:
            raise problem.below(f"line {number}") from None
        found.append(message.SerializeToString())
    return found


async def _sent(messages: list[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


def _lines(message: bytes) -> Iterator[StreamLine]:
    """Yield `started`, a `result` for each case, and `ended` with the verdict last."""
    found = pb.RunSuiteResponse.FromString(message)
    if found.HasField("started"):
        yield StreamLine("started", {"suiteRun": SUITE_RUN.write(found.started)})
    for result in found.results:
        yield StreamLine("result", {"result": CASE_RESULT.write(result)})
    if found.HasField("ended"):
        yield StreamLine("ended", {"suiteRun": SUITE_RUN.write(found.ended)})
