"""Agent calls: merging those of one turn, and adding up tokens and cost."""

from collections.abc import Sequence
from typing import Final

from evald.v1 import context_pb2, run_service_pb2

_COUNTS: Final = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "cached_input_tokens",
    "reasoning_tokens",
)


def merge_calls(calls: Sequence[context_pb2.Invocation]) -> context_pb2.Invocation:
    """Return the calls of one turn merged into one: start of the first, result of the last. calls: in order.

    A number is summed only if every call has it, because a missing number is not 0.
    """
    first, last = calls[0], calls[-1]
    merged = context_pb2.Invocation()
    merged.CopyFrom(last)
    if len(calls) == 1:
        return merged
    for name in ("latency", "time_to_first_token", "start_time", "token_usage", "cost"):
        merged.ClearField(name)
    for name in ("time_to_first_token", "start_time"):
        if first.HasField(name):
            getattr(merged, name).CopyFrom(getattr(first, name))
    if all(call.HasField("latency") for call in calls):
        merged.latency.FromNanoseconds(sum(call.latency.ToNanoseconds() for call in calls))
    if all(call.HasField("token_usage") for call in calls):
        for name in _COUNTS:
            if all(call.token_usage.HasField(name) for call in calls):
                setattr(merged.token_usage, name, sum(getattr(call.token_usage, name) for call in calls))
    if all(call.HasField("cost") for call in calls):
        merged.cost.currency_code = last.cost.currency_code
        merged.cost.amount = sum(call.cost.amount for call in calls)
    return merged


def turn_of(call: context_pb2.Invocation, turn: int, first: int, count: int) -> run_service_pb2.RunTurn:
    """Return a turn without its evaluation. first, count: index of its first message, and number of its messages."""
    return run_service_pb2.RunTurn(
        turn=turn,
        first_message=first,
        message_count=count,
        latency=call.latency if call.HasField("latency") else None,
        time_to_first_token=call.time_to_first_token if call.HasField("time_to_first_token") else None,
        token_usage=call.token_usage if call.HasField("token_usage") else None,
        cost=call.cost if call.HasField("cost") else None,
        model=call.model,
    )


def add_spending(run: run_service_pb2.Run, call: context_pb2.Invocation) -> None:
    """Add the tokens and the cost of an agent call to the run, where the call reports them."""
    if call.HasField("token_usage"):
        for name in _COUNTS:
            if call.token_usage.HasField(name):
                setattr(
                    run.token_usage, name, getattr(run.token_usage, name) + getattr(call.token_usage, name)
                )
    if call.HasField("cost"):
        run.cost.currency_code = call.cost.currency_code
        run.cost.amount += call.cost.amount
