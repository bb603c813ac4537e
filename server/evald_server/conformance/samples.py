"""The turns, tasks and configs for the checks of plugins."""

import itertools
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from evald.plugin.v1 import task_pb2
from evald.structs import dict_to_struct
from evald.v1 import context_pb2, evaluator_pb2

_numbers: Final = itertools.count(1)

ANSWER: Final = "Thank you for waiting. Your reference is BK-12345, please keep it."

# Scripts written from right to left or without spaces; combined and astral characters.
NON_LATIN: Final = "مرحبا بالعالم — 你好世界。 — नमस्ते — Ελληνικά — \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \u0000 \u202e."

ONE_MEGABYTE: Final = "All work and no play makes Jack a dull boy. \n" * 23302


class Sample(NamedTuple):
    """A type with a valid config."""

    type: evaluator_pb2.EvaluatorType
    config: Mapping[str, Any]


def turn(answer: str | None = ANSWER) -> context_pb2.EvaluatorContext:
    """Build a turn with an answer; None means null content."""
    context = context_pb2.EvaluatorContext(turn=1, is_final=True)
    context.messages.add(role="user", text="Is my booking done?")
    message = context.messages.add(role="assistant")
    if answer is not None:
        message.text = answer
    context.last_invocation.messages.add().CopyFrom(message)
    context.last_invocation.latency.seconds = 1
    usage = context.last_invocation.token_usage
    usage.input_tokens, usage.output_tokens, usage.total_tokens = 12, 34, 46
    context.last_invocation.cost.currency_code, context.last_invocation.cost.amount = "USD", 0.0001
    return context


def of_every_form() -> context_pb2.EvaluatorContext:
    """Build a turn with tool calls, invalid arguments, blocks, null content and an unknown role."""
    context = context_pb2.EvaluatorContext(turn=2)
    context.messages.add(role="system", text="Be brief.")
    context.messages.add(role="developer", text="")
    asked = context.messages.add(role="user")
    asked.blocks.items.add(type="text", text="What is this?")
    picture = asked.blocks.items.add(type="image_url")
    picture.fields.update({"image_url": {"url": "data:image/png;base64,AA=="}})
    called = context.messages.add(role="assistant")
    for number, arguments in enumerate(('{"id": 1}', "{not json", "")):
        call = called.tool_calls.add(id=f"call-{number}", type="function")
        call.function.name, call.function.arguments = "look", arguments
    context.messages.add(role="tool", text="a cat", tool_call_id="call-0")
    context.messages.add(role="critic", text="fine")
    context.messages.add(role="assistant").blocks.SetInParent()
    return context


def new_task(
    sample: Sample,
    context: context_pb2.EvaluatorContext | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    seconds: float | None = None,
) -> task_pb2.EvaluationTask:
    """Build a task with a new id. seconds: its timeout."""
    task = task_pb2.EvaluationTask(
        task_id=f"conformance-{next(_numbers)}",
        type=sample.type.type,
        version=sample.type.version,
        context=context or turn(),
        attempt=1,
    )
    dict_to_struct(sample.config if config is None else config, task.config)
    task.trace_context["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    if seconds is not None:
        task.timeout.FromMilliseconds(round(seconds * 1000))
    return task


def with_unknown_fields(task: task_pb2.EvaluationTask) -> task_pb2.EvaluationTask:
    """Return the task with unknown fields in it and in its context, as of a later contract."""
    data = task.SerializeToString()
    later = task_pb2.EvaluationTask.FromString(data + _UNKNOWN)
    context = task.context.SerializeToString() + _UNKNOWN
    later.context.CopyFrom(context_pb2.EvaluatorContext.FromString(context))
    return later


# Field 1999, length-delimited: "from a later contract". Source: protobuf.dev, Encoding.
_UNKNOWN: Final = b"\xfa\x7c\x15from a later contract"


def schema_of(found: evaluator_pb2.EvaluatorType) -> dict[str, Any] | None:
    """Parse the config schema. Returns {} if there is none, None if it is not a JSON object."""
    if not found.config_schema_json:
        return {}
    try:
        schema = json.loads(found.config_schema_json)
    except ValueError:
        return None
    return schema if isinstance(schema, dict) else None


def misfits(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return configs that may be invalid: an unknown key, an empty config, each property with other types."""
    candidates: list[dict[str, Any]] = [{"evaldConformance": True}, {}]
    properties = schema.get("properties")
    for key in properties if isinstance(properties, dict) else ():
        candidates += [{key: wrong} for wrong in ({"evald": "conformance"}, "conformance", -1.5, [None])]
    return candidates
