"""Turns of recorded conversations: their bounds, and the usage that their messages report.

A turn is the agent's work after a user message, or before the first one.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from evald.end_marks import BESIDE_TURNS, END_MARKS, end_mark_index
from evald.errors import InvalidInput
from evald.fields import first_of, number
from evald.messages import fill_messages, message_roles
from evald.shapes.usage import add_usages, of_whole_turn
from evald.v1 import context_pb2

from ..reported_errors import reported_error

if TYPE_CHECKING:
    from evald import Turn

RECORDED_ERROR: Final = "RECORDED_ERROR"
"""The error code of a trial whose transcript has an error."""

USER_ROLES: Final = ("user", "system", "developer")
"""Roles of the messages before an agent's answer."""

# Limit of characters of an error text.
_MOST_ERROR: Final = 2000

# Aliases of context keys, as found in records of other systems.
_ALIASES: Final = {
    "expected": ("expected_output", "expectedOutput", "reference_answer", "referenceAnswer"),
    "conversation_id": ("id",),
    "cost_usd": ("cost",),
    "run_duration_ms": ("duration_ms", "durationMs"),
    "run_duration_seconds": ("duration_s", "duration_seconds", "durationSeconds"),
}

# Keys that say why a row has no answer, where another key says that it has none.
_REASONS: Final = ("error_message", "errorMessage", "message", "reason", "detail", "details")
_FLAGS: Final = ("status", "success", "ok", "is_error", "isError", "status_code", "statusCode", "code")

_USAGE: Final = ("usage", "token_usage", "tokenUsage", "tokensUsage", "tokens_usage")
_COST: Final = ("cost_usd", "costUsd", "cost")
_SPELLINGS: Final = {
    "latency_ms": ("latency_ms", "latencyMs", "latency_seconds", "latencySeconds", "latency"),
    "usage": _USAGE,
    "cost_usd": _COST,
}


