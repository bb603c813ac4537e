"""Contexts for tests of evaluators, made from OpenAI's message dicts."""

import json
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from google.protobuf import json_format

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import Result, errored, unproven
from evald.strict_json import TooLarge
from evald.v1 import context_pb2, message_pb2
from evald_server.evaluators.results import UnreadableAnswer

from ..loop import run as in_loop

Dict = Mapping[str, Any]
_ABSENT: Any = object()


def context(
    messages: Iterable[Dict] = (),
    *,
    turn_messages: Iterable[Dict] | None = None,
    latency_ms: float | None = None,
    usage: Dict | None = None,
    cost_usd: float | None = None,
    run_duration_ms: float | None = None,
    expected_text: str | None = None,
    expected_data: Any = _ABSENT,
    expected_messages: Iterable[Dict] | None = None,
    turn: int = 1,
    is_final: bool = False,
    finish_reason: str | None = None,
    metadata: Dict | None = None,
) -> EvaluatorContext:
    """Return a context of one turn. usage: `input`, `output`, `total`, each optional; absent: not reported."""
    pb = context_pb2.EvaluatorContext(turn=turn, is_final=is_final)
    pb.messages.extend(message(each) for each in messages)
    invocation = pb.last_invocation
    invocation.messages.extend(message(each) for each in turn_messages or ())
    if latency_ms is not None:
        invocation.latency.FromNanoseconds(round(latency_ms * 1_000_000))
    if usage is not None:
        invocation.token_usage.SetInParent()
        for key, count in usage.items():
            setattr(invocation.token_usage, f"{key}_tokens", count)
    if cost_usd is not None:
        invocation.cost.currency_code, invocation.cost.amount = "USD", cost_usd
    if run_duration_ms is not None:
        pb.run_duration.FromNanoseconds(round(run_duration_ms * 1_000_000))
    if expected_text is not None:
        pb.expected.text = expected_text
    if expected_data is not _ABSENT:
        json_format.ParseDict(expected_data, pb.expected.data)
    pb.expected.messages.extend(message(each) for each in expected_messages or ())
    if finish_reason is not None:
        invocation.metadata["finish_reason"] = finish_reason
    if metadata is not None:
        json_format.ParseDict(dict(metadata), pb.metadata)
    return EvaluatorContext(pb)


def answered(text: str, **facts: Any) -> EvaluatorContext:
    """Return a turn with one assistant message."""
    return context([{"role": "assistant", "content": text}], **facts)


def message(given: Dict) -> message_pb2.ChatMessage:
    """Return a message from OpenAI's shape. A tool call may also have `duration_ms`."""
    pb = message_pb2.ChatMessage(role=given["role"])
    content = given.get("content")
    if isinstance(content, str):
        pb.text = content
    elif content is not None:
        pb.blocks.SetInParent()
        pb.blocks.items.extend(
            message_pb2.ContentBlock(type=block.get("type", ""), text=block.get("text")) for block in content
        )
    for call in given.get("tool_calls") or ():
        function = call["function"]
        arguments = function.get("arguments", "")
        pb_call = pb.tool_calls.add(id=call.get("id", ""), type=call.get("type", "function"))
        pb_call.function.name = function["name"]
        pb_call.function.arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
        if call.get("duration_ms") is not None:
            pb_call.duration.FromNanoseconds(round(call["duration_ms"] * 1_000_000))
    for key in ("tool_call_id", "name", "id"):
        if given.get(key) is not None:
            setattr(pb, key, given[key])
    return pb


def calls(*names: str) -> dict[str, Any]:
    """Return an assistant message that calls tools without arguments."""
    return {
        "role": "assistant",
        "content": None if names else "Done.",
        "tool_calls": [
            {"id": f"call_{position}", "function": {"name": name, "arguments": "{}"}}
            for position, name in enumerate(names)
        ],
    }


def run(evaluator: type[Evaluator], config: Dict, ctx: EvaluatorContext) -> Result:
    """Compile the config as a server does, and return the evaluator's result."""
    try:
        outcome = evaluator.definition().compile(config)(ctx)
    except TooLarge as problem:
        return errored("INPUT_TOO_LARGE", str(problem))
    except UnreadableAnswer as problem:
        return unproven(str(problem))
    return outcome if isinstance(outcome, Result) else in_loop(awaited(outcome))


async def awaited(outcome: Result | Awaitable[Result]) -> Result:
    """Await the result of an evaluator."""
    return outcome if isinstance(outcome, Result) else await outcome
