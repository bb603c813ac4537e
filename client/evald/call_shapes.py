"""Recognise tool calls by their shape, under whatever key a caller's data have them.

A call has a name and arguments, or a tool's name, a call's id or a type such as `tool_call`. The name may also be the
key of the arguments, and the whole a JSON text. What describes a tool (a name and a schema) is no call. Nothing below
`metadata` and `documents` is a call, and nothing in a call's arguments and results.
"""

import json
import re
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from .fields import plain, snake
from .reasoning import FENCE, is_between_backticks
from .strict_json import TooLarge, parse_json

# A caller's own data.
_NOT_READ: Final = frozenset(("metadata", "documents"))
# What a call returned is data.
_RESULTS: Final = frozenset(("output", "result", "response", "content", "artifact", "error"))
_ARGUMENTS: Final = frozenset(("args", "arg", "kwargs", "input", "inputs", "params", "parameters", "payload"))
_BEFORE_ARGUMENTS: Final = frozenset(
    ("tool", "function", "func", "fn", "call", "action", "method", "input", "raw")
)
_SCHEMAS: Final = frozenset(
    ("input_schema", "output_schema", "schema", "json_schema", "parameters_json_schema")
)
_TOOL_WORDS: Final = frozenset(("tool", "function", "func", "fn"))
_LISTS_OF_TOOLS: Final = frozenset(("tools", "functions", "definitions", "declarations"))
_CALL_WORDS: Final = frozenset(("call", "calls", "called", "invocation", "invocations"))
_DONE_WORDS: Final = _CALL_WORDS | {"used", "executed", "invoked"}
# Messages have 32 levels. Deeper data, of agents' whole answers, are not looked into by names.
_MOST_LEVELS: Final = 40
# Levels of `function` and the like around a call. Each level is looked into from those above it.
_MOST_WRAPPERS: Final = 2
_SHOWN_KEY: Final = 100
# A name under one of these keys is that of a call if arguments are beside it.
_NAMES: Final = ("name", "action", "method", "command", "type", "kind")
# Types with the data of a call that are none, or announce one that is written elsewhere.
_NO_CALLS: Final = frozenset(
    (
        "tool_reference",
        "tool_choice",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "tool_approval_request",
        "tool_approval_response",
        "retry_prompt",
    )
)


class CallShape(NamedTuple):
    """What looks like a call, or like the result of one. id, name: None if there is none."""

    path: str
    id: str | None
    name: str | None
    arguments: Any
    is_result: bool


def call_shapes(data: Any, path: str = "") -> Iterator[CallShape]:
    """Yield what looks like a call at any depth, with its path, in the order of the data."""
    waiting = [(data, path)]
    while waiting:
        value, place = waiting.pop()
        if isinstance(value, Mapping):
            if _is_definition(value, place):
                continue
            shape = call_shape(value, place)
            if shape is not None:
                yield shape
            below = []
            for key, item in value.items():
                name = str(key)
                if not _may_hold_calls(name, shape):
                    continue
                path = f"{place}.{name[:_SHOWN_KEY]}" if place else name[:_SHOWN_KEY]
                named = _named_by_key(name, item, place, path) if shape is None else ()
                if named:
                    yield from named
                elif isinstance(item, Mapping | list | tuple):
                    below.append((item, path))
                elif isinstance(item, str) and snake(name) not in TEXT_KEYS:
                    below.append((_parsed(item), path))
            if value.get("type") == "document":
                continue
        elif isinstance(value, list | tuple):
            below = [
                (item, f"{place}[{index}]")
                for index, item in enumerate(value)
                if isinstance(item, Mapping | list | tuple)
            ]
        else:
            continue
        waiting.extend(reversed(below))


def _named_by_key(key: str, value: Any, place: str, path: str) -> Sequence[CallShape]:
    """Return the calls within a value if it is all of a call but the name, which is its key, or has calls of that kind.

    Such a value has arguments and no name, or is one of several values in a mapping whose key speaks of calls.
    """
    if not isinstance(value, Mapping):
        return ()
    arguments = next((item for name, item in value.items() if snake(str(name)) in _ONLY_ARGUMENTS), None)
    speaks_of_calls = arguments is None and _speaks_of_calls(place)
    if (arguments is None and not speaks_of_calls) or call_shape(value, path) is not None:
        return ()
    if arguments is not None:
        if (
            isinstance(arguments, Mapping)
            and _is_among_tools(path)
            and all(map(_is_typed, arguments.values()))
        ):
            return ()  # a tool's parameters
        return [CallShape(path, None, key, arguments, is_result=False)]
    return list(call_shapes(value, path)) or [CallShape(path, None, key, value, is_result=False)]


def _speaks_of_calls(place: str) -> bool:
    """Return whether the last key of a path is that of calls. False for paths deeper than messages are."""
    if place.endswith("]") or place.count(".") > _MOST_LEVELS:
        return False
    words = snake(place.rpartition(".")[2]).split("_")
    return (
        "calls" in words or "invocations" in words or ("call" in words and not _TOOL_WORDS.isdisjoint(words))
    )


