"""Convert chat messages to protobuf, from OpenAI's format, its variants, and other frameworks' formats.

- content: text, a list of blocks, null or absent;
- a tool call as `{id, type, function: {name, arguments}}`, `{name, args}`,
  `{tool, input}` or `{function: name, arguments}`, its arguments as JSON text
  or as data;
- the legacy `function_call` of an assistant message, which becomes a tool
  call, and the legacy role "function", which becomes "tool".

This module reads OpenAI's format. `shapes` first converts all other formats,
and content blocks, to it.

Unknown keys of a message are stored in its metadata; unknown keys of a tool
call are dropped. What looks like a tool call and is not read goes to the
message's `unread_calls`.
Invalid data raise InvalidInput with their path.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from .blocks import MAX_BLOCKS, TooMany, calls_of
from .call_shapes import TEXT_KEYS, unread_calls
from .chat import ROLES
from .errors import InvalidInput, errors_below
from .fields import duration_to_pb, milliseconds, plain, seconds, shown, snake, text
from .strict_json import STRICT_JSON
from .structs import MAX_DEPTH, RepeatedField, check_levels, fill_fields

if TYPE_CHECKING:
    from .shapes import Reading
    from .v1 import message_pb2

    Messages = RepeatedField[message_pb2.ChatMessage]


# 150,000 is enough for 5,000 messages with 30 keys and values each, which take about 0.2 s to read.
MAX_NODES: Final = 150_000
# A message is not a database.
MAX_UNKNOWN_KEYS: Final = 1000

# Keys of messages that have a role and a text, but are not in OpenAI's format.
_SHAPED: Final = frozenset(("parts", "type", "kind", "source", "author", "toolInvocations", "audio"))
# Keys that other frameworks use for the data of `content`.
_TEXT_ELSEWHERE: Final = (TEXT_KEYS - {"content"}) | {"parts", "blocks"}
# The keys of calls that are read.
_CALL_KEYS: Final = frozenset(("tool_calls", "function_call"))

_READ_OF_CALLS: Final = frozenset(
    ("id", "call_id", "type", "function", "custom", "name", "tool", "arguments", "args", "input")
)

_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|[,:\[{]', re.DOTALL)


def check_nodes(data: str, path: str) -> None:
    """Raise TooMany for JSON text with too many keys and values, before decoding it."""
    # A cheap upper bound first. Only if it exceeds the limit, count without the signs within strings.
    # Count one sign at a time: for 16 MiB each takes 20 ms, in which no other thread runs.
    if len(data) <= MAX_NODES or sum([data.count(sign) for sign in ",:[{"]) <= MAX_NODES:
        return
    nodes = strings = 0
    for token in _TOKEN.finditer(data):
        if token[0][0] == '"':
            strings += 1
        else:
            nodes += 1
        if nodes > MAX_NODES or strings > 2 * MAX_NODES:
            raise TooMany(path, "or more keys and values", nodes if nodes > MAX_NODES else strings, MAX_NODES)


def parse_messages_json(
    data: str | bytes,
    into: "Messages",
    *,
    max_messages: int,
    path: str = "messages",
) -> None:
    """Append the messages of a JSON array in OpenAI's format.

    path: location of the text, for errors.

    Raises InvalidInput for invalid JSON, NaN, duplicate keys, too many levels, data that are not a list of
    messages, and more than `max_messages` or any other limit. `into` may then contain a part of the messages.
    """
    try:
        decoded = data.decode() if isinstance(data, bytes) else data
        check_nodes(decoded, path)
        messages = STRICT_JSON.decode(decoded)
    except TooMany:
        raise
    except RecursionError:
        raise InvalidInput(path, "nested too deep", f"at most {MAX_DEPTH} levels") from None
    except UnicodeDecodeError as problem:
        raise InvalidInput(path, f"no UTF-8 at byte {problem.start}", "JSON text") from None
    except ValueError as problem:
        raise InvalidInput(
            path, f"not valid JSON: {problem}", "the JSON text of a list of messages"
        ) from None
    if not isinstance(messages, list):
        raise InvalidInput(path, shown(messages), "a list of messages")
    if len(messages) > max_messages:
        raise TooMany(path, "messages", len(messages), max_messages)
    fill_messages(messages, into, path, max_messages=max_messages)


def fill_messages(
    messages: Any,
    into: "Messages",
    path: str = "messages",
    *,
    max_messages: int | None = None,
) -> "Reading | None":
    """Append messages: an iterable of messages in any known format, or one object that contains them.

    max_messages: limit of messages; one message of another framework may become several.
    path: as in `parse_messages_json`.

    Returns the data about the invocation in the messages; None if there are none. Raises InvalidInput.
    """
    add = into.add
    levels = MAX_DEPTH - 2  # without the levels of the list and the message
    offset, blocks = len(into), 0
    found: Any = None
    ids: set[str] = set()
    whole = _is_one(messages, path)
    for index, message in enumerate((messages,) if whole else messages):
        try:
            if _is_plain(message):
                fill_message(message, add(), levels)
                continue
            from .shapes import Readings, read_item

            reading = read_item(message, ids)
            start = len(into)
            if max_messages is not None and start - offset + len(reading.messages) > max_messages:
                raise TooMany("", "messages", start - offset + len(reading.messages), max_messages)
            for canonical in reading.messages:
                pb = add()
                fill_message(canonical, pb, levels)
                blocks += len(pb.blocks.items) if pb.HasField("blocks") else 0
            if blocks > MAX_BLOCKS:
                raise TooMany("", "content blocks", blocks, MAX_BLOCKS)
            found = found or Readings()
            found.add(start - offset, reading)
        except InvalidInput as problem:
            raise problem.below(path if whole else f"{path}[{index}]") from None
        except UnicodeEncodeError:
            raise InvalidInput(
                path if whole else f"{path}[{index}]", "half of a surrogate pair", "text that UTF-8 can carry"
            ) from None
    if found is None:
        return None
    from .shapes import turn_start

    summed: Reading = found.summed([], turn_start([pb.role for pb in into[offset:]]))
    return summed


def _is_one(messages: Any, path: str) -> bool:
    """Return whether the value is one object, not a list of messages. Raises InvalidInput for text and bytes."""
    if messages.__class__ is list:
        return False
    if isinstance(messages, str | bytes):
        raise InvalidInput(path, shown(messages), "a list of messages")
    if isinstance(messages, Mapping) or hasattr(messages, "model_dump") or not isinstance(messages, Iterable):
        return True
    return (
        isinstance(messages, tuple) and len(messages) == 2 and all(isinstance(item, str) for item in messages)
    )


def _is_plain(message: Any) -> bool:
    """Return whether the value is a message in OpenAI's format without content blocks, which most are."""
    if message.__class__ is not dict:
        return False
    role, content = message.get("role"), message.get("content")
    return (
        role.__class__ is str
        and role in ROLES
        and (content is None or content.__class__ is str)
        and _SHAPED.isdisjoint(message)
    )


