"""Recorded conversations: reading from JSON, a JSON list or JSON Lines, and splitting into turns.

A turn is the agent's activity after a user message, or before the first one.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

from evald.fields import first_of
from evald.strict_json import STRICT_JSON

from ..input_files import MAX_BYTES, TOO_LONG
from ..suites import recorded_turns
from .exit_codes import CommandError, usage_error

if TYPE_CHECKING:
    from evald import Turn

_SHAPE: Final = (
    'wanted an object with "messages", for example {"messages": [{"role": "user", "content": "Hi"}]}'
)

# The keys that belong to a conversation as a whole.
_SHARED: Final = ("scenario", "persona", "expected", "metadata", "conversation_id", "run_id")


class RecordedConversation(NamedTuple):
    """One conversation of an input.

    id: its own id, or one made from its position in the input. place: "FILE:LINE". data: the parsed object.
    """

    id: str
    place: str
    messages: Sequence[Mapping[str, Any]]
    data: Mapping[str, Any]


def read_conversations(names: Sequence[str]) -> Iterator[RecordedConversation]:
    """Read the conversations of several inputs. Raises CommandError with the line of an invalid one."""
    for name in names:
        with _open(name) as stream:
            yield from _read(stream, "stdin" if name == "-" else name)


@contextmanager
def _open(name: str) -> Iterator[TextIO]:
    if name == "-":
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")  # type: ignore[union-attr]
        yield sys.stdin
        return
    try:
        stream = Path(name).open(encoding="utf-8-sig")  # noqa: SIM115 - closed below
    except OSError as problem:
        raise usage_error(f"{name}: {problem.strerror}") from None
    with stream:
        yield stream


def _read(stream: TextIO, name: str) -> Iterator[RecordedConversation]:
    """Read JSON Lines one at a time, so that a file may be larger than the memory."""
    try:
        lines = enumerate(_lines(stream, name), start=1)
        number, line = next(((n, text) for n, text in lines if text.strip()), (0, ""))
        if not number:
            raise usage_error(f"{name}: empty", _SHAPE)
        try:
            first = STRICT_JSON.decode(line)
        except (ValueError, RecursionError) as problem:
            # The first line of a multi-line document is not valid JSON by itself.
            yield from _document(line, _rest(stream, name), name, number, problem)
            return
        if isinstance(first, list):
            after = next((n for n, text in lines if text.strip()), None)
            if after:
                raise usage_error(f"{name}:{after}: a list of messages must be the only value in the file")
            yield from _list(first, name, number)
            return
        yield _conversation(first, f"{name}:{number}", name, number)
        for number, line in lines:
            if line.strip():
                yield _conversation(_parse(line, name, number), f"{name}:{number}", name, number)
    except UnicodeDecodeError as problem:
        raise usage_error(f"{name}: not UTF-8: {problem.reason} at byte {problem.start}") from None


def _lines(stream: TextIO, name: str) -> Iterator[str]:
    for number in count(1):
        line = stream.readline(MAX_BYTES + 1)
        if len(line) > MAX_BYTES:
            raise _too_long(f"{name}:{number}")
        if not line:
            return
        yield line


def _rest(stream: TextIO, name: str) -> str:
    """Return the rest of a document after its first line."""
    text = stream.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise _too_long(name)
    return text


def _too_long(place: str) -> CommandError:
    return usage_error(
        f"{place}: {TOO_LONG}",
        "write JSON Lines with one conversation per line; the server's max_message_bytes, 16 MiB by default, limits one",
    )


def _parse(line: str, name: str, number: int) -> Any:
    try:
        return STRICT_JSON.decode(line)
    except (ValueError, RecursionError) as problem:
        raise _not_json(problem, name, number) from None


def _not_json(problem: Exception, name: str, first_line: int) -> CommandError:
    if isinstance(problem, json.JSONDecodeError):
        line = first_line + problem.lineno - 1
        return usage_error(f"{name}:{line}: not valid JSON: {problem.msg} at column {problem.colno}", _SHAPE)
    return usage_error(f"{name}:{first_line}: not valid JSON: {problem}", _SHAPE)


def _document(
    line: str, rest: str, name: str, number: int, problem: Exception
) -> Iterator[RecordedConversation]:
    try:
        data = STRICT_JSON.decode(line + rest)
    except (ValueError, RecursionError) as other:
        # If the next line is an object by itself, the input is JSON Lines with an invalid first line.
        first_rest = next((text for text in rest.splitlines() if text.strip()), "")
        blamed = problem if _is_object(first_rest) else other
        raise _not_json(blamed, name, number) from None
    if isinstance(data, list):
        yield from _list(data, name, number)
    else:
        yield _conversation(data, name, name, 0)


def _is_object(line: str) -> bool:
    try:
        return isinstance(STRICT_JSON.decode(line), dict)
    except (ValueError, RecursionError):
        return False


def _list(items: list[Any], name: str, number: int) -> Iterator[RecordedConversation]:
    if items and all(isinstance(item, Mapping) and "messages" in item for item in items):
        for position, item in enumerate(items):
            yield _conversation(item, f"{name}[{position}]", name, position + 1)
    else:
        yield _conversation({"messages": items}, f"{name}:{number}", name, 0)


def _conversation(data: Any, place: str, name: str, number: int) -> RecordedConversation:
    if not isinstance(data, Mapping):
        raise usage_error(f"{place}: got {_kind(data)}, {_SHAPE}")
    messages = data.get("messages")
    if messages is None:
        # A context may contain only the last invocation.
        inner = first_of(data, ("lastInvocation", "last_invocation"))
        messages = inner.get("messages") if isinstance(inner, Mapping) else None
    if not isinstance(messages, list):
        got = f"only keys {', '.join(list(data)[:8]) or 'none'}" if messages is None else _kind(messages)
        raise usage_error(f"{place}: got {got}, wanted a list of messages", _SHAPE)
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise usage_error(
                f"{place}: messages[{position}]: got {_kind(message)}, wanted a message", _SHAPE
            )
    own = first_of(data, ("id", "conversation_id", "conversationId"))
    stem = Path(name).stem
    return RecordedConversation(
        str(own) if own is not None else f"{stem}:{number}" if number else stem, place, messages, data
    )


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def last_turn(conversation: RecordedConversation) -> "Turn":
    """Return the last turn with its history. Raises CommandError."""
    with _at(conversation):
        return recorded_turns.last_turn(conversation.data, recorded=True)


def every_turn(conversation: RecordedConversation) -> "Iterator[Turn]":
    """Yield every turn with its new messages. Latency, usage and cost are read from these messages."""
    with _at(conversation):
        bounds = recorded_turns.turn_bounds(conversation.messages)
    for start, end in bounds:
        with _at(conversation):
            usage = recorded_turns.usage_of(conversation.data, conversation.messages, start, end)
            data = {
                "messages": conversation.messages[start:end],
                "is_final": end == bounds[-1][1],
                **usage._asdict(),
            }
            turn = _turn(data)
        yield turn


def ends_unanswered(conversation: RecordedConversation) -> bool:
    """Return whether the agent has not answered the user's last message."""
    return recorded_turns.ends_unanswered(conversation.messages)


def session_base(conversation: RecordedConversation) -> "Turn":
    """Return the data that all turns of the conversation share, as the base of a session."""
    with _at(conversation):
        data = recorded_turns.context_data(conversation.data)
        return _turn({key: data[key] for key in _SHARED if key in data})


def _turn(data: Mapping[str, Any]) -> "Turn":
    from evald import Turn

    return Turn.from_dict(data, ignore_unknown=True)


@contextmanager
def _at(conversation: RecordedConversation) -> Iterator[None]:
    """Turn InvalidInput into CommandError with the place of the conversation."""
    from evald import InvalidInput

    try:
        yield
    except InvalidInput as problem:
        raise usage_error(f"{conversation.place}: {problem}") from None
