"""Suite runs: run a suite, list and show suite runs and their cases, compare two."""

from collections.abc import AsyncGenerator, Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from evald.errors import InvalidInput
from evald.v1 import suite_service_pb2 as pb
from evald_server.http.site import Site
from evald_server.http.streams import NDJSON

from .answers import StreamLine, accepted, converted, lines, lines_of, parsed, wrong
from .methods import answer_part, listing, unary
from .openapi import ApiRoute
from .shapes import FLAG, TEXT, VERDICT, derived, line_of, request_of

_RUN_SUITE: Final = "evald.v1.SuiteService/RunSuite"

_SUITE_RUN: Final = derived(pb.SuiteRun)
_CASE_RESULT: Final = derived(pb.CaseResult)
_OPEN: Final = derived(pb.SuiteOpen)
_CASE: Final = derived(pb.SuiteCase)


async def _run_suite(site: Site, request: Request) -> Response:
    """Run the cases of a suite."""
    body = await request.body()
    asked = await converted(len(body), lambda: _messages(body))
    messages = site.calls.stream(_RUN_SUITE, _sent(asked), site.access.caller(request))
    return lines(messages, accepted(request) or NDJSON, _lines)


def _messages(body: bytes) -> list[bytes]:
    """Convert the opening and the cases. Raises InvalidInput, so that a suite with an invalid case does not start."""
    found = []
    for number, line in enumerate(list(lines_of(body)) or [b""], start=1):
        try:
            data = parsed(line, "")
            if number == 1:
                message = pb.RunSuiteRequest(open=_OPEN.read(data))
            else:
                message = pb.RunSuiteRequest(cases=[_CASE.read(data)])
        except InvalidInput as problem:
            raise problem.below(f"line {number}") from None
        found.append(message.SerializeToString())
    return found


async def _sent(messages: list[bytes]) -> AsyncGenerator[bytes]:
    for message in messages:
        yield message


def _lines(message: bytes) -> Iterator[StreamLine]:
    """Yield `started`, a `result` for each case, and `ended` with the verdict last."""
    found = pb.RunSuiteResponse.FromString(message)
    if found.HasField("started"):
        yield StreamLine("started", {"suiteRun": _SUITE_RUN.write(found.started)})
    for result in found.results:
        yield StreamLine("result", {"result": _CASE_RESULT.write(result)})
    if found.HasField("ended"):
        yield StreamLine("ended", {"suiteRun": _SUITE_RUN.write(found.ended)})


_COMPARE: Final = unary(
    "GET",
    "/suite-runs/compare",
    "evald.v1.SuiteService/CompareSuiteRuns",
    "Compare two suite runs",
    answer_part("comparison", derived(pb.SuiteComparison)),
    query={"base": TEXT, "new": TEXT, "maxDrop": {"type": "number", "minimum": 0, "maximum": 1}},
    refusals=(404,),
)


async def _compare(site: Site, request: Request) -> Response:
    for name in ("base", "new"):
        if not request.query_params.get(name):
            raise wrong(name, None, "the id of a suite run")
    return await _COMPARE.handle(site, request)


ROUTES: Final = (
    listing(
        "/suite-runs",
        "evald.v1.SuiteService/ListSuiteRuns",
        "List suite runs, newest first",
        answer_part("suite_runs", _SUITE_RUN),
        {
            "suite": TEXT,
            "target": TEXT,
            "status": {"type": "string", "enum": ["running", "completed", "interrupted"]},
            "verdict": VERDICT,
        },
    ),
    ApiRoute(
        "POST",
        "/suite-runs",
        _run_suite,
        _RUN_SUITE,
        request_schema={"anyOf": [request_of(_OPEN.schema()), request_of(_CASE.schema())]},
        request_lines=True,
        refusals=(404, 409),
        lines=line_of(
            "SuiteEvent", {"event": TEXT, "suiteRun": _SUITE_RUN.schema(), "result": _CASE_RESULT.schema()}
        ),
    ),
    _COMPARE._replace(handle=_compare),
    unary(
        "GET",
        "/suite-runs/{id}",
        "evald.v1.SuiteService/GetSuiteRun",
        "Get a suite run",
        answer_part("suite_run", _SUITE_RUN),
    ),
    listing(
        "/suite-runs/{id}/cases",
        "evald.v1.SuiteService/ListCaseResults",
        "List the cases of a suite run, ordered by id",
        answer_part("results", _CASE_RESULT),
        {"verdict": VERDICT, "caseId": TEXT, "brief": FLAG},
    ),
)
