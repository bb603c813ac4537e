"""Chat messages into protobuf, in OpenAI's shape and in those of its relatives.

- content: text, a list of blocks, null or absent;
- a tool call as `{id, type, function: {name, arguments}}`, `{name, args}`,
  `{tool, input}` or `{function: name, arguments}`, its arguments as JSON text
  or as data;
- the legacy `function_call` of an assistant message, which becomes a tool
  call, and the legacy role "function", which becomes "tool".

Keys of a message that the contract does not know go to its metadata; keys of
a tool call that it does not know are dropped. Whatever cannot be sent raises
InvalidInput with its path.
"""

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from .errors import InvalidInput
from .fields import duration_to_pb, number, seconds, shown, snake, text
from .responses import plain
from .strict_json import no_constant
from .structs import MAX_DEPTH, TooDeep, check_levels, fill_fields

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    from .v1 import message_pb2

    Messages = RepeatedCompositeFieldContainer[message_pb2.ChatMessage]


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"an object has the key {key[:60]!r} twice")
            seen.add(key)
    return found


# One for all calls: making a decoder takes as long as decoding a short conversation.
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=no_constant)


def parse_messages_json(
    data: str | bytes,
    into: "Messages",
    *,
    max_messages: int,
    max_depth: int = MAX_DEPTH,
    path: str = "messages",
) -> None:
    """Append the messages of a JSON array in OpenAI's format.

    max_depth: most levels, the array itself counted. path: where the text
    is, for errors. Raises InvalidInput for what is no JSON, has NaN or the
    same key twice, is nested too deep, is no list of messages, or holds more
    than `max_messages`; `into` may then hold a part of them.
    """
    try:
        messages = _DECODER.decode(data.decode() if isinstance(data, bytes) else data)
    except RecursionError:
        raise InvalidInput(path, "nested too deep", f"at most {max_depth} levels") from None
    except UnicodeDecodeError as problem:
        raise InvalidInput(path, f"no UTF-8 at byte {problem.start}", "JSON text") from None
    except ValueError as problem:
        raise InvalidInput(
            path, f"not valid JSON: {problem}", "the JSON text of a list of messages"
        ) from None
    if not isinstance(messages, list):
        raise InvalidInput(path, shown(messages), "a list of messages")
    if len(messages) > max_messages:
        raise InvalidInput(path, f"{len(messages)} messages", f"at most {max_messages}")
    fill_messages(messages, into, path, max_depth=max_depth)


def fill_messages(
    messages: Iterable[Any], into: "Messages", path: str = "messages", *, max_depth: int = MAX_DEPTH
) -> None:
    """Append messages: mappings in OpenAI's shape, or objects with `model_dump`. Raises InvalidInput."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise InvalidInput(path, shown(messages), "a list of messages")
    add = into.add
    levels = max_depth - 2  # the list and the message are two of them
    for index, message in enumerate(messages):
        try:
            fill_message(message, add(), levels)
        except TooDeep as problem:
            raise problem.below(f"{path}[{index}]").of(max_depth) from None
        except InvalidInput as problem:
            raise problem.below(f"{path}[{index}]") from None
        except UnicodeEncodeError:
            raise InvalidInput(
                f"{path}[{index}]", "half of a surrogate pair", "text that UTF-8 can carry"
            ) from None


def fill_message(message: Any, pb: Any, levels: int) -> None:
    """Fill one message. levels: how many the values of its keys may have. Raises InvalidInput."""
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
        _fill_others(others, pb, levels)


def _fill_others(others: dict[Any, Any], pb: Any, levels: int) -> None:
    """Keys that are rare, spelled in camelCase or not the contract's."""
    unknown: dict[Any, Any] = {}
    metadata: Mapping[Any, Any] = {}
    for key, value in others.items():
        name = snake(key) if isinstance(key, str) else key
        if name in ("id", "refusal", "tool_call_id"):
            setattr(pb, name, _text(value, key))
        elif name == "tool_calls":
            _fill_tool_calls(value, pb, levels)
        elif name == "function_call":
            try:
                _fill_tool_call(value, pb.tool_calls.add(), levels - 1)
            except InvalidInput as problem:
                raise problem.below(key) from None
        elif name == "metadata":
            if not isinstance(value, Mapping):
                raise InvalidInput(key, shown(value), "an object")
            metadata = value
        else:
            unknown[key] = value
    if unknown:
        # levels + 1: their own level is the message's.
        fill_fields({key: unknown[key] for key in unknown.keys() - metadata}, pb.metadata.fields, levels + 1)
    if metadata:
        try:
            fill_fields(metadata, pb.metadata.fields, levels)
        except InvalidInput as problem:
            raise problem.below("metadata") from None


def _text(value: Any, path: str) -> str:
    if value.__class__ is str:
        return value
    return text(value, path)


def _fill_content(content: Any, pb: Any, levels: int) -> None:
    if content.__class__ is str or isinstance(content, str):
        pb.text = content
        return
    if isinstance(content, Mapping | bytes) or not isinstance(content, Iterable):
        raise InvalidInput("content", shown(content), "text, a list of blocks or null")
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


def _fill_tool_call(call: Any, pb: Any, levels: int) -> None:
    """One call in any of its shapes. levels: how many its values may have."""
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
                name, arguments = value.get("name"), value.get("arguments")
                if arguments is not None and arguments.__class__ is not str:
                    arguments = _dump(arguments, levels - 1, "function.arguments")
            else:
                name = value
        elif key == "id":
            pb.id = _text(value, key)
        elif key == "type":
            pb.type = _text(value, key)
        elif key in ("name", "tool"):
            name = value
        elif key in ("arguments", "args", "input"):
            arguments = value if value.__class__ is str else _dump(value, levels, key)
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
        duration_to_pb(number(value, key, unit="milliseconds") / 1000, pb.duration)
    elif name in ("duration", "duration_seconds"):
        duration_to_pb(seconds(value, key), pb.duration)
    else:
        check_levels(value, levels)


def _dump(arguments: Any, levels: int, path: str) -> str:
    try:
        check_levels(arguments, levels)
        return json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except InvalidInput as problem:
        raise problem.below(path) from None
    except (TypeError, ValueError) as problem:
        raise InvalidInput(path, f"not JSON-like: {problem}", "JSON text, or JSON-like data") from None
