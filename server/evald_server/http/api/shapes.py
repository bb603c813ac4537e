"""The JSON shapes of /api. Scenarios, runs and their parts have EvalStudio's shapes, from the SDK's tables; all other
shapes are derived from the protobuf messages."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from evald.catalog import EvaluatorType
from evald.convert import json_shapes as shape
from evald.convert.context import fill_expected
from evald.convert.json_shapes import Codec, Shape
from evald.convert.resources import CONNECTOR, EXPERIMENT
from evald.convert.runs import turn_schema, turn_to_json
from evald.convert.spec import fill_options
from evald.errors import InvalidInput
from evald.fields import shown, snake
from evald.v1 import evaluator_pb2

Schema = Mapping[str, Any]

TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
OBJECT: Final[Schema] = {"type": "object"}
INTEGER: Final[Schema] = {"type": "integer"}
TIME: Final[Schema] = shape.TIME.schema

VERDICT: Final[Schema] = {"type": "string", "enum": ["PASSED", "FAILED", "ERROR", "SKIPPED"]}

_TIMES: Final = {
    "create_time": "created_at",
    "update_time": "updated_at",
    "start_time": "started_at",
    "complete_time": "completed_at",
}


def list_of(schema: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def record(title: str, properties: Mapping[str, Schema], required: str = "") -> Schema:
    """Return the schema of an object. required: the names of its required keys, separated by spaces."""
    schema = {"title": title, "type": "object", "properties": properties}
    return schema | ({"required": required.split()} if required else {})


def whole_record(title: str, properties: Mapping[str, Schema]) -> Schema:
    """Return the schema of an object with all of its keys."""
    return record(title, properties, " ".join(properties))


def request_of(schema: Schema) -> Schema:
    """Return the schema of an object in a request: `name` is required if it exists, and unknown keys are refused."""
    required = "name" if "name" in schema["properties"] else ""
    return _closed(f"{schema['title']}Request", schema, required)


def patch_of(schema: Schema) -> Schema:
    """Return the schema of changes to an object: no key is required."""
    return _closed(f"{schema['title']}Patch", schema)


def _closed(title: str, schema: Schema, required: str = "") -> Schema:
    return {**record(title, schema["properties"], required), "additionalProperties": False}


def line_of(title: str, properties: Mapping[str, Schema]) -> Schema:
    """Return the schema of a stream's line. The last line may have an `error`: a google.rpc.Status."""
    return record(title, {**properties, "error": OBJECT})


def derived(message: type[Message]) -> Shape[Any]:
    """Derive the shape of a message: keys in camelCase, times and durations as in all shapes, numbers and flags always
    present."""
    return _derived(cast("Descriptor", message.DESCRIPTOR))


@cache
def _derived(descriptor: Descriptor) -> Shape[Any]:
    renamed = {}
    for field in descriptor.fields:
        if field.name in _TIMES:
            renamed[field.name] = _TIMES[field.name]
        elif field.message_type is not None and field.message_type.full_name == "google.protobuf.Duration":
            renamed[field.name] = f"{field.name}_ms"
    return Shape(
        GetMessageClass(descriptor),
        {field.name: _codec(field) for field in descriptor.fields},
        renamed=renamed,
        always=tuple(field.name for field in descriptor.fields if _is_plain_number(field)),
    )


def _codec(field: FieldDescriptor) -> Codec:
    inner = field.message_type
    if inner is None:
        return _enum(field) if field.enum_type is not None else _SCALARS[field.cpp_type, _repeats(field)]
    if inner.GetOptions().map_entry:
        return _map(inner.fields_by_name["value"])
    known = _MESSAGES.get(inner.full_name)
    if known is not None:
        return known
    kind = _derived(inner)
    return shape.repeated(kind.read, kind.write, kind.schema()) if _repeats(field) else shape.nested(kind)


def _repeats(field: FieldDescriptor) -> bool:
    return isinstance(field.default_value, list)


