"""The page of a run: its turns, its conversation beside the results of a turn, and live events."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import grpc
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from evald.records import read_verdict
from evald.result import Verdict
from evald.v1 import message_pb2, result_pb2, run_service_pb2
from evald_server.http.calls import CallFailed
from evald_server.http.site import Site
from evald_server.http.streams import SSE, Framing, StreamedCall, event, json_bytes
from evald_server.pages.environment import shown_text
from evald_server.pages.formats import Mark, mark, words
from evald_server.store.runs import UNFINISHED, run_seconds
from evald_server.suites.reports.case_view import (
    MessageView,
    ResultView,
    message_text,
    message_view,
    most_results,
    result_view,
    title,
    turn_facts,
    warnings_of,
)
from evald_server.suites.reports.report import is_metric

from .failures import not_found, whole_number
from .rendering import render

Run = run_service_pb2.Run

# Limits of what a page shows; it links to the rest.
MESSAGES: Final = 50
MESSAGE_CHARACTERS: Final = 20_000
# Limit of all messages together, as a page has 100 KB.
_CHARACTERS: Final = 60_000
_TURNS: Final = 200
_COLUMNS: Final = 40

STATUS_WORDS: Final = words(run_service_pb2.RunStatus.DESCRIPTOR)

# A failed turn or result that a later turn can still turn into a pass.
_PENDING: Final = Mark("◌", "Failed so far", "Fail", "skip")


class TurnPart(NamedTuple):
    """A turn in the strip and in the conversation. mark: None before it is evaluated."""

    number: int
    mark: Mark | None
    facts: str
    is_final: bool


class Said(NamedTuple):
    """A message with its place in the conversation."""

    place: int
    view: MessageView


class Part(NamedTuple):
    """The messages of one turn. turn: None before the first turn, and for messages without an evaluation yet."""

    turn: TurnPart | None
    messages: list[Said]


class RunConversation(NamedTuple):
    """The shown part of a conversation. first, last: the positions of the shown messages, from 1."""

    parts: list[Part]
    first: int
    last: int
    total: int


class Cell(NamedTuple):
    """The result of an evaluator in a turn. text: the value of a metric."""

    mark: Mark | None
    text: str


class MatrixRow(NamedTuple):
    """The results of an evaluator over all turns; None where it did not run."""

    title: str
    cells: list[Cell | None]


def status_word(run: Run) -> str:
    """Return the status of a run as a word."""
    return STATUS_WORDS.get(run.status, "Unknown")


def outcome(run: Run) -> Mark | None:
    """Return the outcome of a run as a mark; None without one. A run that ended in an error is not shown as failed."""
    if run.status == run_service_pb2.RUN_STATUS_COMPLETED:
        return mark(run.verdict)
    return mark(Verdict.ERROR) if run.status == run_service_pb2.RUN_STATUS_ERROR else None


def why(run: Run) -> str:
    """Return the error of a run or the reason of its verdict."""
    if run.HasField("error"):
        return f"{run.error.code}: {run.error.message}"
    return run.result.reason


def turn_mark(evaluation: result_pb2.AggregatedEvaluation) -> Mark:
    """Return the mark of a turn's verdict. If all its failures are pending, the mark says so."""
    if read_verdict(evaluation.verdict) is Verdict.FAILED:
        failed = [one for one in evaluation.results if read_verdict(one.verdict) is Verdict.FAILED]
        if failed and all(one.pending for one in failed):
            return _PENDING
    return mark(evaluation.verdict)


def strip(run: Run) -> list[TurnPart]:
    """Return the turns of a run; at most the last 200."""
    return [_turn(turn) for turn in run.turns[-_TURNS:]]


def _turn(turn: run_service_pb2.RunTurn) -> TurnPart:
    shown = turn_mark(turn.evaluation) if turn.HasField("evaluation") else None
    return TurnPart(turn.turn, shown, turn_facts(turn), turn.is_final)


def chosen_turn(run: Run, number: int | None) -> run_service_pb2.RunTurn | None:
    """Return the turn with a number, or the last turn if `number` is None. None if there is no such turn."""
    if number is None:
        return run.turns[-1] if run.turns else None
    return next((turn for turn in run.turns if turn.turn == number), None)


def conversation(run: Run, chosen: run_service_pb2.RunTurn | None) -> RunConversation:
    """Return the messages around a turn, grouped by turn."""
    total = len(run.messages)
    end = total
    if chosen is not None and total > MESSAGES:
        end = min(max(chosen.first_message + chosen.message_count, MESSAGES), total)
    start = max(end - MESSAGES, 0)
    shown = run.messages[start:end]
    limit = _limit(shown)
    places: dict[int, TurnPart] = {}
    for turn in run.turns:
        first = max(turn.first_message, start)
        last = min(turn.first_message + turn.message_count, end)
        if first < last:
            part = _turn(turn)
            places.update((place, part) for place in range(first, last))
    parts: list[Part] = []
    for index, message in enumerate(shown, start):
        here = places.get(index)
        if not parts or parts[-1].turn != here:
            parts.append(Part(here, []))
        parts[-1].messages.append(Said(index, message_view(message, limit)))
    return RunConversation(parts, start + 1 if shown else 0, end, total)


