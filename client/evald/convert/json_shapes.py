"""Tables that convert between JSON data in camelCase and messages, field by field.

Reading accepts keys in camelCase or snake_case, treats `null` as absent, and rejects unknown keys with the nearest
known one. Writing omits absent fields. The tables also create the JSON Schemas of the shapes.
"""

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from ..errors import InvalidInput
from ..fields import (
    INT32_MAX,
    as_double,
    duration_to_pb,
    flag,
    int32,
    join,
    milliseconds,
    read_keys,
    shown,
    snake,
    text,
    whole,
)
from ..messages import fill_messages
from ..records import camel
from ..structs import duration_ms, fill_struct, struct_to_dict
from ..v1 import evaluator_pb2, message_pb2
from .spec import read_spec, spec_to_pb

Pb = TypeVar("Pb")


class Codec(NamedTuple):
    """The reader and writer of one field.

    fill: (message, field, value, path) -> None; the field is empty before. Raises InvalidInput.
    write: (message, field) -> JSON data; None if the field is absent. schema: JSON Schema of the written data.
    """

    fill: Callable[[Any, str, Any, str], None]
    write: Callable[[Any, str], Any]
    schema: Mapping[str, Any] = {}


class Shape(Generic[Pb]):
    """The JSON shape of a message.

    fields: codec by field name. renamed: key by field name, if it differs from the name.
    always: fields that are written even if empty. read_only: fields that updates do not change.
    ignored: further keys, in snake_case, that are ignored. aliases: field name by further key in snake_case.
    title: name in schemas; by default the message's.
    """

    def __init__(
        self,
        message: type[Pb],
        fields: Mapping[str, Codec],
        *,
        renamed: Mapping[str, str] | None = None,
        always: tuple[str, ...] = (),
        read_only: tuple[str, ...] = (),
        ignored: tuple[str, ...] = (),
        aliases: Mapping[str, str] | None = None,
        title: str = "",
    ) -> None:
        self._message = message
        self._fields = fields
        self._keys = {name: camel((renamed or {}).get(name, name)) for name in fields}
        self._always = frozenset(always)
        self._known = {snake(key): name for name, key in self._keys.items()}
        self._known |= {key: key for key in ignored} | dict(aliases or {})
        self._read_only = frozenset(read_only)
        self.title = title or cast("Any", message).DESCRIPTOR.name

    def read(self, data: Any, path: str = "") -> Pb:
        """Convert JSON data to a message. Raises InvalidInput."""
        pb = self._message()
        for name, value in read_keys(data, self._known, path).items():
            if name in self._fields:
                self._fields[name].fill(pb, name, value, join(path, self._keys[name]))
        return pb

    def given(self, data: Any) -> list[str]:
        """Return the names of the fields in the data, for the mask of an update. Raises InvalidInput."""
        found = read_keys(data, self._known, "")
        return [name for name in found if name in self._fields and name not in self._read_only]

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the written data."""
        properties = {
            self._keys[name]: {**codec.schema, "readOnly": True} if name in self._read_only else codec.schema
            for name, codec in self._fields.items()
        }
        required = [self._keys[name] for name in self._fields if name in self._always]
        schema = {"title": self.title, "type": "object", "properties": properties}
        return schema | ({"required": required} if required else {})

    def write(self, pb: Pb) -> dict[str, Any]:
        """Convert a message to JSON data."""
        written: dict[str, Any] = {}
        for name, codec in self._fields.items():
            value = codec.write(pb, name)
            if value is None and name in self._always:
                written[self._keys[name]] = _json_data(getattr(pb, name))
            elif value is not None:
                written[self._keys[name]] = value
        return written


def plain_number(value: float) -> float | None:
    """Return whole numbers as int, because JSON writes 1 for 1.0. Returns None for NaN and infinity."""
    if value.is_integer():
        return int(value)
    return value if math.isfinite(value) else None


def _json_data(data: Any) -> Any:
    """Return a copy of the data with each float converted by `plain_number`."""
    if isinstance(data, float):
        return plain_number(data)
    if isinstance(data, dict):
        return {key: _json_data(value) for key, value in data.items()}
    return [_json_data(value) for value in data] if isinstance(data, list) else data


def _struct_to_json(pb: Any) -> dict[str, Any]:
    found: dict[str, Any] = _json_data(struct_to_dict(pb))
    return found


def message_to_openai(pb: message_pb2.ChatMessage) -> dict[str, Any]:
    """Convert a message to OpenAI's format with its original blocks, without ids and metadata of other systems."""
    found: dict[str, Any] = {"role": pb.role, "content": pb.text if pb.HasField("text") else None}
    if pb.HasField("blocks"):
        found["content"] = [
            {"type": block.type}
            | ({"text": block.text} if block.HasField("text") else {})
            | _struct_to_json(block.fields)
            for block in pb.blocks.items
        ]
    if pb.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in pb.tool_calls
        ]
    for name in ("tool_call_id", "name", "refusal"):
        if pb.HasField(name):
            found[name] = getattr(pb, name)
    return found