def _is_plain_number(field: FieldDescriptor) -> bool:
    text = field.cpp_type == FieldDescriptor.CPPTYPE_STRING
    return not (field.has_presence or _repeats(field) or text or field.enum_type is not None)


def _enum(field: FieldDescriptor) -> Codec:
    """Return the codec of an enum, or of a list of enums, which only responses have."""
    enum = cast("EnumDescriptor", field.enum_type)
    prefix = f"{snake(enum.name).upper()}_"
    names = {value.number: value.name.removeprefix(prefix) for value in enum.values if value.number}
    if not enum.name.endswith("Verdict"):
        names = {number: name.lower() for number, name in names.items()}
    if _repeats(field):
        schema = {"type": "string", "enum": list(names.values())}
        return _written_alone(lambda number: names.get(number, str(number)), schema)
    return shape.choice(*names.values())


def _map(value: FieldDescriptor) -> Codec:
    """Return the codec of a map. Maps of messages can only be written."""
    if value.message_type is None:
        return shape.TEXT_MAP if value.cpp_type == FieldDescriptor.CPPTYPE_STRING else shape.NUMBER_MAP
    kind = _derived(value.message_type)

    def write(pb: Any, name: str) -> Any:
        return {key: kind.write(one) for key, one in getattr(pb, name).items()} or None

    return Codec(_unread, write, {"type": "object", "additionalProperties": kind.schema()})


def _unread(_pb: Any, _name: str, value: Any, path: str) -> None:
    raise InvalidInput(path, shown(value), "no value: only the server sets this field")


def _written_alone(write: Callable[[Any], Any], schema: Schema) -> Codec:
    """Return the codec of a list that only responses have."""
    return Codec(_unread, lambda pb, name: [write(one) for one in getattr(pb, name)] or None, list_of(schema))


def _fill_options(pb: Any, name: str, value: Any, _path: str) -> None:
    getattr(pb, name).SetInParent()
    fill_options(value, getattr(pb, name))


def _fill_expected(pb: Any, name: str, value: Any, _path: str) -> None:
    fill_expected(value, getattr(pb, name))


OPTIONS: Final[Schema] = record(
    "Options",
    {
        "aggregation": {"type": "string", "enum": ["all_must_pass", "weighted_mean"]},
        "threshold": {"type": "number", "minimum": 0, "maximum": 1},
        "failFast": FLAG,
        "maxConcurrency": {"type": "integer", "minimum": 0},
        "skipAutoEvaluators": FLAG,
        "includeProgress": FLAG,
        "timeoutSeconds": {"type": "number", "minimum": 0},
        "skipCache": FLAG,
        "criteriaPolicy": {"type": "string", "enum": ["both", "evaluators_only"]},
    },
)

_SCALARS: Final = {
    (FieldDescriptor.CPPTYPE_STRING, False): shape.TEXT,
    (FieldDescriptor.CPPTYPE_STRING, True): shape.TEXTS,
    (FieldDescriptor.CPPTYPE_INT32, False): shape.COUNT,
    (FieldDescriptor.CPPTYPE_INT64, False): shape.LONG_COUNT,
    (FieldDescriptor.CPPTYPE_DOUBLE, False): shape.NUMBER,
    (FieldDescriptor.CPPTYPE_BOOL, False): shape.FLAG,
}

_MESSAGES: Final = {
    "google.protobuf.Timestamp": shape.TIME,
    "google.protobuf.Duration": shape.MILLISECONDS,
    "google.protobuf.Struct": shape.STRUCT,
    "evald.v1.ChatMessage": shape.MESSAGES,
    "evald.v1.EvaluatorSpec": shape.SPECS,
    "evald.v1.EvaluateOptions": Codec(_fill_options, lambda _pb, _name: None, OPTIONS),
    "evald.v1.Expected": Codec(_fill_expected, lambda _pb, _name: None, {"type": ["string", "object"]}),
    "evald.v1.Connector": shape.nested(CONNECTOR),
    "evald.v1.EvaluatorType": _written_alone(
        lambda pb: {"type": pb.type, "version": pb.version},
        whole_record("EvaluatorTypeRef", {"type": TEXT, "version": TEXT}),
    ),
    "evald.v1.RunTurn": _written_alone(turn_to_json, turn_schema()),
}

