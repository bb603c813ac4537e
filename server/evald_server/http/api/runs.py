"""Runs: start, list, show, watch, cancel, retry, resume, delete."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from evald.convert.runs import STATUSES, event_to_json, run_to_json, turn_to_json
from evald.errors import InvalidInput
from evald.fields import read_keys, snake, text
from evald.v1 import run_service_pb2 as pb
from evald_server.http.site import Site
from evald_server.http.streams import SSE

from .answers import (
    StreamLine,
    answer,
    choice_of,
    lines,
    list_answer,
    read,
    text_of,
    whole_number,
    written,
    wrong,
)
from .shapes import VERDICTS

SERVICE: Final = "evald.v1.RunService"

# How long a watch may take to fail with a status of its own; then an EventSource is told that it is open.
_FIRST_SECONDS: Final = 0.25

_OF: Final = {
    "evalId": "experiment_id",
    "scenarioId": "scenario_id",
    "personaId": "persona_id",
    "connectorId": "connector_id",
}


async def list_runs(site: Site, request: Request) -> Response:
    """List runs that all filters let through.

    Those of an eval, a scenario, a persona or a connector newest first, others oldest first; a page holds the newest.
    """
    query = request.query_params
    status = query.get("status", "")
    if status and status not in STATUSES:
        return answer(
            []
        )  # EvalStudio has some that evald has not, and lists nothing for those that nobody has
    ids: dict[str, Any] = {field: query[name] for name, field in _OF.items() if query.get(name)}
    asked = pb.ListRunsRequest(
        **ids,
        status=cast("pb.RunStatus", STATUSES.index(status) + 1 if status else 0),
        verdict=choice_of(request, "verdict", VERDICTS),
        failed_evaluator=query.get("evaluator", ""),
        execution_id=whole_number(request, "executionId", 0, 999_999_999),
        include_messages=choice_of(request, "messages", ("true", "false")) != 2,
    )
    for name in ("since", "until"):
        if query.get(name):
            getattr(asked, name).FromDatetime(_time(name, query[name]))
    return await list_answer(
        site,
        request,
        f"{SERVICE}/ListRuns",
        asked,
        pb.ListRunsResponse,
        "runs",
        run_to_json,
        reverse=not ids,
    )


def _time(name: str, value: str) -> datetime:
    try:
        time = datetime.fromisoformat(value)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise wrong(name, value, "a time such as 2026-01-31T12:00:00Z") from None


async def start_runs(site: Site, request: Request) -> Response:
    """Queue the runs of an eval."""
    found = await read(request, lambda data: _texts(data, "evalId"))
    asked = pb.StartRunsRequest(experiment_id=found["evalId"], request_id=_request_id(request))
    started = await _ask(site, request, "StartRuns", asked, pb.StartRunsResponse)
    return await written(started, lambda answered: [run_to_json(run) for run in answered.runs], 201)


async def start_run(site: Site, request: Request) -> Response:
    """Queue one run."""
    found = await read(request, lambda data: _texts(data, "scenarioId", "connectorId", "personaId"))
    asked = pb.StartRunRequest(
        scenario_id=found["scenarioId"],
        connector_id=found["connectorId"],
        persona_id=found.get("personaId", ""),
        request_id=_request_id(request),
    )
    started = await _ask(site, request, "StartRun", asked, pb.StartRunResponse)
    return await written(started.run, run_to_json, 201)


async def get_run(site: Site, request: Request) -> Response:
    """Show a run with its conversation."""
    return await written(await _load(site, request), run_to_json)


async def list_turns(site: Site, request: Request) -> Response:
    """Show the turns of a run with all their results."""
    run = await _load(site, request)
    return await written(run, lambda found: [turn_to_json(turn) for turn in found.turns])


async def delete_run(site: Site, request: Request) -> Response:
    """Delete a run that has ended."""
    asked = pb.DeleteRunRequest(run_id=text_of(request, "id"))
    await _ask(site, request, "DeleteRun", asked, pb.DeleteRunResponse)
    return Response(status_code=204)


async def cancel_run(site: Site, request: Request) -> Response:
    """End a run that is queued or running."""
    return await _change(site, request, "Cancel")


async def retry_run(site: Site, request: Request) -> Response:
    """Start a run over that ended in error."""
    return await _change(site, request, "Retry")


async def resume_run(site: Site, request: Request) -> Response:
    """Go on with a run that was interrupted."""
    return await _change(site, request, "Resume")


async def watch_run(site: Site, request: Request) -> Response:
    """Send the events of a run as they come, those first that there are."""
    after = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
    if not (after.isascii() and after.isdecimal() and len(after) < 19):
        raise wrong("Last-Event-ID", after, "the id of an event")
    if request.method == "HEAD":
        await _load(site, request)  # whose stream would begin with the refusal
    asked = pb.WatchRunRequest(run_id=text_of(request, "id"), after_sequence=int(after))
    messages = site.calls.stream(
        f"{SERVICE}/WatchRun", asked.SerializeToString(), site.access.caller(request), _FIRST_SECONDS
    )
    return lines(messages, SSE, _lines)


def _lines(message: bytes) -> Iterator[StreamLine]:
    event = pb.WatchRunResponse.FromString(message)
    data = event_to_json(event)
    yield StreamLine(data["event"], data, event.sequence)


async def _change(site: Site, request: Request, verb: str) -> Response:
    # EvalStudio's client sends options with a retry; here a run that starts over always forgets what was said.
    await read(request, lambda data: read_keys(data, {"clear_messages": "clear_messages"}, ""), b"{}")
    asked = getattr(pb, f"{verb}RunRequest")(run_id=text_of(request, "id"))
    changed = await _ask(site, request, f"{verb}Run", asked, getattr(pb, f"{verb}RunResponse"))
    return await written(changed.run, run_to_json)


async def _load(site: Site, request: Request) -> pb.Run:
    asked = pb.GetRunRequest(run_id=text_of(request, "id"))
    found: pb.Run = (await _ask(site, request, "GetRun", asked, pb.GetRunResponse)).run
    return found


async def _ask(site: Site, request: Request, method: str, asked: Message, answered: type[Message]) -> Any:
    return await site.calls.ask(f"{SERVICE}/{method}", asked, answered, site.access.caller(request))


def _texts(data: Any, *keys: str) -> Mapping[str, str]:
    """Read an object of ids, of which the last of three may be left out. Raises InvalidInput."""
    found = read_keys(data, {snake(key): key for key in keys}, "")
    for key in keys[:2]:
        if not found.get(key):
            raise InvalidInput(key, "missing", "an id")
    return {key: text(value, key) for key, value in found.items()}


def _request_id(request: Request) -> str:
    return request.headers.get("idempotency-key", "")