def message_to_json(pb: message_pb2.ChatMessage) -> dict[str, Any]:
    """Convert a message to OpenAI's format plus evald's own keys: durations of tool calls, id and metadata."""
    found = message_to_openai(pb)
    for call, written in zip(pb.tool_calls, found.get("tool_calls", ()), strict=True):
        written["type"] = call.type or "function"
        if call.HasField("duration"):
            written["duration_ms"] = plain_number(duration_ms(call.duration))
    if pb.HasField("id"):
        found["id"] = pb.id
    if pb.metadata.fields:
        found["metadata"] = _struct_to_json(pb.metadata)
    if pb.unread_calls:
        found["unread_calls"] = list(pb.unread_calls)
    return found


def spec_to_json(pb: evaluator_pb2.EvaluatorSpec) -> dict[str, Any]:
    """Convert a spec to JSON data. Omits an invalid weight or threshold."""
    for name in ("weight", "threshold"):
        if pb.HasField(name) and not 0 <= getattr(pb, name) < math.inf:  # from a run of another system
            pb = deepcopy(pb)
            pb.ClearField(name)
    data: dict[str, Any] = _json_data(read_spec(pb).to_dict())
    return data | {"enforcement": "shadow"} if data.pop("shadow", False) else data


def _present(pb: Any, name: str) -> Any:
    field = pb.DESCRIPTOR.fields_by_name[name]
    value = getattr(pb, name)
    absent = not pb.HasField(name) if field.has_presence else not value
    return None if absent else value


def _scalar(
    read: Callable[[Any, str], Any],
    schema: Mapping[str, Any],
    write: Callable[[Any], Any] = lambda value: value,
) -> Codec:
    def fill(pb: Any, name: str, value: Any, path: str) -> None:
        setattr(pb, name, read(value, path))

    def written(pb: Any, name: str) -> Any:
        value = _present(pb, name)
        return None if value is None else write(value)

    return Codec(fill, written, schema)


def _read_list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidInput(path, shown(value), "a list")
    return list(value)


def _collection(
    fill: Callable[[Any, Any, str], None], write: Callable[[Any], Any], schema: Mapping[str, Any]
) -> Codec:
    """Return the codec of a repeated field or a map. fill: (the field's container, value, path) -> None."""
    return Codec(
        lambda pb, name, value, path: fill(getattr(pb, name), value, path),
        lambda pb, name: write(getattr(pb, name)) if len(getattr(pb, name)) else None,
        schema,
    )


def choice(*names: str) -> Codec:
    """Return the codec of an enum. names: names of its numbers 1, 2, ...; reading ignores their case.

    The value "" means 0 and clears the field.
    """
    numbers = {snake(name): value for value, name in enumerate(("", *names))}

    def read(value: Any, path: str) -> int:
        found = numbers.get(snake(value)) if isinstance(value, str) else None
        if found is None:
            raise InvalidInput(path, shown(value), " or ".join(map(repr, names)))
        return found

    schema = {"type": "string", "enum": list(names)}
    return _scalar(read, schema, lambda value: names[value - 1] if value <= len(names) else None)


def nested(shape: Shape[Any]) -> Codec:
    """Return the codec of a message within a message."""
    return Codec(
        lambda pb, name, value, path: getattr(pb, name).CopyFrom(shape.read(value, path)),
        _written(shape.write),
        shape.schema(),
    )


def _written(write: Callable[[Any], Any]) -> Callable[[Any, str], Any]:
    return lambda pb, name: write(getattr(pb, name)) if pb.HasField(name) else None


def repeated(
    read: Callable[[Any, str], Any], write: Callable[[Any], Any], schema: Mapping[str, Any]
) -> Codec:
    """Return the codec of a list of messages. schema: JSON Schema of one message."""

    def fill(field: Any, value: Any, path: str) -> None:
        field.extend(read(one, f"{path}[{index}]") for index, one in enumerate(_read_list(value, path)))

    return _collection(fill, lambda field: [write(one) for one in field], _list_of(schema))


def _fill_time(pb: Any, name: str, value: Any, path: str) -> None:
    try:
        getattr(pb, name).FromJsonString(text(value, path))
    except ValueError:
        raise InvalidInput(path, shown(value), 'a time such as "2026-01-31T12:00:00Z"') from None


def _time_to_json(pb: Any) -> str:
    """Return a time with millisecond precision, in JavaScript's format."""
    return f"{pb.ToDatetime().isoformat(timespec='milliseconds')}Z"


def _fill_struct(pb: Any, name: str, value: Any, path: str) -> None:
    getattr(pb, name).SetInParent()
    fill_struct(value, getattr(pb, name), path)


