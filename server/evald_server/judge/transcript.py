"""The judged turn as records for the fence: who said what, which tools were called, what they answered.

A record says what was there and nothing else: a message without text has no `content`, a tool's
result is a tool's result, and arguments are what the model wrote.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from evald.chat import Message, ToolCall
from evald.context import EvaluatorContext
from evald.strict_json import no_constant

Record: TypeAlias = dict[str, Any]
"""One line inside the fence."""

_SYSTEM_ROLES: Final = frozenset({"system", "developer"})


class View(NamedTuple):
    """What of the context a judge is shown.

    history: the whole conversation, not only the last user message and the turn.
    expected: the reference. system: system and developer messages.
    """

    history: bool = True
    expected: bool = False
    system: bool = False


def records(ctx: EvaluatorContext, view: View) -> Iterator[Record]:
    """The conversation, oldest first, then the reference."""
    tools: dict[str, str] = {}
    for part, message in _shown(ctx, view):
        yield {"part": part, **_of_message(message, tools)}
    if view.expected:
        yield from _of_expected(ctx)


def size(ctx: EvaluatorContext, view: View) -> int:
    """About how many characters the conversation has, as far as it is shown."""
    return sum(
        len(message.text) + sum(len(call.arguments) for call in message.tool_calls)
        for _, message in _shown(ctx, view)
    )


def has_expected(ctx: EvaluatorContext) -> bool:
    """Whether the context has any reference."""
    expected = ctx.expected
    return expected.text is not None or expected.has_data or bool(expected.messages)


def _shown(ctx: EvaluatorContext, view: View) -> Iterator[tuple[str, Message]]:
    """The messages, each with the part that it belongs to."""
    turn = ctx.turn_messages
    history = _before(ctx.messages, turn)
    if not view.history:
        history = _last_asked(history)
    for part, messages in (("history", history), ("turn", turn)):
        for message in messages:
            if view.system or message.role not in _SYSTEM_ROLES:
                yield part, message


def _before(messages: Sequence[Message], turn: Sequence[Message]) -> Sequence[Message]:
    """What came before the turn. The turn should be the conversation's tail; when it is not, nothing is
    left out."""
    start = len(messages) - len(turn)
    if start < 0 or any(
        one.role != other.role or one.text != other.text
        for one, other in zip(messages[start:], turn, strict=True)
    ):
        return messages
    return messages[:start]


def _last_asked(history: Sequence[Message]) -> Sequence[Message]:
    for position in range(len(history) - 1, -1, -1):
        if history[position].role == "user":
            return history[position:]
    return ()


def _of_message(message: Message, tools: dict[str, str]) -> Record:
    record: Record = {"role": message.role}
    if message.name is not None:
        record["name"] = message.name
    if message.tool_call_id is not None:
        record["tool_call_id"] = message.tool_call_id
        if message.tool_call_id in tools:
            record["tool"] = tools[message.tool_call_id]
    if not message.is_null:
        record["content"] = message.text
    if message.refusal is not None:
        record["refusal"] = message.refusal
    calls = message.tool_calls
    if calls:
        record["tool_calls"] = [_of_call(call) for call in calls]
        tools.update((call.id, call.name) for call in calls if call.id)
    return record


def _of_call(call: ToolCall) -> Record:
    record: Record = {"id": call.id} if call.id else {}
    return {**record, "name": call.name, "arguments": _arguments(call.arguments)}


def _of_expected(ctx: EvaluatorContext) -> Iterator[Record]:
    expected = ctx.expected
    if expected.text is not None:
        yield {"part": "expected", "content": expected.text}
    if expected.has_data:
        yield {"part": "expected", "data": expected.data}
    tools: dict[str, str] = {}
    for message in expected.messages:
        yield {"part": "expected", **_of_message(message, tools)}


def _arguments(text: str) -> Any:
    """The arguments as data where that says the same as the text that the model wrote, else the text."""
    try:
        data = _EXACT_JSON.decode(text)
        json.dumps(data, allow_nan=False)  # 1e999 is read as infinity
    except (ValueError, RecursionError):
        return text
    return data


def _without_duplicates(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    """Of two equal keys a decoder keeps one, and a tool perhaps the other."""
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("a key stands twice")
    return data


_EXACT_JSON: Final = json.JSONDecoder(parse_constant=no_constant, object_pairs_hook=_without_duplicates)