def _is_typed(value: Any) -> bool:
    return isinstance(value, Mapping) and "type" in value


# Keys of a call's arguments, and of nothing else.
_ONLY_ARGUMENTS: Final = frozenset(
    ("arguments", "args", "kwargs", "tool_input", "tool_args", "tool_arguments")
)

TEXT_KEYS: Final = frozenset(
    (
        "content",
        "text",
        "body",
        "message",
        "output",
        "output_text",
        "reply",
        "answer",
        "response",
        "completion",
    )
)
"""Keys in snake_case that have the text of a message."""


def _parsed(text: str) -> Any:
    """Return what is written as a JSON text that may be an object or a list; None if there is none."""
    if text[:1] not in ("{", "[") and not text[:1].isspace():
        return None
    try:
        return parse_json(text)
    except (ValueError, TooLarge):
        return None


def _may_hold_calls(key: str, shape: CallShape | None) -> bool:
    key = snake(key)
    if key in _NOT_READ:
        return False
    return shape is None or not (is_arguments(key) or key in _RESULTS or key in ("function", "custom"))


def call_shape(
    data: Mapping[Any, Any], path: str = "", *, wrappers: int = _MOST_WRAPPERS
) -> CallShape | None:
    """Return the call that an object itself is; None if it is none.

    path: "" for a message, whose type and ids are not those of a call. wrappers: how many levels of keys such as
    `function` are looked into.
    """
    kind = data.get("type", data.get("part_kind"))
    kind = snake(kind) if isinstance(kind, str) else ""
    if kind in _NO_CALLS:
        return None
    call_id = name = tool = arguments = place = None
    for written, value in data.items():
        key = snake(str(written))
        if key in ("function", "custom", "tool") and isinstance(value, Mapping):
            if _is_definition(value, f"{path}.{written}"):
                return None
            inner = call_shape(value, f"{path}.inner", wrappers=wrappers - 1) if wrappers else None
            name = value.get("name")
            if inner is not None:
                tool, arguments, place = inner.name, inner.arguments, written
        elif is_tool_name(key):
            tool = value if isinstance(value, str) else tool
        elif is_arguments(key) and not isinstance(value, int | float):
            arguments, place = (value if value is not None else arguments), written
        elif is_call_id(key) and isinstance(value, str):
            call_id = value
    names = _NAMES if path else () if data.get("role") in _NAMED_AUTHORS else ("name",)
    if name is None and tool is None:
        name = next((data[key] for key in names if isinstance(data.get(key), str)), None)
    named = tool is not None or name is not None or "name" in data.keys() & {*names}
    marked = path and (is_call_type(kind) or call_id is not None or tool is not None)
    if not marked and not (named and place is not None):
        return None
    if call_id is None and isinstance(data.get("id"), str):
        call_id = data["id"]
    name = name if tool is None else tool
    name = None if name == data.get("type") else name
    is_result = place is None and not _RESULTS.isdisjoint(data)
    return CallShape(path or str(place), call_id, name, arguments, is_result)


# In their messages `name` is the author.
_NAMED_AUTHORS: Final = ("user", "system", "developer", "tool", "function")


def is_tool_name(key: str) -> bool:
    """Return whether a key in snake_case is that of a tool's name, such as `tool` and `function_name`."""
    words = set(key.split("_"))
    return bool(words & _TOOL_WORDS) and words <= {*_TOOL_WORDS, "name", "call"}


def is_arguments(key: str) -> bool:
    """Return whether a key in snake_case is that of a call's arguments, such as `args` and `tool_input`."""
    *before, last = key.split("_")
    return "arguments" in key or (last in _ARGUMENTS and _BEFORE_ARGUMENTS.issuperset(before))


def is_call_id(key: str) -> bool:
    """Return whether a key in snake_case is that of a call's id, such as `tool_call_id` and `tool_use_id`."""
    return key in ("call_id", "tool_call_id", "tool_use_id", "tool_invocation_id", "function_call_id")


def is_call_type(kind: str) -> bool:
    """Return whether a type in snake_case is that of a call or a result, such as `tool_use` and `web_search_call`."""
    words = kind.split("_")
    return kind not in _NO_CALLS and (
        not _CALL_WORDS.isdisjoint(words) or (len(words) > 1 and not _TOOL_WORDS.isdisjoint(words))
    )


