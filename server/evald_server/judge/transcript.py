"""The judged turn as encoded records: the messages, their roles, the tool calls and the tools' results.

A record contains only what the context contains: a message without text has no `content`, a tool's result
stays a tool's result, and arguments are as the model wrote them. No encoded record can end its fence, and none
contains characters that are invisible to the judge.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from evald.chat import Message, ToolCall
from evald.context import EvaluatorContext
from evald.strict_json import STRICT_JSON

Record: TypeAlias = dict[str, Any]
"""One line inside the fence."""

_SYSTEM_ROLES: Final = frozenset({"system", "developer"})

# Characters escaped in addition to JSON's: those of markup and of chat templates ("<|im_start|>"), and invisible ones:
# controls, bidirectional overrides, zero-width, filling and tag characters, variation selectors, private use, lone
# surrogates. Escaping makes hidden instructions visible to the judge.
_ESCAPED: Final = re.compile(
    "[<>&`\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff]"
)


class View(NamedTuple):
    """The parts of the context that a judge is shown.

    history: the whole conversation, not only the last user message and the turn.
    expected: the reference. system: system and developer messages.
    """

    history: bool = True
    expected: bool = False
    system: bool = False


def encode(record: Mapping[str, Any]) -> str:
    """Encode JSON-like data as one line without characters that could end the fence or are invisible.

    Raises ValueError for NaN and infinity, RecursionError for data nested too deep.
    """
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    return _ESCAPED.sub(lambda match: _escape(match[0]), text)


def records(ctx: EvaluatorContext, view: View) -> Iterator[Record]:
    """Yield the conversation, oldest message first, then the reference."""
    tools: dict[str, str] = {}
    for part, message in _shown(ctx, view):
        yield {"part": part, **_message_record(message, tools)}
    if view.expected:
        yield from _expected_records(ctx)


def count_characters(ctx: EvaluatorContext, view: View) -> int:
    """Return the approximate number of characters shown of the conversation."""
    return sum(
        len(message.text) + sum(len(call.arguments) for call in message.tool_calls)
        for _, message in _shown(ctx, view)
    )


def has_expected(ctx: EvaluatorContext) -> bool:
    """Return whether the context has any reference."""
    expected = ctx.expected
    return expected.text is not None or expected.has_data or bool(expected.messages)


@lru_cache(maxsize=4096)
def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def _shown(ctx: EvaluatorContext, view: View) -> Iterator[tuple[str, Message]]:
    """Yield each message that is shown, with its part: "history" or "turn". Raises OutOfTime."""
    turn = ctx.turn_messages
    history = _before_turn(ctx.messages, turn)
    if not view.history:
        history = _from_last_user_message(history)
    for part, messages in (("history", history), ("turn", turn)):
        for message in messages:
            ctx.check_time()
            if view.system or message.role not in _SYSTEM_ROLES:
                yield part, message


def _before_turn(messages: Sequence[Message], turn: Sequence[Message]) -> Sequence[Message]:
    """Return the messages before the turn. The turn should be the conversation's end; if not, return all messages."""
    start = len(messages) - len(turn)
    if start < 0 or any(
        one.role != other.role or one.text != other.text
        for one, other in zip(messages[start:], turn, strict=True)
    ):
        return messages
    return messages[:start]


def _from_last_user_message(history: Sequence[Message]) -> Sequence[Message]:
    for position in range(len(history) - 1, -1, -1):
        if history[position].role == "user":
            return history[position:]
    return ()


def _message_record(message: Message, tools: dict[str, str]) -> Record:
    """Return a message's record. tools: tool names by call id; the message's calls are added."""
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
        record["tool_calls"] = [_call_record(call) for call in calls]
        tools.update((call.id, call.name) for call in calls if call.id)
    return record


def _call_record(call: ToolCall) -> Record:
    record: Record = {"id": call.id} if call.id else {}
    return {**record, "name": call.name, "arguments": _arguments(call.arguments)}


def _expected_records(ctx: EvaluatorContext) -> Iterator[Record]:
    expected = ctx.expected
    if expected.text is not None:
        yield {"part": "expected", "content": expected.text}
    if expected.has_data:
        yield {"part": "expected", "data": expected.data}
    tools: dict[str, str] = {}
    for message in expected.messages:
        yield {"part": "expected", **_message_record(message, tools)}


def _arguments(text: str) -> Any:
    """Return the arguments as parsed JSON if they can be parsed and encoded again, else the text."""
    try:
        data = STRICT_JSON.decode(text)
        json.dumps(data, allow_nan=False)  # 1e999 is read as infinity
    except (ValueError, RecursionError):
        return text
    return data
