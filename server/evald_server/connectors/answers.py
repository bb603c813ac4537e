"""Answers of agents: parsing of JSON of limited size, and search for messages, token usage, cost and model in it."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from evald.blocks import calls_of
from evald.call_shapes import unread_calls
from evald.chat import is_answer, message_text
from evald.convert.context import TurnData, turn_to_pb
from evald.errors import InvalidInput
from evald.fields import duration_to_pb, first_of, shown
from evald.messages import check_nodes
from evald.shapes import read_one
from evald.strict_json import TooLarge, parse_json
from evald.v1 import context_pb2
from evald_server.redaction import Redactor
from evald_server.remote.errors import printable
from evald_server.reported_errors import reported_error

from .connector import ConnectorFailure

MAX_ANSWER_BYTES: Final = 8 << 20

TEXT_KEYS: Final = (
    "content",
    "text",
    "output",
    "response",
    "message",
    "answer",
    "reply",
    "output_text",
    "completion",
    "result",
)
_NESTED: Final = ("message", "output", "response", "result", "data")
_USAGES: Final = ("usage", "token_usage", "tokenUsage", "usage_metadata", "usageMetadata")
_COSTS: Final = ("cost_usd", "costUsd", "cost", "total_cost_usd")
CALL_LISTS: Final = ("tool_calls", "toolCalls")


def bad_answer(message: str) -> ConnectorFailure:
    """Return the failure for an answer that cannot be evaluated."""
    return ConnectorFailure("CONNECTOR_BAD_ANSWER", message)


def excerpt(content: bytes, redactor: Redactor) -> str:
    """Return the beginning of an agent's data for an error message, quoted and without secrets; "" if empty."""
    # Redact before cutting, so that no part of a secret stays. The longest has 8 KiB, and more if it is escaped.
    text = redactor.redact_text(content[: 64 << 10].decode(errors="replace"))
    text = " ".join(text[:4096].split())
    return f": {printable(text)!r}" if text else ""


def parse_body(content: bytes, content_type: str, redactor: Redactor) -> Any:
    """Parse the JSON of an answer and redact secrets. Raises ConnectorFailure that describes other content."""
    start = content.lstrip()[:1]
    if not start:
        raise bad_answer("the answer is empty; wanted JSON")
    if "html" in content_type or start == b"<":
        raise bad_answer(
            "the answer is HTML or XML, wanted JSON; is base_url the address of the "
            f"agent's API?{excerpt(content, redactor)}"
        )
    try:
        text = content.decode("utf-8-sig")
        check_nodes(text, "the answer")
        return redactor.redact_json(parse_json(text))
    except UnicodeDecodeError as problem:
        raise bad_answer(f"the answer is not UTF-8 at byte {problem.start}, wanted JSON") from None
    except (InvalidInput, TooLarge) as problem:
        raise bad_answer(str(problem)) from None
    except ValueError as problem:
        raise bad_answer(f"the answer is not valid JSON: {problem}{excerpt(content, redactor)}") from None


def check_reported(data: Any) -> None:
    """Raise ConnectorFailure if an answer, or an event of a stream, reports an error in one of the usual ways."""
    if isinstance(data, Mapping) and (error := reported_error(data)) is not None:
        raise bad_answer(f"the agent reports an error: {printable(json.dumps(error))}")