def _fill_milliseconds(pb: Any, name: str, value: Any, path: str) -> None:
    duration_to_pb(milliseconds(value, path), getattr(pb, name))


def _fill_messages(field: Any, value: Any, path: str) -> None:
    fill_messages(_read_list(value, path), field, path)


def _fill_texts(field: Any, value: Any, path: str) -> None:
    field.extend(text(one, f"{path}[{index}]") for index, one in enumerate(_read_list(value, path)))


def _fill_map(read: Callable[[Any, str], Any]) -> Callable[[Any, Any, str], None]:
    def fill(field: Any, value: Any, path: str) -> None:
        if not isinstance(value, Mapping):
            raise InvalidInput(path, shown(value), "an object")
        for key, one in value.items():
            field[text(key, path)] = read(one, join(path, key))

    return fill


def _fill_headers(field: Any, value: Any, path: str) -> None:
    try:
        _fill_map(text)(field, value, path)
    except InvalidInput as problem:
        # Without the value: it may be a secret.
        raise InvalidInput(problem.path, "got something else", problem.wanted) from None


def _finite(value: Any, path: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -math.inf < as_double(value) < math.inf
    ):
        raise InvalidInput(path, shown(value), "a number")
    return value


def _list_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


def _map_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": schema}


_TEXT: Final = {"type": "string"}
_FLAG: Final = {"type": "boolean"}
_NUMBER: Final = {"type": "number"}
_OBJECT: Final = {"type": "object"}
_MILLISECONDS: Final = {"type": "number", "minimum": 0, "description": "Milliseconds."}
_INT32: Final = {"type": "integer", "minimum": 0, "maximum": INT32_MAX}

MESSAGE_SCHEMA: Final = {
    "title": "Message",
    "description": "A message in the format of OpenAI's Chat Completions.",
    "type": "object",
    "properties": {
        "role": _TEXT,
        "content": {"type": ["string", "array", "null"], "items": _OBJECT},
        "tool_calls": _list_of(
            {
                "title": "ToolCall",
                "type": "object",
                "properties": {
                    "id": _TEXT,
                    "type": _TEXT,
                    "function": {"type": "object", "properties": {"name": _TEXT, "arguments": _TEXT}},
                    "duration_ms": _MILLISECONDS,
                },
            }
        ),
        "tool_call_id": _TEXT,
        "name": _TEXT,
        "refusal": _TEXT,
        "id": _TEXT,
        "metadata": _OBJECT,
        "unread_calls": _list_of(_TEXT),
    },
    "required": ["role"],
}

SPEC_SCHEMA: Final = {
    "title": "Spec",
    "description": "An evaluator with its config, and how its result counts.",
    "type": "object",
    "properties": {
        "type": _TEXT,
        "config": _OBJECT,
        "name": _TEXT,
        "version": _TEXT,
        "when": {"type": "string", "enum": ["every_turn", "final"]},
        "weight": {"type": "number", "minimum": 0},
        "required": _FLAG,
        "threshold": {"type": "number", "minimum": 0, "maximum": 1},
        "negate": _FLAG,
        "enforcement": {"type": "string", "enum": ["enforced", "shadow"]},
        "onError": {"type": "string", "enum": ["fail_closed", "fail_open"]},
        "timeoutSeconds": {"type": "number", "minimum": 0},
        "reasoning": {"type": "string", "enum": ["strip", "keep"]},
    },
    "required": ["type"],
}

TEXT: Final = _scalar(text, _TEXT)
COUNT: Final = _scalar(int32, _INT32)
LONG_COUNT: Final = _scalar(whole, {"type": "integer", "minimum": 0})
NUMBER: Final = _scalar(_finite, _NUMBER, plain_number)
FLAG: Final = _scalar(flag, _FLAG)
TEXTS: Final = _collection(_fill_texts, list, _list_of(_TEXT))
HEADERS: Final = _collection(_fill_headers, dict, _map_of(_TEXT))
TEXT_MAP: Final = _collection(_fill_map(text), dict, _map_of(_TEXT))
NUMBER_MAP: Final = _collection(
    _fill_map(_finite),
    lambda field: {key: plain_number(value) for key, value in field.items() if math.isfinite(value)},
    _map_of(_NUMBER),
)
STRUCT: Final = Codec(_fill_struct, _written(_struct_to_json), _OBJECT)
TIME: Final = Codec(_fill_time, _written(_time_to_json), {"type": "string", "format": "date-time"})
MILLISECONDS: Final = Codec(
    _fill_milliseconds, _written(lambda pb: plain_number(duration_ms(pb))), _MILLISECONDS
)
MESSAGES: Final = _collection(
    _fill_messages, lambda field: [message_to_json(one) for one in field], _list_of(MESSAGE_SCHEMA)
)
SPECS: Final = repeated(spec_to_pb, spec_to_json, SPEC_SCHEMA)
