"""Stored events of a run, and their conversion from and to the messages of the API."""

import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from evald.v1 import run_service_pb2
from evald_server.store.runs import RunEvent, RunEventKind

# Number of events per read.
_PAGE: Final = 1000

_ENDED = frozenset(
    (
        run_service_pb2.RUN_STATUS_COMPLETED,
        run_service_pb2.RUN_STATUS_ERROR,
        run_service_pb2.RUN_STATUS_CANCELLED,
    )
)


def has_ended(run: run_service_pb2.Run) -> bool:
    """Return whether a run has ended. An interrupted run has not: it can be resumed."""
    return run.status in _ENDED


async def all_events(read: Callable[[int, int], Awaitable[list[RunEvent]]]) -> list[RunEvent]:
    """Return all events of a run. read: takes a sequence number and a limit, returns the events after that number."""
    found: list[RunEvent] = []
    while True:
        page = await read(found[-1].sequence if found else 0, _PAGE)
        found += page
        if len(page) < _PAGE:
            return found


def status_event(
    run: run_service_pb2.Run, status: run_service_pb2.RunStatus, now: int | None = None
) -> RunEvent:
    """Set a status other than an end status. Return its event. now: see `_next`."""
    change = run_service_pb2.RunStatusChange(status=status, attempt=run.attempt)
    return _next(run, status, now, RunEventKind.STATUS, change.SerializeToString())


def end_event(
    run: run_service_pb2.Run, status: run_service_pb2.RunStatus, now: int | None = None
) -> RunEvent:
    """Set the end status of a run. Return its event. now: see `_next`."""
    event = _next(run, status, now, RunEventKind.END)
    run.complete_time.CopyFrom(run.update_time)
    return event


def _next(
    run: run_service_pb2.Run,
    status: run_service_pb2.RunStatus,
    now: int | None,
    kind: RunEventKind,
    body: bytes = b"",
) -> RunEvent:
    """Set a status and its time, and return the event.

    now: nanoseconds since 1970. None takes the clock's time, or the last update's time if the clock was set back.
    """
    run.status = status
    if now is None:
        now = max(time.time_ns(), run.update_time.ToNanoseconds())
    run.update_time.FromNanoseconds(now)
    run.last_sequence += 1
    return RunEvent(run.last_sequence, kind, body)


def watch_responses(
    event: RunEvent, run: run_service_pb2.Run, after: int = 0
) -> list[run_service_pb2.WatchRunResponse]:
    """Return the responses that watchers get for a stored event, only with sequence numbers above `after`.

    run: its row, which becomes the content of the end event.
    """
    response = run_service_pb2.WatchRunResponse(sequence=event.sequence)
    responses = [response]
    if event.kind is RunEventKind.MESSAGE:
        response.message.ParseFromString(event.body)
    elif event.kind is RunEventKind.STATUS:
        response.status.ParseFromString(event.body)
    elif event.kind is RunEventKind.END:
        response.end.CopyFrom(run)
    else:
        turn = response.turn
        turn.ParseFromString(event.body)
        first = event.sequence - len(turn.evaluation.results)
        responses = [
            run_service_pb2.WatchRunResponse(
                sequence=sequence, result=run_service_pb2.RunTurnResult(turn=turn.turn, result=result)
            )
            for sequence, result in enumerate(turn.evaluation.results, first)
        ]
        turn.evaluation.ClearField("results")
        responses.append(response)
    return [one for one in responses if one.sequence > after]


def whole_run(run: run_service_pb2.Run, events: Iterable[RunEvent]) -> run_service_pb2.Run:
    """Return a copy of a run with the messages and turns of its events."""
    whole = run_service_pb2.Run()
    whole.CopyFrom(run)
    for event in events:
        if event.kind is RunEventKind.MESSAGE:
            whole.messages.append(run_service_pb2.RunMessage.FromString(event.body).message)
        elif event.kind is RunEventKind.TURN:
            whole.turns.append(run_service_pb2.RunTurn.FromString(event.body))
    if whole.turns and not has_ended(run):
        fill_results(whole.output, whole.turns[-1])
    return whole


def split_run(run: run_service_pb2.Run) -> tuple[run_service_pb2.Run, list[RunEvent]]:
    """Return the row and the events of a whole run: the reverse of `whole_run`."""
    events: list[RunEvent] = []
    row = run_service_pb2.Run()
    row.CopyFrom(run)
    row.ClearField("messages")
    row.ClearField("turns")
    row.last_sequence = 0

    def add(kind: RunEventKind, body: bytes, numbers: int = 1) -> None:
        row.last_sequence += numbers
        events.append(RunEvent(row.last_sequence, kind, body))

    shown = 0

    def add_messages(end: int) -> None:
        nonlocal shown
        for index in range(shown, min(end, len(run.messages))):
            message = run_service_pb2.RunMessage(index=index, message=run.messages[index])
            add(RunEventKind.MESSAGE, message.SerializeToString())
            shown = index + 1

    for turn in run.turns:
        add_messages(turn.first_message + turn.message_count)
        add(RunEventKind.TURN, turn.SerializeToString(), len(turn.evaluation.results) + 1)
    add_messages(len(run.messages))
    if has_ended(run):
        add(RunEventKind.END, b"")
    return row, events


def add_turn(
    output: run_service_pb2.RunOutput, turn: run_service_pb2.RunTurn, criteria: Collection[int], timed: int
) -> None:
    """Add a turn's latency and criteria result to the run's output.

    criteria: indexes of the criteria results. timed: how many turns have a latency.
    """
    if turn.HasField("latency"):
        nanos = output.total_latency.ToNanoseconds() + turn.latency.ToNanoseconds()
        output.total_latency.FromNanoseconds(nanos)
        output.average_latency.FromNanoseconds(nanos // timed)
    for result in turn.evaluation.results:
        said = result.metadata.fields
        if result.index in criteria and "successMet" in said:
            output.evaluation.success_met = said["successMet"].bool_value
            output.evaluation.failure_met = said["failureMet"].bool_value
            output.evaluation.confidence = said["confidence"].number_value
            output.evaluation.reasoning = result.reason
            break


def fill_results(output: run_service_pb2.RunOutput, turn: run_service_pb2.RunTurn) -> None:
    """Copy the results and metrics of the last turn into the run's output."""
    output.ClearField("evaluator_results")
    output.ClearField("metrics")
    output.evaluator_results.extend(turn.evaluation.results)
    for name, value in turn.evaluation.metrics.items():
        output.metrics[name] = value