def message_roles(messages: Iterable[Any], path: str = "messages") -> list[str]:
    """Return the role of each message, in any known format. Raises InvalidInput with the path of an unreadable one.

    A message of another framework may become several: it is the user's if one of them is, else the agent's.
    """
    found = []
    for index, message in enumerate(messages):
        if _is_plain(message):
            found.append(message["role"])
            continue
        from .shapes import read_item

        try:
            roles = [one["role"] for one in read_item(message).messages]
        except InvalidInput as problem:
            raise problem.below(f"{path}[{index}]") from None
        found.append(
            next((role for role in ("user", "assistant") if role in roles), roles[0] if roles else "")
        )
    return found


def fill_message(message: Any, pb: Any, levels: int) -> None:
    """Fill one message. levels: maximum levels of its values. Raises InvalidInput."""
    if message.__class__ is not dict:
        message = plain(message)
        if not isinstance(message, Mapping):
            raise InvalidInput("", shown(message), "a message: an object with `role` and `content`")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        got = "missing" if role is None else shown(role)
        raise InvalidInput("role", got, 'text such as "user", "assistant" or "tool"')
    pb.role = "tool" if role == "function" else role
    others: dict[str, Any] | None = None
    for key, value in message.items():
        if key == "role" or value is None:
            continue
        if key == "content":
            _fill_content(value, pb, levels)
        elif key == "tool_calls":
            _fill_tool_calls(value, pb, levels)
        elif key == "tool_call_id":
            pb.tool_call_id = _text(value, key)
        elif key == "name":
            pb.name = _text(value, key)
        else:
            others = others or {}
            others[key] = value
    if others:
        if len(others) > MAX_UNKNOWN_KEYS:
            raise TooMany("", "unknown keys", len(others), MAX_UNKNOWN_KEYS)
        _fill_others(others, pb, levels)
        if "unread_calls" not in others:  # else a reader of another format has looked for them
            data = {key: value for key, value in message.items() if _key(key) not in _CALL_KEYS}
            pb.unread_calls.extend(unread_calls(data, [calls_of(pb)]))