def _limit(messages: Sequence[message_pb2.ChatMessage]) -> int:
    """Return the number of characters to show of each message."""
    sizes = [
        len(message_text(message)) + sum(len(call.function.arguments) for call in message.tool_calls)
        for message in messages
    ]
    if sum(min(size, MESSAGE_CHARACTERS) for size in sizes) <= _CHARACTERS:
        return MESSAGE_CHARACTERS
    return max(_CHARACTERS // len(sizes), 300)


def tables(turn: run_service_pb2.RunTurn) -> tuple[list[ResultView], list[ResultView], int]:
    """Return the assertions and the metrics of a turn, and the number of results left out."""
    found = most_results(turn)
    left_out = len(turn.evaluation.results) - len(found)
    assertions = [result_view(one, whole=True) for one in found if not is_metric(one)]
    return assertions, [result_view(one, whole=True) for one in found if is_metric(one)], left_out


def matrix(run: Run) -> tuple[list[int], list[MatrixRow]]:
    """Return the numbers of the last turns, and the results of each evaluator in them."""
    turns = [turn for turn in run.turns if turn.evaluation.results][-_COLUMNS:]
    rows: dict[str, MatrixRow] = {}
    for column, turn in enumerate(turns):
        for result in most_results(turn):
            row = rows.get(result.name)
            if row is None:
                shown = title(result.name, result.type, result.label)
                row = rows.setdefault(result.name, MatrixRow(shown, [None] * len(turns)))
            row.cells[column] = _cell(result)
    return [turn.turn for turn in turns], list(rows.values())


def _cell(result: result_pb2.EvaluationResult) -> Cell:
    if is_metric(result) and read_verdict(result.verdict) is Verdict.PASSED:
        return Cell(None, result_view(result).value)
    pending = result.pending and read_verdict(result.verdict) is Verdict.FAILED
    return Cell(_PENDING if pending else mark(result.verdict), "")


async def run(site: Site, request: Request) -> Response:
    """Show a run."""
    found = await load_run(site, request)
    number = whole_number("turn", request.query_params["turn"]) if "turn" in request.query_params else None
    chosen = chosen_turn(found, number)
    if number is not None and chosen is None:
        raise not_found(f"The run has no turn {number}.")
    turns = strip(found)
    assertions, metrics, left_out = tables(chosen) if chosen is not None else ([], [], 0)
    numbers, rows = matrix(found)
    return await render(
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
        warnings=warnings_of(chosen.evaluation) if chosen is not None else [],
        talk=conversation(found, chosen),
        assertions=assertions,
        metrics=metrics,
        results_left_out=left_out,
        matrix_turns=numbers,
        matrix_rows=rows,
    )


async def message(site: Site, request: Request) -> Response:
    """Return a complete message as text."""
    found = await load_run(site, request)
    index = whole_number("message", request.path_params["index"])
    if index >= len(found.messages):
        raise not_found(f"The run has no message {index}.")
    one = found.messages[index]
    calls = [f"{call.function.name} {call.function.arguments}" for call in one.tool_calls]
    return PlainTextResponse("\n".join([message_text(one), *calls]))


async def events(site: Site, request: Request) -> Response:
    """Stream the events of a run, formatted for its page."""
    after = request.headers.get("last-event-id") or request.query_params.get("after", "0")
    wanted = run_service_pb2.WatchRunRequest(
        run_id=request.path_params["run_id"], after_sequence=whole_number("after", after)
    )
    messages = site.calls.stream(
        "evald.v1.RunService/WatchRun", wanted.SerializeToString(), site.access.caller(request)
    )
    return StreamedCall(messages, Framing(SSE, _event, _failed, _sent("", "over", {}), starts_at_once=True))


# After these statuses a page does not reconnect.
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
        data = {"turn": response.result.turn, **result_data(response.result.result)}
    elif kind == "turn":
        turn = response.turn
        data = {
            "number": turn.turn,
            "mark": mark(turn.evaluation.verdict)._asdict(),
            "facts": turn_facts(turn),
        }
    elif kind == "status":
        run = Run(status=response.status.status)
        data = {"word": status_word(run), "attempt": response.status.attempt}
    return _sent(str(response.sequence), kind, data)


def result_data(result: result_pb2.EvaluationResult) -> dict[str, Any]:
    """Return the row of a result for `elements.js`."""
    row = result_view(result)
    return {
        "metric": is_metric(result),
        "title": row.title,
        "mark": row.mark._asdict(),
        "flags": row.flags,
        "score": row.score,
        "value": row.value,
        "reason": row.reason._asdict(),
    }


def _sent(event_id: str, kind: str, data: dict[str, Any]) -> bytes:
    return b"retry: 1000\n" + event(json_bytes(data), kind, event_id)


async def load_run(site: Site, request: Request) -> Run:
    """Return the run in the URL."""
    wanted = run_service_pb2.GetRunRequest(run_id=request.path_params["run_id"])
    found: Run = (await site.ask(request, wanted)).run
    return found
