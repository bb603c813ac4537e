"""One run: its conversation beside the results of a turn, as it goes on."""

import json
from typing import Any

import grpc
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from evald.v1 import run_service_pb2
from evald_server.http.calls import CallFailed
from evald_server.http.site import Site
from evald_server.http.streams import SSE, Framing, StreamedCall
from evald_server.pages.environment import shown_text
from evald_server.pages.formats import mark
from evald_server.suites.reports.case_view import message_text, message_view, result_view, turn_facts
from evald_server.suites.reports.report import is_metric

from .failures import BadAddress, NotThere
from .rendering import render
from .run_view import (
    MESSAGE_CHARACTERS,
    UNFINISHED,
    chosen_turn,
    conversation,
    matrix,
    outcome,
    run_seconds,
    status_word,
    strip,
    tables,
    why,
)


async def run(site: Site, request: Request) -> Response:
    """Show a run."""
    found = await load_run(site, request)
    number = _number(request.query_params["turn"], "turn") if "turn" in request.query_params else None
    chosen = chosen_turn(found, number)
    if number is not None and chosen is None:
        raise NotThere(f"The run has no turn {number}.")
    turns = strip(found)
    assertions, metrics, left_out = tables(chosen) if chosen is not None else ([], [], 0)
    numbers, rows = matrix(found)
    return render(
        site,
        request,
        "run.html",
        run=found,
        mark=outcome(found),
        state=status_word(found),
        goes_on=found.status in UNFINISHED,
        why=why(found),
        seconds_taken=run_seconds(found),
        turns=turns,
        turns_left_out=len(found.turns) - len(turns),
        chosen=next((one for one in turns if chosen is not None and one.number == chosen.turn), None),
        warnings=chosen.evaluation.warnings[:20] if chosen is not None else [],
        talk=conversation(found, chosen),
        assertions=assertions,
        metrics=metrics,
        results_left_out=left_out,
        matrix_turns=numbers,
        matrix_rows=rows,
    )


async def message(site: Site, request: Request) -> Response:
    """Answer with a whole message as text."""
    found = await load_run(site, request)
    index = _number(request.path_params["index"], "message")
    if index >= len(found.messages):
        raise NotThere(f"The run has no message {index}.")
    one = found.messages[index]
    calls = [f"{call.function.name} {call.function.arguments}" for call in one.tool_calls]
    return PlainTextResponse("\n".join([message_text(one), *calls]))


async def events(site: Site, request: Request) -> Response:
    """Send what happens in a run, as its page shows it."""
    after = request.headers.get("last-event-id") or request.query_params.get("after", "0")
    wanted = run_service_pb2.WatchRunRequest(
        run_id=request.path_params["run_id"], after_sequence=_number(after, "after")
    )
    messages = site.calls.stream(
        "evald.v1.RunService/WatchRun", wanted.SerializeToString(), site.access.caller(request)
    )
    return StreamedCall(messages, Framing(SSE, _event, _failed, _sent("", "over", {}), begins=True))


# With these a watch does not come back.
_FINAL = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


def _failed(problem: CallFailed) -> bytes:
    gone = problem.code is grpc.StatusCode.NOT_FOUND
    message = "The run was deleted" if gone else shown_text(problem.message)
    return _sent("", "failed", {"message": message, "final": problem.code in _FINAL})


def _event(serialised: bytes) -> bytes:
    response = run_service_pb2.WatchRunResponse.FromString(serialised)
    kind = response.WhichOneof("event") or "status"
    data: dict[str, Any] = {}
    if kind == "message":
        view = message_view(response.message.message, MESSAGE_CHARACTERS)
        data = {
            "index": response.message.index,
            "role": view.role,
            "name": view.name,
            "text": view.text._asdict(),
            "calls": [{"name": call.name, "arguments": call.arguments._asdict()} for call in view.calls],
        }
    elif kind == "result":
        row = result_view(response.result.result)
        data = {
            "turn": response.result.turn,
            "metric": is_metric(response.result.result),
            "title": row.title,
            "mark": row.mark._asdict(),
            "flags": row.flags,
            "score": row.score,
            "value": row.value,
            "reason": row.reason._asdict(),
        }
    elif kind == "turn":
        turn = response.turn
        data = {
            "number": turn.turn,
            "mark": mark(turn.evaluation.verdict)._asdict(),
            "facts": turn_facts(turn),
        }
    elif kind == "status":
        run = run_service_pb2.Run(status=response.status.status)
        data = {"word": status_word(run), "attempt": response.status.attempt}
    return _sent(str(response.sequence), kind, data)


def _sent(event_id: str, kind: str, data: dict[str, Any]) -> bytes:
    identified = f"id: {event_id}\n" if event_id else ""
    return f"retry: 1000\n{identified}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


async def load_run(site: Site, request: Request) -> run_service_pb2.Run:
    """Return the run that the address names."""
    wanted = run_service_pb2.GetRunRequest(run_id=request.path_params["run_id"])
    found = await site.calls.ask(
        "evald.v1.RunService/GetRun", wanted, run_service_pb2.GetRunResponse, site.access.caller(request)
    )
    return found.run


def _number(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadAddress(f"{name}: got {text[:100]!r}, wanted a whole number")
    return int(text)