def _key(key: Any) -> Any:
    return snake(key) if isinstance(key, str) else key


def _fill_others(others: dict[Any, Any], pb: Any, levels: int) -> None:
    """Fill in the rare keys of a message: known ones, also in camelCase, and unknown ones as metadata."""
    unknown: dict[Any, Any] = {}
    metadata: Mapping[Any, Any] = {}
    for key, value in others.items():
        name = _key(key)
        if name in ("id", "refusal", "tool_call_id"):
            setattr(pb, name, _text(value, key))
        elif name == "tool_calls":
            _fill_tool_calls(value, pb, levels)
        elif name == "function_call":
            with errors_below(key):
                _fill_tool_call(value, pb.tool_calls.add(), levels - 1)
        elif name == "unread_calls":
            pb.unread_calls.extend(_paths(value, key))
        elif name == "metadata":
            if not isinstance(value, Mapping):
                raise InvalidInput(key, shown(value), "an object")
            metadata = value
        else:
            unknown[key] = value
    if unknown:
        if not pb.tool_calls and pb.WhichOneof("content") is None and not pb.refusal:
            _check_text(unknown)
        # levels + 1: these keys are on the message's own level.
        fill_fields({key: unknown[key] for key in unknown.keys() - metadata}, pb.metadata.fields, levels + 1)
    if metadata:
        with errors_below("metadata"):
            fill_fields(metadata, pb.metadata.fields, levels)


def _check_text(unknown: Mapping[str, Any]) -> None:
    """Raise InvalidInput for an unknown key with the text of an otherwise empty message."""
    for key, value in unknown.items():
        if _key(key) in _TEXT_ELSEWHERE and value and isinstance(value, str | list | Mapping):
            raise InvalidInput(
                key, "looks like the text of a message that has no `content`", "it in `content`"
            )


def _text(value: Any, path: str) -> str:
    if value.__class__ is str:
        return value
    return text(value, path)


def _paths(value: Any, key: str) -> list[str]:
    if not isinstance(value, list | tuple):
        raise InvalidInput(key, shown(value), "a list of paths")
    return [_text(path, f"{key}[{index}]") for index, path in enumerate(value)]


def _fill_content(content: Any, pb: Any, levels: int) -> None:
    if content.__class__ is str or isinstance(content, str):
        pb.text = content
        return
    if isinstance(content, Mapping | bytes) or not isinstance(content, Iterable):
        raise InvalidInput("content", shown(content), "text, a list of blocks or null")
    if isinstance(content, list | tuple) and len(content) > MAX_BLOCKS:
        raise TooMany("content", "content blocks", len(content), MAX_BLOCKS)
    pb.blocks.SetInParent()
    add = pb.blocks.items.add
    for index, block in enumerate(content):
        try:
            _fill_block(block, add(), levels - 2)
        except InvalidInput as problem:
            raise problem.below(f"content[{index}]") from None


def _fill_block(block: Any, pb: Any, levels: int) -> None:
    block = plain(block)
    if isinstance(block, str):
        pb.type, pb.text = "text", block
        return
    if not isinstance(block, Mapping):
        raise InvalidInput("", shown(block), "text, or an object with `type`")
    others: dict[Any, Any] = {}
    for key, value in block.items():
        if key == "type":
            pb.type = _text(value, key)
        elif key == "text" and isinstance(value, str):
            pb.text = value
        elif value is not None:
            others[key] = value
    if not pb.type:
        if not pb.HasField("text"):
            raise InvalidInput("type", "missing", 'text such as "text" or "image_url"')
        pb.type = "text"
    if others:
        fill_fields(others, pb.fields.fields, levels + 1)