EVALUATOR_TYPE: Final = record(
    "EvaluatorType",
    {
        "type": TEXT,
        "label": TEXT,
        "description": TEXT,
        "kind": {"type": "string", "enum": ["assertion", "metric"]},
        "configSchema": OBJECT,
        "builtin": FLAG,
        "auto": FLAG,
        "chartType": TEXT,
        "aliases": list_of(TEXT),
        "origin": TEXT,
        "state": TEXT,
        "version": TEXT,
    },
    "type label kind configSchema builtin auto origin state version",
)


def type_to_json(pb: evaluator_pb2.EvaluatorType) -> dict[str, Any]:
    """Convert an entry of the catalogue."""
    entry = EvaluatorType.from_pb(pb)
    data = {key: value for key, value in entry.to_dict().items() if key in EVALUATOR_TYPE["properties"]}
    data |= {"builtin": entry.origin == "built_in", "auto": entry.auto, "configSchema": entry.config_schema}
    # EvalStudio draws counts as bars, and has its own chart for tokens.
    return data | ({"chartType": "bar"} if entry.metric is not None and entry.metric.unit == "count" else {})


PROMPT: Final = whole_record("ScenarioPrompt", {"systemPrompt": TEXT, "messages": shape.MESSAGES.schema})
_VIOLATION: Final = {"index": INTEGER, "path": TEXT, "reason": TEXT, "message": TEXT}
VIOLATIONS: Final = whole_record("Violations", {"violations": list_of(whole_record("Violation", _VIOLATION))})
STATUS: Final = whole_record(
    "Status", {"name": TEXT, "version": TEXT, "status": TEXT, "timestamp": TIME, "node": TEXT}
)
PROJECT: Final = whole_record("Project", {"id": TEXT, "name": TEXT})
PROJECT_CONFIG: Final = record(
    "ProjectConfig", {"version": INTEGER, "name": TEXT, "maxConcurrency": INTEGER}, "version name"
)
CONNECTOR_TYPE: Final = whole_record(
    "ConnectorType",
    {"type": TEXT, "label": TEXT, "description": TEXT, "configSchema": OBJECT, "builtin": FLAG},
)
CONNECTOR_TEST: Final = record(
    "ConnectorTest",
    {"success": FLAG, "latencyMs": {"type": "number"}, "response": TEXT, "error": TEXT},
    "success latencyMs",
)
EVALUATORS: Final = list_of({"anyOf": [shape.SPEC_SCHEMA, TEXT]})
CONVERSATION: Final = record(
    "Conversation",
    {
        "messages": shape.MESSAGES.schema,
        "evaluators": EVALUATORS,
        "options": OPTIONS,
        "labels": shape.TEXT_MAP.schema,
        "requestId": TEXT,
        "id": TEXT,
        "lastInvocation": OBJECT,
        "latencyMs": {"type": "number", "minimum": 0},
        "usage": OBJECT,
        "costUsd": {"type": "number", "minimum": 0},
        "model": TEXT,
        "expected": {"type": ["string", "object"]},
        "scenario": {"type": ["string", "object"]},
        "persona": {"type": ["string", "object"]},
        "turn": {"type": "integer", "minimum": 0},
        "isFinal": FLAG,
        "metadata": OBJECT,
    },
)


def eval_schema() -> Schema:
    """Return the schema of an eval with its scenarios and its connector."""
    schema = EXPERIMENT.schema()
    more = {
        "scenarios": list_of(OBJECT),
        "connector": record("ConnectorSummary", dict.fromkeys(("id", "name", "type", "baseUrl"), TEXT)),
    }
    return {**schema, "title": "EvalWithRelations", "properties": {**schema["properties"], **more}}
