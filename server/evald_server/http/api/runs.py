"""Runs: start, list, show, watch, cancel, retry, resume, delete."""

from collections.abc import Iterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from evald.convert.runs import STATUSES, event_to_json, run_schema, run_to_json, turn_schema, turn_to_json
from evald.errors import InvalidInput
from evald.fields import read_keys, snake, text
from evald.v1 import run_service_pb2 as pb
from evald_server.http.site import Site
from evald_server.http.streams import SSE

from .answers import StreamLine, answer, lines, list_answer, wrong
from .methods import FIELDS, PAGE, AnswerPart, Body, build_request, unary
from .openapi import ApiRoute
from .shapes import FLAG, INTEGER, TEXT, TIME, VERDICT, line_of, list_of, record

_SERVICE: Final = "evald.v1.RunService"

# Within this time a watch can still fail with an HTTP status; then the response starts, so that an EventSource opens.
_FIRST_SECONDS: Final = 0.25

_RUN: Final = AnswerPart("run", run_schema(), run_to_json)
_TURNS: Final = AnswerPart(
    "run", list_of(turn_schema()), lambda run: [turn_to_json(turn) for turn in run.turns]
)

_OF: Final = dict.fromkeys(("evalId", "scenarioId", "personaId", "connectorId"), TEXT)
_FILTERS: Final = {
    **_OF,
    "executionId": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    "status": {"type": "string", "examples": list(STATUSES)},
    "verdict": VERDICT,
    "evaluator": TEXT,
    "since": TIME,
    "until": TIME,
    "messages": FLAG,
}


async def _list_runs(site: Site, request: Request) -> Response:
    """List the runs that match all filters.

    With a filter by eval, scenario, persona or connector the newest run is first, otherwise the oldest. In both cases a
    page holds the newest runs.
    """
    query = request.query_params
    if query.get("status") and query["status"] not in STATUSES:
        # EvalStudio has statuses that evald lacks, and returns an empty list for unknown ones.
        return answer([])
    asked = build_request(f"{_SERVICE}/ListRuns", request, _FILTERS)
    asked.include_messages |= not query.get("messages")
    oldest_first = not any(query.get(name) for name in _OF)
    return await list_answer(site, request, asked, "runs", run_to_json, reverse=oldest_first)


async def _watch_run(site: Site, request: Request) -> Response:
    """Stream the events of a run: first the stored ones, then new ones as they occur."""
    after = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
    if not (after.isascii() and after.isdecimal() and len(after) < 19):
        raise wrong("Last-Event-ID", after, "the id of an event")
    run_id = request.path_params["id"]
    if request.method == "HEAD":
        await site.ask(request, pb.GetRunRequest(run_id=run_id))  # fails as the stream of a GET would
    asked = pb.WatchRunRequest(run_id=run_id, after_sequence=int(after))
    messages = site.calls.stream(
        f"{_SERVICE}/WatchRun", asked.SerializeToString(), site.access.caller(request), _FIRST_SECONDS
    )
    return lines(messages, SSE, _lines)


def _lines(message: bytes) -> Iterator[StreamLine]:
    event = pb.WatchRunResponse.FromString(message)
    data = event_to_json(event)
    yield StreamLine(data["event"], data, event.sequence)


def _ids(title: str, *keys: str) -> Body:
    """Return a body with the ids of these keys. The first two are required."""

    def ids(data: Any) -> dict[str, str]:
        found = read_keys(data, {snake(key): key for key in keys}, "")
        for key in keys[:2]:
            if not found.get(key):
                raise InvalidInput(key, "missing", "an id")
        return {FIELDS.get(key, snake(key)): text(value, key) for key, value in found.items()}

    return Body(record(title, dict.fromkeys(keys, TEXT), " ".join(keys[:2])), ids)


def _passed_over(data: Any) -> dict[str, Any]:
    # EvalStudio's client sends options with a retry. In evald, a retry always deletes the conversation.
    read_keys(data, {"clear_messages": "clear_messages"}, "")
    return {}


_CHANGES: Final = {
    "retry": "Retry a run that ended in an error, from its beginning",
    "cancel": "Cancel a run that is queued or running",
    "resume": "Resume a run that was interrupted",
}

ROUTES: Final = (
    ApiRoute(
        "GET", "/runs", _list_runs, f"{_SERVICE}/ListRuns", list_of(_RUN.schema), query={**_FILTERS, **PAGE}
    ),
    unary(
        "POST",
        "/runs",
        f"{_SERVICE}/StartRuns",
        "Queue the runs of an eval",
        AnswerPart("runs", list_of(_RUN.schema), lambda runs: [run_to_json(run) for run in runs]),
        body=_ids("RunsRequest", "evalId"),
        status=201,
        refusals=(404,),
    ),
    unary(
        "POST",
        "/runs/playground",
        f"{_SERVICE}/StartRun",
        "Queue a run",
        _RUN,
        body=_ids("RunRequest", "scenarioId", "connectorId", "personaId"),
        status=201,
        refusals=(404,),
    ),
    unary("GET", "/runs/{id}", "evald.v1.RunService/GetRun", "Get a run with its conversation", _RUN),
    unary("DELETE", "/runs/{id}", "evald.v1.RunService/DeleteRun", "Delete a run that has ended"),
    unary(
        "GET",
        "/runs/{id}/turns",
        "evald.v1.RunService/GetRun",
        "Get the turns of a run with all their results",
        _TURNS,
    ),
    *(
        unary(
            "POST",
            f"/runs/{{id}}/{action}",
            f"{_SERVICE}/{action.title()}Run",
            summary,
            _RUN,
            body=Body({}, _passed_over),
        )
        for action, summary in _CHANGES.items()
    ),
    ApiRoute(
        "GET",
        "/runs/{id}/events",
        _watch_run,
        f"{_SERVICE}/WatchRun",
        query={"after": {"type": "integer", "minimum": 0}},
        lines=line_of("RunEvent", {"sequence": INTEGER, "event": TEXT}),
        events=True,
    ),
)
"""With and without a project in the path."""