def _fill_tool_calls(calls: Any, pb: Any, levels: int) -> None:
    if not isinstance(calls, list | tuple):
        raise InvalidInput("tool_calls", shown(calls), "a list of tool calls")
    add = pb.tool_calls.add
    for index, call in enumerate(calls):
        try:
            _fill_tool_call(call, add(), levels - 2)
        except InvalidInput as problem:
            raise problem.below(f"tool_calls[{index}]") from None
        if isinstance(call, Mapping) and not _READ_OF_CALLS.issuperset(call):
            others = {key: value for key, value in call.items() if key not in _READ_OF_CALLS}
            pb.unread_calls.extend(unread_calls({f"tool_calls[{index}]": others}, []))


def _fill_tool_call(call: Any, pb: Any, levels: int) -> None:
    """Fill in one tool call of any form. levels: maximum levels of its values. Raises InvalidInput."""
    if call.__class__ is not dict:
        call = plain(call)
        if not isinstance(call, Mapping):
            raise InvalidInput("", shown(call), "a tool call: an object with `function`")
    name: Any = None
    arguments: Any = None
    for key, value in call.items():
        if value is None:
            continue
        if key == "function":
            if isinstance(value, Mapping):
                name = _only(name, value.get("name"), "function.name")
                arguments = _only(
                    arguments, _arguments(value.get("arguments"), levels - 1, "function.arguments"), key
                )
            else:
                name = _only(name, value, key)
        elif key == "custom" and isinstance(value, Mapping):  # OpenAI's custom tools have text as input
            name = _only(name, value.get("name"), "custom.name")
            arguments = _only(arguments, value.get("input"), "custom.input")
        elif key in ("id", "call_id"):  # of the two ids, results name the `call_id`
            given = _text(value, key)
            pb.id = (given or pb.id) if key == "call_id" else (pb.id or given)
        elif key == "type":
            pb.type = _text(value, key)
        elif key in ("name", "tool"):
            name = _only(name, value, key)
        elif key in ("arguments", "args", "input"):
            arguments = _only(arguments, _arguments(value, levels, key), key)
        else:
            _fill_call_other(key, value, pb, levels)
    if name.__class__ is not str or not name:
        got = "missing" if name is None else shown(name)
        raise InvalidInput("function.name", got, "the name of the function that is called")
    function = pb.function
    function.name = name
    if arguments is not None:
        function.arguments = arguments


def _fill_call_other(key: Any, value: Any, pb: Any, levels: int) -> None:
    name = snake(key) if isinstance(key, str) else key
    if name == "duration_ms":
        duration_to_pb(milliseconds(value, key), pb.duration)
    elif name in ("duration", "duration_seconds"):
        duration_to_pb(seconds(value, key), pb.duration)
    else:
        check_levels(value, levels)


def _only(known: Any, value: Any, path: str) -> Any:
    """Return a call's name or arguments, which may be given in two places. known: the value of the first place.

    Raises InvalidInput if the two differ, because checks would see only one of them.
    """
    if known is None or value is None or known == value or _same_json(known, value):
        return known if value is None else value
    other = shown(known).removeprefix("got ")
    raise InvalidInput(path, f"{shown(value)}, and {other} in another place", "one value")


def _same_json(one: Any, other: Any) -> bool:
    try:
        return bool(STRICT_JSON.decode(one) == STRICT_JSON.decode(other))
    except (TypeError, ValueError, RecursionError):
        return False


def _arguments(arguments: Any, levels: int, path: str) -> str | None:
    """Return the arguments of a tool call as JSON text. Raises InvalidInput."""
    if arguments is None or arguments.__class__ is str:
        return arguments
    try:
        check_levels(arguments, levels)
        return json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except InvalidInput as problem:
        raise problem.below(path) from None
    except (TypeError, ValueError) as problem:
        raise InvalidInput(path, f"not JSON-like: {problem}", "JSON text, or JSON-like data") from None
