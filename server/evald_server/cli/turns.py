"""Recorded conversations as turns that can be sent.

A *turn* is what the agent did after a user message, or before the first one.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .conversations import Conversation, first_of
from .exits import usage_error

if TYPE_CHECKING:
    from evald import Turn

# Other words for keys of a context, as found in records of other systems.
_ALIASES: Final = {
    "expected": ("expected_output", "expectedOutput", "reference_answer", "referenceAnswer"),
    "conversation_id": ("id",),
    "cost_usd": ("cost",),
    "run_duration_ms": ("duration_ms", "durationMs"),
    "run_duration_seconds": ("duration_s", "duration_seconds", "durationSeconds"),
}

# What holds for a conversation as a whole.
_SHARED: Final = ("scenario", "persona", "expected", "metadata", "conversation_id", "run_id")

_USAGE: Final = ("usage", "token_usage", "tokenUsage", "tokensUsage", "tokens_usage")


class Spent(NamedTuple):
    """What the messages of one turn report. None means not reported, which is not 0."""

    latency_ms: float | None = None
    usage: Mapping[str, int] | None = None
    cost_usd: float | None = None


def last_turn_of(conversation: Conversation) -> "Turn":
    """The last turn with everything before it; the final one unless the conversation says otherwise.

    What the conversation reports as a whole (latency, usage, cost) is taken as
    the turn's; only where it reports nothing are its messages asked.
    """
    bounds = turn_bounds(conversation.messages)
    start, end = bounds[-1]
    data = _context(conversation)
    if conversation.data.get("messages") is not None:
        # What follows the agent's last turn, such as the user's good-bye, is no part of it.
        data["messages"] = conversation.messages[:end]
    if conversation.first("turn", "number") is None:
        data["number"] = len(bounds)
    if conversation.first("is_final", "isFinal") is None:
        data["is_final"] = True
    inner = conversation.first("lastInvocation", "last_invocation")
    given = {**data, **(inner if isinstance(inner, Mapping) else {})}
    spent = _spent(conversation, start, end)
    if first_of(given, ("latency_ms", "latencyMs", "latency_seconds", "latencySeconds", "latency")) is None:
        data["latency_ms"] = spent.latency_ms
    if first_of(given, _USAGE) is None:
        data["usage"] = spent.usage
    if first_of(given, ("cost_usd", "costUsd", "cost")) is None:
        data["cost_usd"] = spent.cost_usd
    return _turn(data, conversation)


def turns_of(conversation: Conversation) -> "Iterator[Turn]":
    """Every turn with the messages that it adds. Only what messages report counts as spent on a turn."""
    bounds = turn_bounds(conversation.messages)
    for start, end in bounds:
        data = {
            "messages": conversation.messages[start:end],
            "is_final": end == bounds[-1][1],
            **_spent(conversation, start, end)._asdict(),
        }
        yield _turn(data, conversation)


def base_of(conversation: Conversation) -> "Turn":
    """What all turns of the conversation share."""
    data = _context(conversation)
    return _turn({key: data[key] for key in _SHARED if key in data}, conversation)


def turn_bounds(messages: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Begin and end of every turn; a single one when the agent never spoke."""
    bounds: list[tuple[int, int]] = []
    start = 0
    spoke = False
    for position, message in enumerate(messages):
        if message.get("role") == "user" and spoke:
            bounds.append((start, position))
            start, spoke = position, False
        elif message.get("role") == "assistant":
            spoke = True
    if spoke or not bounds:
        bounds.append((start, len(messages)))
    return bounds


def _context(conversation: Conversation) -> dict[str, Any]:
    data = {key: value for key, value in conversation.data.items() if value is not None}
    for key, others in _ALIASES.items():
        found = first_of(data, others)
        if key not in data and found is not None:
            data[key] = found
    for key in {other for others in _ALIASES.values() for other in others}:
        data.pop(key, None)
    # Ids of records are numbers as often as not.
    for key in ("conversation_id", "conversationId"):
        if isinstance(data.get(key), int):
            data[key] = str(data[key])
    return data


def _turn(data: Mapping[str, Any], conversation: Conversation) -> "Turn":
    from evald import InvalidInput, Turn

    try:
        return Turn.from_dict(data, ignore_unknown=True)
    except InvalidInput as problem:
        raise usage_error(f"{conversation.place}: {problem}") from None


def _spent(conversation: Conversation, start: int, end: int) -> Spent:
    """What the agent's messages report, in themselves or in a parallel list `message_meta`, added up.

    Latency, where none is given, is the time from the user's message to the agent's last one.
    """
    reports = conversation.data.get("message_meta")
    reports = reports if isinstance(reports, list) else []
    records = [
        {**message, **(report if isinstance(report, Mapping) else {})}
        for message, report in zip(
            conversation.messages[start:end],
            [*reports[start:end], *[None] * (end - start - len(reports[start:end]))],
            strict=True,
        )
    ]
    agent = [record for record in records if record.get("role") == "assistant"]
    latencies = _numbers(agent, ("latency_ms", "latencyMs"))
    costs = _numbers(agent, ("cost_usd", "costUsd", "cost"))
    usage: dict[str, int] = {}
    for record in agent:
        counts = first_of(record, _USAGE)
        for key, count in counts.items() if isinstance(counts, Mapping) else ():
            if isinstance(count, int) and not isinstance(count, bool):
                usage[key] = usage.get(key, 0) + count
    return Spent(
        sum(latencies) if latencies else _waited(records), usage or None, sum(costs) if costs else None
    )


def _numbers(records: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[float]:
    found = (first_of(record, keys) for record in records)
    return [value for value in found if isinstance(value, int | float) and not isinstance(value, bool)]


def _waited(records: Sequence[Mapping[str, Any]]) -> float | None:
    asked = [record.get("timestamp") for record in records if record.get("role") == "user"]
    answered = [record.get("timestamp") for record in records if record.get("role") == "assistant"]
    try:
        waited = datetime.fromisoformat(answered[-1]) - datetime.fromisoformat(asked[-1])  # type: ignore[arg-type]
    except (IndexError, ValueError, TypeError):
        return None
    return max(waited.total_seconds() * 1000, 0.0)