class TurnUsage(NamedTuple):
    """The usage that the messages of one turn report. None means not reported, which is not 0."""

    latency_ms: float | None = None
    usage: Mapping[str, int] | None = None
    cost_usd: float | None = None

    def missing_in(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that are known here, and that the data about the turn do not report."""
        return {
            key: value
            for key, value in self._asdict().items()
            if value is not None and first_of(data, _SPELLINGS[key]) is None
        }


def recorded_error(row: Mapping[str, Any]) -> str:
    """Return the error of a recorded conversation; "" without one."""
    error = reported_error(row)
    if error is row:
        said = first_of(row, _REASONS)
        error = (
            next((f"{key}: {row[key]}" for key in _FLAGS if key in row), "error") if said is None else said
        )
    if error is None:
        return ""
    words = error if isinstance(error, str) else json.dumps(error, ensure_ascii=False, default=str)
    # A half of a surrogate pair cannot be sent.
    return words[:_MOST_ERROR].encode(errors="replace").decode()


def turn_bounds(messages: Sequence[Any], marks: Sequence[str] = END_MARKS) -> list[tuple[int, int]]:
    """Return start and end index of every turn; a single turn if the agent has no message.

    User messages at the end are a turn without an answer, but an end mark is in no turn: it is no question.

    messages: in any format that the SDK reads: the tool results of Anthropic and Gemini are no user's messages. One
    with an unknown role counts as the agent's, so that it is not left out. marks: the end marks. Raises InvalidInput.
    """
    roles = message_roles(messages)
    end = _end(messages, roles, marks)
    bounds: list[tuple[int, int]] = []
    start = 0
    answered = False
    for position, role in enumerate(roles[:end]):
        if role == "user" and answered:
            bounds.append((start, position))
            start, answered = position, False
        elif role not in (*USER_ROLES, "tool"):
            answered = True
    if start < end or not bounds:
        bounds.append((start, end))
    return bounds


def _end(messages: Sequence[Any], roles: Sequence[str], marks: Sequence[str]) -> int:
    """Return the number of messages before the end marks; of all messages without one."""
    end = len(roles)
    for position in range(len(roles) - 1, -1, -1):
        if roles[position] in BESIDE_TURNS:
            continue
        if roles[position] != "user" or not _is_end_mark(messages[position], marks):
            break
        end = position
    return end


def _is_end_mark(message: Any, marks: Sequence[str]) -> bool:
    user = context_pb2.Invocation()
    try:
        fill_messages([message], user.messages)
    except InvalidInput:
        return False  # refused, with its place, when the conversation is read
    return end_mark_index(user.messages, marks) is not None


def ends_unanswered(messages: Sequence[Any], marks: Sequence[str] = END_MARKS) -> bool:
    """Return whether the conversation ends with a user message, no end mark, that has no answer. Raises InvalidInput."""
    start, end = turn_bounds(messages, marks)[-1]
    roles = message_roles(messages[start:end])
    return "user" in roles and all(role in (*USER_ROLES, "tool") for role in roles)


def unanswered_warning(count: int) -> str:
    """Return the warning for so many conversations with an unanswered end."""
    many = f"{count} conversations end with messages of the user that have"
    one = "1 conversation ends with a message of the user that has"
    return (
        f"{one if count == 1 else many} no answer of the agent: it may be a good-bye, or the agent broke down; "
        "checks of the answer fail (a good-bye that ends with an end mark such as ###STOP### is no question)"
    )


def turn_usage(messages: Sequence[Any], reports: Sequence[Any] = ()) -> TurnUsage:
    """Add up the usage of the agent's messages of a turn, see `of_whole_turn`. reports: further usage, one per message.

    Without a reported latency, it is the time from the user's last message to the agent's last message.
    Raises InvalidInput.
    """
    records = [
        {
            **(message if isinstance(message, Mapping) else {}),
            **(report if isinstance(report, Mapping) else {}),
            "role": role,
        }
        for role, message, report in zip_longest(message_roles(messages), messages, reports[: len(messages)])
    ]
    agent = [record for record in records if record["role"] == "assistant"]
    latencies = of_whole_turn([_number(record, ("latency_ms", "latencyMs")) for record in agent])
    costs = of_whole_turn([_number(record, _COST) for record in agent])
    usages = of_whole_turn([first_of(record, _USAGE) for record in agent])
    return TurnUsage(
        sum(latencies) if latencies else _elapsed_ms(records),
        add_usages(usages) or None,
        sum(costs) if costs else None,
    )


def _number(record: Mapping[str, Any], keys: Sequence[str]) -> float | None:
    """Return the number of the first of these keys. Raises InvalidInput for a negative one, which could hide others."""
    value = first_of(record, keys)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return number(value, keys[0])


def _elapsed_ms(records: Sequence[Mapping[str, Any]]) -> float | None:
    asked = [record.get("timestamp") for record in records if record.get("role") == "user"]
    answered = [record.get("timestamp") for record in records if record.get("role") == "assistant"]
    try:
        elapsed = datetime.fromisoformat(answered[-1]) - datetime.fromisoformat(asked[-1])  # type: ignore[arg-type]
    except (IndexError, ValueError, TypeError):
        return None
    return max(elapsed.total_seconds() * 1000, 0.0)


def usage_of(data: Mapping[str, Any], messages: Sequence[Any], start: int, end: int) -> TurnUsage:
    """Add up the usage of one turn of a conversation, from its messages and the list `message_meta`."""
    reports = data.get("message_meta")
    return turn_usage(messages[start:end], reports[start:end] if isinstance(reports, list) else ())


def last_turn(original: Mapping[str, Any], *, recorded: bool) -> "Turn":
    """Return the last turn of a conversation with all messages before it. It is final unless the data say otherwise.

    Latency, usage and cost are those of the conversation; missing ones are read from the messages of the turn.

    recorded: the conversation is a recording: unknown keys are ignored. Raises InvalidInput.
    """
    from evald import Turn

    data = context_data(original)
    inner = first_of(original, ("lastInvocation", "last_invocation"))
    inner = inner if isinstance(inner, Mapping) else {}
    messages = original.get("messages")
    if first_of(original, ("is_final", "isFinal")) is None:
        data["is_final"] = True
    spoken = inner.get("messages") if messages is None else messages
    if isinstance(spoken, list):
        bounds = turn_bounds(spoken)
        start, end = bounds[-1]
        if messages is not None:
            data["messages"] = messages[:end]
        if first_of(original, ("turn", "number")) is None:
            data["number"] = len(bounds)
        data |= usage_of(original, spoken, start, end).missing_in({**data, **inner})
    return Turn.from_dict(data, ignore_unknown=recorded)


def context_data(original: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a conversation with aliases replaced by evald's keys.

    Raises InvalidInput for two different expected answers: which of them is meant is not known.
    """
    data = {key: value for key, value in original.items() if value is not None}
    answers = [key for key in ("expected", *_ALIASES["expected"]) if key in data]
    if any(data[key] != data[answers[0]] for key in answers[1:]):
        raise InvalidInput(answers[1], f"another value than `{answers[0]}`", "one of the two")
    for key, aliases in _ALIASES.items():
        found = first_of(data, aliases)
        if key not in data and found is not None:
            data[key] = found
        for alias in aliases:
            data.pop(alias, None)
    # Many records have numbers as ids.
    for key in ("conversation_id", "conversationId"):
        if isinstance(data.get(key), int):
            data[key] = str(data[key])
    return data
