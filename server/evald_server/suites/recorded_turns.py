"""Turns of recorded conversations: where they begin and end, and what their messages report.

A turn is what the agent does after a user message, or before the first one.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any, Final, NamedTuple

USAGE: Final = ("usage", "token_usage", "tokenUsage", "tokensUsage", "tokens_usage")
COST: Final = ("cost_usd", "costUsd", "cost")


class TurnUsage(NamedTuple):
    """What the messages of one turn report. None means not reported, which is not 0."""

    latency_ms: float | None = None
    usage: Mapping[str, int] | None = None
    cost_usd: float | None = None


def first_of(data: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Return the value of the first of these keys that is present and not null."""
    return next((data[key] for key in keys if data.get(key) is not None), None)


def turn_bounds(messages: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return start and end of every turn; a single one if there is no message of the agent."""
    bounds: list[tuple[int, int]] = []
    start = 0
    answered = False
    for position, message in enumerate(messages):
        if message.get("role") == "user" and answered:
            bounds.append((start, position))
            start, answered = position, False
        elif message.get("role") == "assistant":
            answered = True
    if answered or not bounds:
        bounds.append((start, len(messages)))
    return bounds


def turn_usage(messages: Sequence[Mapping[str, Any]], reports: Sequence[Any] = ()) -> TurnUsage:
    """Add up what the agent's messages of a turn report, in themselves or in a parallel list of reports.

    Without a reported latency it is the time from the user's message to the agent's last one.
    """
    records = [
        {**message, **(report if isinstance(report, Mapping) else {})}
        for message, report in zip_longest(messages, reports)
    ]
    agent = [record for record in records if record.get("role") == "assistant"]
    latencies = _numbers(agent, ("latency_ms", "latencyMs"))
    costs = _numbers(agent, COST)
    usage: dict[str, int] = {}
    for record in agent:
        counts = first_of(record, USAGE)
        for key, count in counts.items() if isinstance(counts, Mapping) else ():
            if isinstance(count, int) and not isinstance(count, bool):
                usage[key] = usage.get(key, 0) + count
    return TurnUsage(
        sum(latencies) if latencies else _elapsed_ms(records),
        usage or None,
        sum(costs) if costs else None,
    )


def _numbers(records: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[float]:
    found = (first_of(record, keys) for record in records)
    return [value for value in found if isinstance(value, int | float) and not isinstance(value, bool)]


def _elapsed_ms(records: Sequence[Mapping[str, Any]]) -> float | None:
    asked = [record.get("timestamp") for record in records if record.get("role") == "user"]
    answered = [record.get("timestamp") for record in records if record.get("role") == "assistant"]
    try:
        elapsed = datetime.fromisoformat(answered[-1]) - datetime.fromisoformat(asked[-1])  # type: ignore[arg-type]
    except (IndexError, ValueError, TypeError):
        return None
    return max(elapsed.total_seconds() * 1000, 0.0)