def _is_definition(data: Mapping[Any, Any], path: str) -> bool:
    """Return whether an object describes a tool: it has a schema, and no arguments, and is not among calls.

    A schema that says nothing may as well be arguments, except among tools or beside a description.
    """
    keys = {snake(str(key)): value for key, value in data.items()}
    schema = keys.get("parameters")
    has_schema = any(isinstance(keys[key], Mapping) for key in _SCHEMAS if key in keys)
    if not (has_schema or isinstance(schema, Mapping | list)):
        return False
    if any(is_arguments(key) and key != "parameters" for key in keys) or not _words(path).isdisjoint(
        _DONE_WORDS
    ):
        return False
    if has_schema:
        return True
    if isinstance(schema, list):
        return bool(schema) and all(
            isinstance(item, Mapping) and "name" in item and "value" not in item for item in schema
        )
    assert isinstance(schema, Mapping)
    properties = schema.get("properties")
    if properties and isinstance(properties, Mapping):
        return all(isinstance(item, Mapping | bool) for item in properties.values())
    says_nothing = schema.keys() <= {"type", "properties", "required", "additionalProperties", "$schema"}
    return says_nothing and ("description" in keys or _is_among_tools(path))


def _is_among_tools(path: str) -> bool:
    words = _words(path)
    return not words.isdisjoint(_LISTS_OF_TOOLS) and words.isdisjoint(_DONE_WORDS)


def _words(path: str) -> set[str]:
    """Return the words of the last keys of a path."""
    return {word for key in re.split(r"[.\[\]]+", path[-300:]) for word in snake(key).split("_")}


# Calls as models write them, which a server that is set up for the model turns into `tool_calls`.
_MARKUP: Final = re.compile(
    r"<tool_(?:call|use)>\s*+[{<]|<tool_call>\s*+[\w.-]{1,200}+\s*+<arg_key>|<function_calls?>\s*+[{<]|<function=[\w.-]"
    r"|<invoke name=|\[TOOL_CALLS\]\s*+[\[\w]|<\|python_tag\|>|<\|tool_calls?(?:_section)?(?:_begin)?\|>"
    r"|<\uff5ctool\u2581calls?\u2581begin\uff5c>|to=functions\.[^<]{0,200}+<\|"
)


def has_call_markup(text: str) -> bool:
    """Return whether a model's text contains a call that its server did not parse, other than as quoted code."""
    if "<" not in text and "[TOOL" not in text:
        return False
    fences: list[int] | None = None
    for markup in _MARKUP.finditer(text):
        if is_between_backticks(text, markup):
            continue
        if fences is None:
            fences = [fence.end() for fence in FENCE.finditer(text)]
            fences = fences[: len(fences) // 2 * 2]  # the last one may have no end
        if bisect(fences, markup.start()) % 2 == 0:
            return True
    return False


def unread_calls(data: Any, messages: Iterable[Mapping[str, Any]], ids: Iterable[str] = ()) -> list[str]:
    """Return the paths of the calls and results in the data that are not among those of the messages.

    data: the caller's data. messages: what was read from them. ids: ids of calls that were read before.
    """
    shapes = list(call_shapes(data))
    if not shapes:
        return []
    messages = list(messages)
    calls = [call for message in messages for call in _read_calls(message)]
    known = {*ids, *call_ids(messages)}
    names = {call.name for call in calls if call.name is not None}
    results = any(message.get("role") == "tool" for message in messages)
    # By name or, as None, any name; by arguments; by whether the call has an id.
    read: Counter[tuple[str | None, str, bool]] = Counter()
    for call in calls:
        arguments = _json(call.arguments)
        for name in {call.name, None}:
            read[name, arguments, call.id is not None] += 1
    unread: list[str] = []
    times: Counter[tuple[str, str | None, str]] = Counter()
    for shape in shapes:
        if shape.id is not None and shape.id in known:
            continue
        if shape.is_result:
            if shape.id is not None or not (results or shape.name in names):
                unread.append(shape.path)
            continue
        # The same call may be written in several places, but not oftener in one of them than it was read.
        where = _place(shape.path), shape.name, _json(shape.arguments)
        times[where] += 1
        same = read[shape.name, where[2], False]
        if shape.id is None:
            same += read[shape.name, where[2], True]
        if times[where] > same:
            unread.append(shape.path)
    return unread


def call_ids(messages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the ids of the calls, and of the calls that are answered, in messages in the contract's JSON form."""
    for message in messages:
        yield from (call.id for call in _read_calls(message) if isinstance(call.id, str))
        if isinstance(message.get("tool_call_id"), str):
            yield message["tool_call_id"]


def _read_calls(message: Mapping[str, Any]) -> Iterator[CallShape]:
    legacy = message.get("function_call") or message.get("functionCall")
    for written in (*(message.get("tool_calls") or message.get("toolCalls") or ()), legacy):
        call = plain(written)
        if isinstance(call, Mapping):
            bare = CallShape("", call.get("id"), call.get("name"), None, is_result=False)  # without arguments
            yield call_shape(call, "call") or bare


def _place(path: str) -> str:
    """Return the path without its indices, so that all elements of a list have the same."""
    return "".join(part.partition("]")[2] if number else part for number, part in enumerate(path.split("[")))


def _json(arguments: Any) -> str:
    """Return arguments as text that is the same for the same arguments."""
    if isinstance(arguments, str):
        written = arguments
        try:
            arguments = json.loads(written) if written.strip() else None
        except (ValueError, RecursionError):
            return written
    return json.dumps(arguments or None, sort_keys=True, default=str)