def find_response(data: Any, depth: int = 3) -> TurnData:
    """Find messages, usage, cost and model where agents usually have them. Raises ConnectorFailure.

    depth: levels of nested objects such as {"output": {"message": ...}} to search.
    """
    if isinstance(data, str | list):
        return TurnData(response=data)
    if not isinstance(data, Mapping):
        raise bad_answer(f"{shown(data)}, wanted an object with a message")
    check_reported(data)
    usage, cost, model = first_of(data, _USAGES), first_of(data, _COSTS), data.get("model")
    about = TurnData(
        usage=usage if isinstance(usage, Mapping) else None,
        cost=("USD", to_cost(cost, "cost")) if isinstance(cost, int | float) else None,
        model=model if isinstance(model, str) else None,
    )
    text = next((data[key] for key in TEXT_KEYS if isinstance(data.get(key), str)), None)
    try:
        if read_one(data) is not None:
            return about._replace(response=data)
    except InvalidInput as problem:
        if text is None or "role" in data:  # a message is read whole or not at all
            raise bad_answer(str(problem)) from None
    calls, legacy = first_of(data, CALL_LISTS), first_of(data, ("function_call", "functionCall"))
    if text is not None or calls or legacy:
        message = {"role": "assistant", "content": text, "tool_calls": calls or None, "function_call": legacy}
        return about._replace(response=message)
    for key in _NESTED:
        inner = data.get(key)
        if depth and (isinstance(inner, list) or (isinstance(inner, Mapping) and inner)):
            if key == "message" and isinstance(inner, Mapping):
                inner = {"role": "assistant", **inner}
            found = find_response(inner, depth - 1)
            return found._replace(
                usage=found.usage or about.usage,
                cost=found.cost or about.cost,
                model=found.model or about.model,
            )
    raise bad_answer(
        f"{shown(data)}, wanted a known key with the answer, such as message, messages, "
        "choices, content or text; set config.messagesPath or config.textPath to the "
        "path of the answer"
    )


def to_cost(value: Any, path: str) -> float:
    """Check and convert an amount of US dollars. Raises ConnectorFailure."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise bad_answer(f"{path}: {shown(value)}, wanted US dollars, 0 or more")
    try:
        return float(value)
    except OverflowError:
        raise bad_answer(f"{path}: got a number of hundreds of digits, wanted US dollars") from None


def to_invocation(found: TurnData, max_messages: int, source: Any = None) -> context_pb2.Invocation:
    """Convert the found data to the answer of a turn: only messages after the user's last one.

    source: the whole answer of the agent, if calls may be in it beside the found data.

    Raises ConnectorFailure.
    """
    response = found.response
    if isinstance(response, list) and len(response) > max_messages:
        raise bad_answer(f"the answer has {len(response)} messages, wanted at most {max_messages}")
    try:
        context = turn_to_pb(found)
    except InvalidInput as problem:
        raise bad_answer(re.sub("^response", "answer", problem.message)) from None
    invocation = context.last_invocation
    start = max((index for index, one in enumerate(context.messages, 1) if one.role == "user"), default=0)
    invocation.ClearField("messages")
    invocation.messages.extend(context.messages[start:])
    check_messages(invocation, max_messages)
    invocation.messages[-1].unread_calls.extend(unread_calls(source, map(calls_of, context.messages)))
    return invocation


def check_messages(invocation: context_pb2.Invocation, max_messages: int) -> None:
    """Raise ConnectorFailure for an answer without a valid message of the agent, or with too many messages."""
    messages = invocation.messages
    if not messages:
        raise bad_answer("the answer has no message of the agent")
    if len(messages) > max_messages:
        raise bad_answer(f"the answer has {len(messages)} messages, wanted at most {max_messages}")
    for index, message in enumerate(messages):
        if message.role not in ("assistant", "tool"):
            raise bad_answer(f"messages[{index}].role: got {message.role!r}, wanted assistant or tool")
    last = messages[-1]
    try:
        silent = last.role != "tool" and not is_answer(last)
        said = (
            last.role == "tool" or last.tool_calls or last.HasField("refusal") or message_text(last).strip()
        )
    except InvalidInput as problem:
        raise bad_answer(f"messages[{len(messages) - 1}]: {problem}") from None
    if not said and invocation.metadata.fields["finish_reason"].string_value == "length":
        # Also for the text "", which would be an answer: every check for absence would pass on it.
        raise bad_answer(
            "the answer has no content: the model has reached its limit of tokens (finish_reason length); raise the "
            "limit, for example max_completion_tokens in config.parameters; a model's reasoning counts, too"
        )
    if silent:
        raise bad_answer(
            f"messages[{len(messages) - 1}]: got no content, tool calls or refusal, wanted one of them"
        )


def set_times(invocation: context_pb2.Invocation, seconds: float, first_seconds: float | None) -> None:
    """Set the latency and, for a streamed answer, the time to the first token."""
    duration_to_pb(seconds, invocation.latency)
    if first_seconds is not None:
        duration_to_pb(first_seconds, invocation.time_to_first_token)
