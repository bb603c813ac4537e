"""A run as its page shows it: the turn strip, the conversation, and the results of one turn."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from evald.records import read_verdict
from evald.result import Verdict
from evald.v1 import message_pb2, result_pb2, run_service_pb2
from evald_server.pages.formats import Mark, mark
from evald_server.suites.reports.case_view import (
    MessageView,
    ResultView,
    message_text,
    message_view,
    result_view,
    title,
    turn_facts,
)
from evald_server.suites.reports.report import is_metric

Run = run_service_pb2.Run

# What a page shows at most; there is a link to the rest of it.
MESSAGES: Final = 50
MESSAGE_CHARACTERS: Final = 20_000
# Of all messages together: a page has 100 KB.
_CHARACTERS: Final = 60_000
_RESULTS: Final = 50
_TURNS: Final = 200
_COLUMNS: Final = 40

STATUS_WORDS: Final = {
    run_service_pb2.RUN_STATUS_QUEUED: "Queued",
    run_service_pb2.RUN_STATUS_RUNNING: "Running",
    run_service_pb2.RUN_STATUS_COMPLETED: "Completed",
    run_service_pb2.RUN_STATUS_ERROR: "Error",
    run_service_pb2.RUN_STATUS_INTERRUPTED: "Interrupted",
    run_service_pb2.RUN_STATUS_CANCELLED: "Cancelled",
}
UNFINISHED: Final = (run_service_pb2.RUN_STATUS_QUEUED, run_service_pb2.RUN_STATUS_RUNNING)

# A turn that failed, but can still pass when a later one decides.
_PENDING: Final = Mark("◌", "Failed so far", "Fail", "skip")


class TurnPart(NamedTuple):
    """A turn of the strip and of the conversation. mark: None before it is evaluated."""

    number: int
    mark: Mark | None
    facts: str
    is_final: bool


class Said(NamedTuple):
    """A message with its place in the conversation."""

    place: int
    view: MessageView


class Part(NamedTuple):
    """Messages of one turn. turn: None of those before the first, and of those not evaluated yet."""

    turn: TurnPart | None
    messages: list[Said]


class RunConversation(NamedTuple):
    """What is shown of a conversation. first, last: places of the messages shown, from 1."""

    parts: list[Part]
    first: int
    last: int
    total: int


class Cell(NamedTuple):
    """What an evaluator said in a turn. text: of a metric."""

    mark: Mark | None
    text: str


class MatrixRow(NamedTuple):
    """An evaluator over all turns; None where it was not asked."""

    title: str
    cells: list[Cell | None]


def status_word(run: Run) -> str:
    """Return where a run stands, in a word."""
    return STATUS_WORDS.get(run.status, "Unknown")


def outcome(run: Run) -> Mark | None:
    """Return how a run came out; None of one that has no outcome. One that broke is never a failed one."""
    if run.status == run_service_pb2.RUN_STATUS_COMPLETED:
        return mark(run.verdict)
    return mark(Verdict.ERROR) if run.status == run_service_pb2.RUN_STATUS_ERROR else None


def run_seconds(run: Run) -> float | None:
    """Return how long a run took; None before it has ended."""
    if not run.HasField("start_time") or not run.HasField("complete_time"):
        return None
    return max(run.complete_time.ToNanoseconds() - run.start_time.ToNanoseconds(), 0) / 1e9


def why(run: Run) -> str:
    """Return why a run came out as it did."""
    if run.HasField("error"):
        return f"{run.error.code}: {run.error.message}"
    return run.result.reason


def turn_mark(evaluation: result_pb2.AggregatedEvaluation) -> Mark:
    """Return how a turn came out: of one whose failures are all pending that it is open."""
    if read_verdict(evaluation.verdict) is Verdict.FAILED:
        failed = [one for one in evaluation.results if read_verdict(one.verdict) is Verdict.FAILED]
        if failed and all(one.pending for one in failed):
            return _PENDING
    return mark(evaluation.verdict)


def strip(run: Run) -> list[TurnPart]:
    """Return the turns of a run, the last ones if there are many."""
    return [_turn(turn) for turn in run.turns[-_TURNS:]]


def _turn(turn: run_service_pb2.RunTurn) -> TurnPart:
    shown = turn_mark(turn.evaluation) if turn.HasField("evaluation") else None
    return TurnPart(turn.turn, shown, turn_facts(turn), turn.is_final)


def chosen_turn(run: Run, number: int | None) -> run_service_pb2.RunTurn | None:
    """Return the turn with a number; without one the last. None if there is none."""
    if number is None:
        return run.turns[-1] if run.turns else None
    return next((turn for turn in run.turns if turn.turn == number), None)


def conversation(run: Run, chosen: run_service_pb2.RunTurn | None) -> RunConversation:
    """Return the messages around a turn, those of each turn together."""
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
    """Return how many characters of each message are shown."""
    sizes = [
        len(message_text(message)) + sum(len(call.function.arguments) for call in message.tool_calls)
        for message in messages
    ]
    if sum(min(size, MESSAGE_CHARACTERS) for size in sizes) <= _CHARACTERS:
        return MESSAGE_CHARACTERS
    return max(_CHARACTERS // len(sizes), 300)


def tables(turn: run_service_pb2.RunTurn) -> tuple[list[ResultView], list[ResultView], int]:
    """Return the assertions and the metrics of a turn, and how many results more there are."""
    found = turn.evaluation.results[:_RESULTS]
    left_out = len(turn.evaluation.results) - len(found)
    assertions = [result_view(one, whole=True) for one in found if not is_metric(one)]
    return assertions, [result_view(one, whole=True) for one in found if is_metric(one)], left_out


def matrix(run: Run) -> tuple[list[int], list[MatrixRow]]:
    """Return the numbers of the last turns and what each evaluator said in them."""
    turns = [turn for turn in run.turns if turn.evaluation.results][-_COLUMNS:]
    rows: dict[str, MatrixRow] = {}
    for column, turn in enumerate(turns):
        for result in turn.evaluation.results[:_RESULTS]:
            row = rows.get(result.name)
            if row is None:
                shown = title(result.name, result.type, result.label)
                row = rows.setdefault(result.name, MatrixRow(shown, [None] * len(turns)))
            row.cells[column] = _cell(result)
    return [turn.turn for turn in turns], list(rows.values())


def _cell(result: result_pb2.EvaluationResult) -> Cell:
    if is_metric(result):
        return Cell(None, result_view(result).value)
    pending = result.pending and read_verdict(result.verdict) is Verdict.FAILED
    return Cell(_PENDING if pending else mark(result.verdict), "")
